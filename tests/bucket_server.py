"""An object store on this machine, with the parts of the interfaces of Amazon S3 and Google Cloud Storage used here.

Conditional writes and reads, ranges, listing in pages and errors are those that both services document. The same tests
pass on moto's S3 (tests/files/test_storage.py runs them on it where moto is installed).
"""

import contextlib
import hashlib
import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.sax.saxutils import escape

PAGE = 50  # entries of a page of a list, so that small tests have several pages


class BucketServer:
    """Objects by bucket and key, with a generation each.

    Attributes:
      objects: bucket -> key -> (contents, generation).
      log: the method and the path of each request.
      forbidden: whether all requests are answered with 403.
      stalled: the number of next requests that are never answered.
    """

    def __init__(self, *buckets: str):
        self.objects: dict[str, dict[str, tuple[bytes, int]]] = {bucket: {} for bucket in buckets}
        self.log: list[str] = []
        self.forbidden = False
        self.stalled = 0
        self.lock = threading.Lock()
        self.generation = 1000
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which TensorStore sends the requests for gs:// and s3:// here."""
        return {
            "TENSORSTORE_GCS_HTTP_URL": self.url,
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "token",
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @contextlib.contextmanager
    def running(self) -> Iterator["BucketServer"]:
        """Within this context the server answers."""
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()

    def put(self, bucket: str, key: str, contents: bytes) -> int:
        """Writes an object and returns its generation."""
        self.generation += 1
        self.objects[bucket][key] = (contents, self.generation)
        return self.generation


def etag(contents: bytes) -> str:
    """Returns the version of an object in S3."""
    return f'"{hashlib.md5(contents).hexdigest()}"'


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # one packet for the head and the body of an answer
    disable_nagle_algorithm = True
    store: BucketServer

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, query = self.path.partition("?")
        self.store.log.append(f"{self.command} {path}")
        options = {name: values[0] for name, values in urllib.parse.parse_qs(query, keep_blank_values=True).items()}
        if self.store.stalled:
            self.store.stalled -= 1
            threading.Event().wait()
        google = next((p for p in ("/upload/storage/v1/b/", "/storage/v1/b/") if path.startswith(p)), None)
        with self.store.lock:
            if self.store.forbidden:
                code = b'{"error": {"code": 403, "message": "Forbidden"}}'
                self._answer(403, code if google else b"<Error><Code>AccessDenied</Code></Error>")
            elif google:
                bucket, _, key = path.removeprefix(google).partition("/o")
                self._google(bucket, urllib.parse.unquote(key.removeprefix("/")), options, body)
            else:
                bucket, _, key = path[1:].partition("/")
                self._amazon(bucket, urllib.parse.unquote(key), options, body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def _google(self, bucket: str, key: str, options: dict[str, str], body: bytes) -> None:
        if bucket not in self.store.objects:
            self._answer(404, b'{"error": {"code": 404, "message": "The specified bucket does not exist."}}')
            return
        objects = self.store.objects[bucket]
        if self.command == "GET" and not key:
            first, end = options.get("pageToken") or options.get("startOffset", ""), options.get("endOffset")
            names = sorted(name for name in objects if name >= first and (not end or name < end))
            names = [name for name in names if name.startswith(options.get("prefix", ""))]
            page: dict = {"items": [{"name": name, "size": str(len(objects[name][0]))} for name in names[:PAGE]]}
            if len(names) > PAGE:
                page["nextPageToken"] = names[PAGE]
            self._answer(200, json.dumps(page).encode())
            return
        key = key or options.get("name", "")
        contents, generation = objects.get(key, (b"", 0))
        if "ifGenerationMatch" in options and int(options["ifGenerationMatch"]) != generation:
            self._answer(412, b"{}")
        elif self.command == "POST":
            self._answer(200, json.dumps({"name": key, "generation": str(self.store.put(bucket, key, body))}).encode())
        elif generation == 0:
            self._answer(404, b'{"error": {"code": 404, "message": "No such object"}}')
        elif self.command == "DELETE":
            del objects[key]
            self._answer(204)
        elif int(options.get("ifGenerationNotMatch", 0)) == generation:
            self._answer(304)
        else:
            self._contents(contents, {"x-goog-generation": str(generation)})

    def _amazon(self, bucket: str, key: str, options: dict[str, str], body: bytes) -> None:
        if bucket not in self.store.objects:
            self._answer(404, b"<Error><Code>NoSuchBucket</Code></Error>")
            return
        objects = self.store.objects[bucket]
        if self.command == "GET" and not key:
            after = options.get("continuation-token") or options.get("start-after", "")
            names = sorted(n for n in objects if n > after and n.startswith(options.get("prefix", "")))
            rows = "".join(
                f"<Contents><Key>{escape(n)}</Key><Size>{len(objects[n][0])}</Size></Contents>" for n in names[:PAGE]
            )
            more = len(names) > PAGE
            token = f"<NextContinuationToken>{escape(names[PAGE - 1])}</NextContinuationToken>" if more else ""
            self._answer(
                200,
                f"<?xml version='1.0'?><ListBucketResult><KeyCount>{len(names[:PAGE])}</KeyCount>"
                f"<IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>".encode(),
            )
            return
        found = objects.get(key)
        version = etag(found[0]) if found else None
        wanted, unwanted = self.headers.get("If-Match"), self.headers.get("If-None-Match")
        if self.command == "PUT":
            if (wanted and wanted != version) or (unwanted == "*" and found):
                self._answer(412)
                return
            self.store.put(bucket, key, body)
            self._answer(200, headers={"ETag": etag(body)})
        elif found is None:
            self._answer(204 if self.command == "DELETE" else 404)
        elif self.command == "DELETE":
            del objects[key]
            self._answer(204)
        elif unwanted == version:
            self._answer(304, headers={"ETag": version or ""})
        else:
            self._contents(found[0], {"ETag": version or ""})

    def _contents(self, contents: bytes, headers: dict[str, str]) -> None:
        wanted = (self.headers.get("Range") or "").removeprefix("bytes=")
        if not wanted:
            self._answer(200, contents, headers)
            return
        first, _, last = wanted.partition("-")
        begin = int(first) if first else max(len(contents) - int(last), 0)
        end = min(int(last) + 1 if first and last else len(contents), len(contents))
        if begin >= len(contents):
            self._answer(416)
            return
        self._answer(206, contents[begin:end], headers | {"Content-Range": f"bytes {begin}-{end - 1}/{len(contents)}"})

    def _answer(self, status: int, body: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response_only(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_) -> None:
        """Prints nothing."""
