"""The source code of a study: its digest, and the archive that the study's folder keeps."""

import hashlib
import io
import pathlib
import zipfile
from collections.abc import Mapping

_ROOT = pathlib.Path(__file__).parent.parent
# What trains and measures a run. Configs are not among them: study.json has those of every run, as resolved.
_PACKAGES = ("cluster", "command", "contract", "data", "evaluation", "experiment", "files", "generate", "huggingface")
_PACKAGES += ("learners", "models", "objectives", "run", "studies", "train", "workdir")


def source_files() -> dict[str, bytes]:
    """Returns the Python files that train and measure runs: path within the project -> contents."""
    paths = sorted(path for package in _PACKAGES for path in (_ROOT / package).rglob("*.py"))
    return {path.relative_to(_ROOT).as_posix(): path.read_bytes() for path in paths}


def digest_of(files: Mapping[str, bytes]) -> str:
    """Returns a hash of `source_files`, names included."""
    digest = hashlib.blake2b(digest_size=8)
    for name, contents in files.items():
        digest.update(f"{name} {len(contents)}\n".encode() + contents)
    return digest.hexdigest()


def archive_of(files: Mapping[str, bytes]) -> bytes:
    """Returns a zip file of `source_files`. Equal files give equal archives."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as out:
        for name, contents in files.items():
            out.writestr(zipfile.ZipInfo(name), contents, zipfile.ZIP_DEFLATED)  # without the time of the file
    return archive.getvalue()
