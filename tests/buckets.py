"""Buckets gs://test-bucket and s3://test-bucket on a server of this process: moto's S3, which has both."""

import contextlib
import logging
from collections.abc import Iterator

import pytest

from files.paths import EXTRAS

BUCKET = "test-bucket"


@contextlib.contextmanager
def buckets_on_this_machine() -> Iterator[dict[str, str]]:
    """Within this context, both buckets exist. Yields the variables of the environment that processes need for s3://."""
    import fsspec
    import s3fs
    from moto.server import ThreadedMotoServer

    class GoogleBuckets(s3fs.S3FileSystem):
        """gs:// as fsspec sees it, without gcsfs, whose requests no server of this machine answers."""

        protocol = ("gs", "gcs")

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    environment = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setitem(EXTRAS, "gs", ("gcs", "s3fs"))
        for name in GoogleBuckets.protocol:
            fsspec.register_implementation(name, GoogleBuckets, clobber=True)
        s3fs.S3FileSystem().mkdir(BUCKET)
        try:
            yield environment
        finally:
            server.stop()
