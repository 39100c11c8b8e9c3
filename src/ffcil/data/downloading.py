"""Downloads that nobody can change on their way: over HTTPS, or with a SHA-256 checksum."""

import hashlib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn
from urllib.error import URLError


class _NoPlainHttp(urllib.request.HTTPHandler):
    """Handler that refuses requests over plain HTTP."""

    def http_open(self, req: urllib.request.Request) -> NoReturn:
        raise URLError(f"{req.full_url} is not HTTPS")


@contextmanager
def https_only() -> Iterator[None]:
    """Refuse plain HTTP, to which torchvision returns if HTTPS fails. Its own checksums are MD5."""
    urllib.request.install_opener(urllib.request.build_opener(_NoPlainHttp))
    try:
        yield
    finally:
        urllib.request.install_opener(None)  # the default one


def download_archive(root: Path, url: str, sha256: str) -> None:
    """Download an archive, unless it is there, and unpack it."""
    from torchvision.datasets.utils import download_url, extract_archive

    archive = root / url.rpartition("/")[2]
    if not archive.is_file() or _sha256(archive) != sha256:
        archive.unlink(missing_ok=True)  # an interrupted download
        download_url(url, str(root))
    if _sha256(archive) != sha256:
        archive.unlink()
        raise ValueError(f"the checksum of {url} is wrong")
    extract_archive(str(archive), str(root))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
