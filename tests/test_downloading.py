"""Downloads: HTTPS only, checksums, and archives that are cut off."""

from __future__ import annotations

import hashlib
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import URLError

import pytest
from torchvision import datasets

from ffcil.data.downloading import download_archive, https_only
from ffcil.data.published import PUBLISHED, download_published
from ffcil.errors import InputError


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a server on this machine, with an archive."""
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "served").mkdir()
    with zipfile.ZipFile(tmp_path / "served" / "images.zip", "w") as archive:
        archive.writestr("images/1.txt", "one")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "served"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_plain_http_is_refused(served: str) -> None:
    with urllib.request.urlopen(f"{served}/images.zip") as found:
        assert found.status == 200
    with https_only(), pytest.raises(URLError, match=r"images\.zip is not HTTPS"):
        urllib.request.urlopen(f"{served}/images.zip")
    with urllib.request.urlopen(f"{served}/images.zip") as found:
        assert found.status == 200


def test_torchvision_does_not_return_to_plain_http(
    served: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its downloads try HTTP if HTTPS fails, as it does at this server."""
    monkeypatch.setattr(datasets.Food101, "_URL", f"{served}/images.zip")
    monkeypatch.setattr(datasets.utils, "_get_redirect_url", lambda url, max_hops: url)  # which would fail before
    with pytest.raises(InputError, match=r"food101 could not be downloaded .* is not HTTPS"):
        download_published("food101", tmp_path / "data")
    assert not list((tmp_path / "data").rglob("*.txt"))


def test_the_checksum_of_an_archive_is_verified(served: str, tmp_path: Path) -> None:
    url, root = f"{served}/images.zip", tmp_path / "data"
    right = hashlib.sha256((tmp_path / "served" / "images.zip").read_bytes()).hexdigest()
    root.mkdir()
    with pytest.raises(ValueError, match=r"the checksum of .*images\.zip is wrong"):
        download_archive(root, url, "0" * 64)
    assert not list(root.iterdir())  # the next attempt downloads it again
    (root / "images.zip").write_bytes(b"cut off")
    download_archive(root, url, right)
    assert (root / "images" / "1.txt").read_text() == "one"
    (tmp_path / "served" / "images.zip").unlink()
    download_archive(root, url, right)  # from the file


def test_downloads_are_over_https() -> None:
    arguments = [getattr(published.download, "keywords", {}) for published in PUBLISHED.values()]
    addresses = [given["url"] for given in arguments if "url" in given]
    assert addresses
    assert all(address.startswith("https:") for address in addresses)
