"""The service over HTTP: answers, changes in the background, and requests that it refuses."""

from __future__ import annotations

import asyncio
import io
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

from ffcil.classifier.classifier import Classifier
from ffcil.classifier.versions import FOLDER, MODEL, Versions
from ffcil.cli import app
from ffcil.errors import InputError
from ffcil.locks import lock
from ffcil.models.pretrained import glyph_vit_weights
from ffcil.runs.folder import LOCK, locked
from served import NAMES, save_classifier, write_photos, write_table

for _module in ("fastapi", "uvicorn", "python_multipart"):
    pytest.importorskip(_module)
httpx = pytest.importorskip("httpx")

from ffcil.serving.batcher import AT_ONCE, Batcher  # noqa: E402
from ffcil.serving.change import UPLOADS  # noqa: E402
from ffcil.serving.limits import Limits  # noqa: E402
from ffcil.serving.refusal import Refusal  # noqa: E402
from ffcil.serving.server import bind, make_server, read_token  # noqa: E402
from ffcil.serving.service import Service  # noqa: E402

TOKEN = "a token of the tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LIMITS = Limits(
    bytes=300_000, images=4, learn_bytes=600_000, learn_images=50, pixels=1_000_000, seconds=20.0, header_seconds=1.0
)


@contextmanager
def serving(
    folder: Path, token: str | None = TOKEN, limits: Limits = LIMITS, assignments: Sequence[str] = ()
) -> Iterator[str]:
    """A service on a free port. Yields its address."""
    reserved = bind("127.0.0.1", 0)
    server = make_server(Service(folder, "cpu", limits=limits, assignments=assignments), token)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [reserved]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{reserved.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        reserved.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "model"
    save_classifier(folder)
    return folder


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    """A classifier that a test may change."""
    return shutil.copytree(saved, tmp_path / "model")


@pytest.fixture(scope="module")
def address(saved: Path) -> Iterator[str]:
    """A service for tests that change nothing."""
    with serving(saved) as address:
        yield address


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three photos of each of the four known classes, and of one that is not known."""
    return write_photos(tmp_path_factory.mktemp("photos"), classes=5)


def files(photos: list[Path], field: str = "images") -> list[Any]:
    return [(field, (photo.name, photo.read_bytes())) for photo in photos]


def finished(address: str) -> dict[str, Any]:
    """The latest change, when it is done."""
    for _ in range(600):
        change: dict[str, Any] = httpx.get(f"{address}/health").json()["change"]
        if change["state"] != "running":
            return change
        time.sleep(0.1)
    raise AssertionError("the change does not end")


# --- answers --------------------------------------------------------------------------------------------------------


def test_answers_are_those_of_the_classifier(address: str, saved: Path, photos: list[Path]) -> None:
    some = photos[::4]
    told = httpx.post(f"{address}/predict", files=files(some), params={"top": 2}).json()
    assert told["version"] == 2
    expected = Classifier.load(saved, "cpu").answer(some, 2)
    for answer, photo, right in zip(told["answers"], some, expected, strict=True):
        assert right is not None
        assert answer["image"] == photo.name
        assert [guess["name"] for guess in answer["guesses"]] == [guess.name for guess in right.guesses]
        for guess, expected_guess in zip(answer["guesses"], right.guesses, strict=True):
            assert guess["score"] == pytest.approx(expected_guess.score, abs=1e-5)
        assert answer["novelty"] == pytest.approx(right.novelty, rel=1e-3)
        assert answer["unknown"] == right.unknown
    assert {answer["unknown"] for answer in told["answers"]} == {True, False}


def test_one_image_can_be_the_whole_request(address: str, photos: list[Path]) -> None:
    raw = httpx.post(f"{address}/predict", content=photos[0].read_bytes(), headers={"content-type": "image/png"})
    form = httpx.post(f"{address}/predict", files=files(photos[:1]))
    assert raw.json()["answers"][0]["guesses"] == form.json()["answers"][0]["guesses"]
    assert len(raw.json()["answers"][0]["guesses"]) == 3


def test_a_method_that_knows_no_novelty_does_not_say_unknown(tmp_path: Path, photos: list[Path]) -> None:
    save_classifier(tmp_path / "model", "simplecil")
    with serving(tmp_path / "model") as address:
        (answer,) = httpx.post(f"{address}/predict", files=files(photos[:1])).json()["answers"]
    assert (answer["unknown"], answer["novelty"]) == (None, None)
    assert answer["guesses"][0]["name"] in NAMES


def test_classes_history_and_health(address: str, saved: Path) -> None:
    assert httpx.get(f"{address}/classes").json() == {"version": 2, "classes": list(NAMES)}
    history = httpx.get(f"{address}/history").json()
    assert history["versions"] == [1, 2]
    assert history["changes"] == Classifier.load(saved, "cpu").history()
    health = httpx.get(f"{address}/health").json()
    assert (health["status"], health["version"], health["classes"]) == ("ok", 2, 4)
    assert (health["teachable"], health["change"], health["model"]) == (True, None, "model")


def test_metrics_count_requests_images_and_the_version(saved: Path, photos: list[Path]) -> None:
    with serving(saved) as address, httpx.Client(base_url=address) as client:
        client.post("/predict", files=files(photos[:3]))
        client.post("/predict", content=b"no image", headers={"content-type": "image/png"})
        client.get("/made/up/by/a/client")
        text = client.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert values['ffcil_requests_total{path="/predict",status="200"}'] == "1"
    assert values['ffcil_requests_total{path="/predict",status="415"}'] == "1"
    assert values['ffcil_requests_total{path="other",status="404"}'] == "1"
    assert (values["ffcil_images_total"], values["ffcil_model_version"], values["ffcil_classes"]) == ("3", "2", "4")
    assert values['ffcil_request_seconds_bucket{path="/predict",le="+Inf"}'] == "2"
    assert values['ffcil_request_seconds_count{path="/predict"}'] == "2"
    buckets = [int(value) for name, value in values.items() if name.startswith('ffcil_request_seconds_bucket{path="/p')]
    assert buckets == sorted(buckets)
    assert "made" not in text


def test_the_description_of_the_api(address: str) -> None:
    paths = httpx.get(f"{address}/openapi.json").json()["paths"]
    assert set(paths) == {"/predict", "/classes", "/history", "/learn", "/undo", "/health", "/metrics"}
    assert "multipart/form-data" in paths["/predict"]["post"]["requestBody"]["content"]
    for path in ("/", "/docs"):
        page = httpx.get(f"{address}{path}")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert not re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", page.text)  # nothing comes from elsewhere


def test_clients_at_the_same_time_are_answered_together() -> None:
    """While the first call runs, all others wait; then as many of them as fit are answered by one call."""
    sizes: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    def answer(images: Any) -> list[Any]:
        sizes.append(len(images))
        begun.set()
        go_on.wait(10)
        return list(images)

    async def clients() -> list[Any]:
        batcher = Batcher[Any](answer, 200)
        tasks = [asyncio.create_task(batcher.submit([k])) for k in range(1)]  # type: ignore[list-item]
        await asyncio.to_thread(begun.wait, 10)
        tasks += [asyncio.create_task(batcher.submit([k, -k])) for k in range(1, 51)]  # type: ignore[list-item]
        await asyncio.sleep(0)
        assert len(batcher) == 100
        with pytest.raises(Refusal, match="Too many images wait"):
            await batcher.submit([0] * 101)  # type: ignore[list-item]
        tasks[7].cancel()  # a client that is gone costs nothing
        go_on.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        batcher.close()
        return results

    results = asyncio.run(clients())
    assert sizes == [1, AT_ONCE, 98 - AT_ONCE]
    assert [result for k, result in enumerate(results) if k != 7] == [[0], *([k, -k] for k in range(1, 51) if k != 7)]


# --- changes --------------------------------------------------------------------------------------------------------


def test_learning_in_the_background_and_undo(
    model: Path, photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Learning by the service equals learning from the files, the old version answers meanwhile, and nothing of the
    images stays but what the classifier keeps."""
    monkeypatch.setenv("FFCIL_CACHE", str(tmp_path / "cache"))  # other tests add to the usual one at the same time
    name, eels = "eel / élève", photos[12:]
    direct = Classifier.load(model, "cpu")
    direct.learn(write_table(tmp_path / "eels", eels, name))
    cached = set(Path(os.environ["FFCIL_CACHE"]).iterdir())
    with serving(model) as address:
        client = httpx.Client(base_url=address, timeout=30)
        begun = client.post("/learn", files=files(eels, name), headers=BEARER)
        assert begun.status_code == 202
        assert (begun.json()["state"], begun.json()["images"]) == ("running", {name: 3})
        assert client.post("/predict", files=files(photos[:1])).json()["version"] == 2
        assert client.post("/learn", files=files(eels, name), headers=BEARER).status_code == 409
        assert client.post("/undo", headers=BEARER).status_code == 409
        change = finished(address)
        assert (change["state"], change["version"], change["note"]) == ("done", 3, "")
        assert client.get("/classes").json() == {"version": 3, "classes": [*NAMES, name]}
        told = client.post("/predict", files=files(eels), params={"top": 5}).json()["answers"]
        for answer, expected in zip(told, direct.predict(eels, 5), strict=True):
            assert answer["guesses"] == [pytest.approx(vars(guess)) for guess in expected]

        assert client.post("/undo", headers=BEARER).json()["kind"] == "undo"
        assert finished(address)["version"] == 2
        assert client.get("/classes").json()["classes"] == list(NAMES)
        assert client.get("/history").json()["versions"] == [1, 2, 3]
        client.post("/undo", params={"to": 3}, headers=BEARER)
        assert finished(address)["version"] == 3
        missing = client.post("/undo", params={"to": 9}, headers=BEARER)
        assert missing.status_code == 409
        assert "model has no version 9: choose one of those that are kept (1, 2, 3)" in missing.json()["detail"]
        client.close()
    assert {path.name for path in model.iterdir()} == {MODEL, FOLDER, LOCK}
    assert set(Path(os.environ["FFCIL_CACHE"]).iterdir()) == cached


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (
            'echo progress >&2; echo "ffcil: $4 has no classes: add some." >&2; exit 2',
            "model has no classes: add some.",
        ),
        ("kill -9 $$", "ended with status -9"),
        ("exit 0", "learned before"),
    ],
)
def test_learning_that_changes_nothing(
    model: Path, photos: list[Path], tmp_path: Path, script: str, sentence: str
) -> None:
    (program := tmp_path / "python").write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, serving(model) as address:
        patch.setattr("ffcil.serving.change.sys.executable", str(program))
        httpx.post(f"{address}/learn", files=files(photos[:2], "ant"), headers=BEARER)
        change = finished(address)
        assert change["state"] == ("done" if "exit 0" in script else "failed")
        assert sentence in change["note"]
        assert str(tmp_path) not in change["note"]
        assert httpx.get(f"{address}/health").json()["version"] == 2
        assert httpx.post(f"{address}/predict", files=files(photos[:1])).status_code == 200


def test_a_process_that_is_killed_after_it_has_saved_has_learned(
    model: Path, photos: list[Path], tmp_path: Path
) -> None:
    prepared = shutil.copytree(model, tmp_path / "prepared")
    later = Classifier.load(prepared, "cpu")
    later.rename("dog", "hound")
    later.save(prepared)
    (program := tmp_path / "python").write_text(
        f"#!/bin/sh\ncp {prepared}/{MODEL} {model}/draft\nmv {model}/draft {model}/{MODEL}\nkill -9 $$\n"
    )
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, serving(model) as address:
        patch.setattr("ffcil.serving.change.sys.executable", str(program))
        httpx.post(f"{address}/learn", files=files(photos[:2], "ant"), headers=BEARER)
        change = finished(address)
        assert (change["state"], change["version"]) == ("done", 3)
        assert httpx.get(f"{address}/classes").json()["classes"] == [*NAMES[:3], "hound"]


def test_weights_that_have_moved_are_given_to_the_service_and_to_the_process_that_learns(
    photos: list[Path], tmp_path: Path
) -> None:
    weights = Path(shutil.copy(glyph_vit_weights(), tmp_path / "weights.safetensors"))
    save_classifier(tmp_path / "model", weights=str(weights))
    moved = weights.rename(tmp_path / "moved.safetensors")
    with pytest.raises(InputError, match="no weights file"):
        Service(tmp_path / "model", "cpu")
    with serving(tmp_path / "model", assignments=[f"weights={moved}"]) as address:
        httpx.post(f"{address}/learn", files=files(photos[12:], "eel"), headers=BEARER)
        assert finished(address)["state"] == "done"
        assert httpx.get(f"{address}/classes").json()["classes"] == [*NAMES, "eel"]


def test_a_service_that_ends_stops_the_process_that_learns(model: Path, photos: list[Path], tmp_path: Path) -> None:
    (program := tmp_path / "python").write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 100\n")
    program.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch, serving(model) as address:
        patch.setattr("ffcil.serving.change.sys.executable", str(program))
        httpx.post(f"{address}/learn", files=files(photos[:2], "ant"), headers=BEARER)
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_images_that_a_killed_service_has_left_are_removed(model: Path) -> None:
    """But not those of another service that learns now, nor any while a process may still read them."""
    killed, running = model / f"{UPLOADS}killed", model / f"{UPLOADS}running"
    for folder in (killed, running):
        folder.mkdir()
        (folder / "000000.png").write_bytes(b"an image")
    (killed / LOCK).touch()
    with lock(running / LOCK):
        with locked(model), serving(model):
            pass
        assert killed.exists()
        with serving(model):
            pass
        assert not killed.exists()
        assert running.exists()


def test_the_service_follows_other_commands_and_survives_a_broken_version(model: Path, photos: list[Path]) -> None:
    def wait_for(what: str, value: Any) -> None:
        for _ in range(200):
            if httpx.get(f"{address}/health").json()[what] == value:
                return
            time.sleep(0.05)
        raise AssertionError(f"{what} does not become {value}")

    with serving(model) as address:
        other = Classifier.load(model, "cpu")
        other.forget(["dog"])
        other.save(model)
        wait_for("version", 3)
        assert httpx.get(f"{address}/classes").json()["classes"] == list(NAMES[:3])
        whole = (model / MODEL).read_bytes()
        (draft := model / "draft").write_bytes(whole[:1000])
        draft.replace(model / MODEL)
        wait_for("status", "degraded")
        assert httpx.post(f"{address}/predict", files=files(photos[:1])).json()["version"] == 3
        (model / MODEL).write_bytes(whole)
        wait_for("status", "ok")


@pytest.mark.parametrize("token", [None, TOKEN])
def test_only_who_knows_the_token_may_change_the_classifier(model: Path, photos: list[Path], token: str | None) -> None:
    with serving(model, token) as address:
        for path in ("/learn", "/undo"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {TOKEN}"}):
                refused = httpx.post(f"{address}{path}", files=files(photos[:1], "eel"), headers=headers)
                assert refused.status_code == (401 if token else 403)
                assert ("Authorization: Bearer" if token else "--token-file") in refused.json()["detail"]
        if token is None:
            assert httpx.post(f"{address}/undo", headers=BEARER).status_code == 403
        assert httpx.get(f"{address}/health").json()["teachable"] == (token is not None)
    assert Classifier.load(model, "cpu").version == 2


# --- hostile requests -----------------------------------------------------------------------------------------------


def png_of(width: int, height: int) -> bytes:
    """A PNG that claims a size and compresses to almost nothing."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    lines = zlib.compress(bytes(min(height * (1 + 3 * width), 50_000_000)), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", lines) + chunk(b"IEND", b"")


def encoded(kind: str, **options: Any) -> bytes:
    Image.new("RGB", (40, 40), "red").save(content := io.BytesIO(), kind, **options)
    return content.getvalue()


HOSTILE = {
    "a bomb": (png_of(30_000, 30_000), 413, "more than 1,000,000 pixels"),
    "a bomb beyond Pillow's own limit": (png_of(1_000_000, 1_000_000), 413, "more than 1,000,000 pixels"),
    "text": (b"<html>" * 100, 415, "is not an image"),
    "nothing": (b"", 415, "is not an image"),
    "EPS, for which Pillow starts a program": (encoded("EPS"), 415, "is not an image"),
    "a pickle": (b"\x80\x04\x95\x0a\x00\x00\x00\x00\x00\x00\x00\x8c\x06posix.", 415, "is not an image"),
    "SVG": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', 415, "is not an image"),
    "half a JPEG": (encoded("JPEG", quality=95)[:500], 422, "cannot be read"),
    "a PNG with a wrong checksum": (encoded("PNG")[:-20] + bytes(20), 422, "cannot be read"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_images_are_refused(address: str, photos: list[Path], case: str) -> None:
    content, status, sentence = HOSTILE[case]
    sent = [*files(photos[:1]), ("images", ("../../etc/evil.png", content))]
    start = time.monotonic()
    refused = httpx.post(f"{address}/predict", files=sent)
    assert refused.status_code == status
    assert sentence in refused.json()["detail"]
    assert "Traceback" not in refused.text
    assert time.monotonic() - start < 5
    assert httpx.post(f"{address}/predict", files=files(photos[:1])).status_code == 200


@pytest.mark.parametrize("name", ["", "   ", "a\nb", "x" * 101, "\u202eevil"])
def test_names_that_no_class_may_have(address: str, photos: list[Path], name: str) -> None:
    boundary, crlf = "frontier", b"\r\n"
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="a.png"\r\n'.encode()
    body = head + b"Content-Type: image/png\r\n\r\n" + photos[0].read_bytes() + crlf + f"--{boundary}--\r\n".encode()
    kind = {"content-type": f"multipart/form-data; boundary={boundary}"}
    refused = httpx.post(f"{address}/learn", content=body, headers={**BEARER, **kind})
    assert refused.status_code in (400, 422)
    assert httpx.get(f"{address}/health").json()["change"] is None


def test_requests_that_are_wrong_are_refused_with_a_sentence(address: str, photos: list[Path]) -> None:
    def refused(status: int, sentence: str, path: str = "/predict", **request: Any) -> None:
        response = httpx.post(f"{address}{path}", **request)
        assert (response.status_code, sentence in response.json()["detail"]) == (status, True), response.text

    refused(413, "more than 4 images", files=files(photos[:5]))
    refused(415, "send an image, or a form with files", json={"image": "what.jpg"})
    refused(415, "send an image, or a form with files", data={"images": "text"})
    refused(400, "send each image as a file", data={"images": "text"}, files=files(photos[:1]))
    refused(400, "send each image as a file", content=b"nonsense", headers={"content-type": "multipart/form-data"})
    refused(400, "no image", content=b"", headers={"content-type": "image/png"})
    refused(422, "less than or equal to 10", files=files(photos[:1]), params={"top": 11})
    refused(422, "Bad value for top: Input should be a valid integer", files=files(photos[:1]), params={"top": "many"})
    refused(422, "greater than or equal to 1", "/undo", params={"to": 0}, headers=BEARER)
    got, absent = httpx.get(f"{address}/predict"), httpx.get(f"{address}/../../etc/passwd")
    assert (got.status_code, got.json()["detail"]) == (405, "GET is not possible here: use POST.")
    assert (absent.status_code, absent.json()["detail"][:21]) == (404, "There is no such path")


class Slow:
    """A client that writes bytes as it likes, and measures how long the server bears it."""

    def __init__(self, address: str) -> None:
        host, port = address.removeprefix("http://").split(":")
        self.socket = socket.create_connection((host, int(port)), timeout=15)

    def send(self, *parts: bytes, pause: float = 0.0) -> tuple[bytes, float]:
        """Send parts with pauses. Returns what came back, and after how many seconds the server closed."""
        start, answer = time.monotonic(), b""
        with suppress(ConnectionError):  # the server may close before it has read everything
            for part in parts:
                self.socket.sendall(part)
                time.sleep(pause)
            while some := self.socket.recv(65536):
                answer += some
        self.socket.close()
        return answer, time.monotonic() - start


def head(length: int | None, path: str = "/predict") -> bytes:
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n{size}\r\n\r\n".encode()


def test_large_requests_are_refused_before_they_are_read(address: str) -> None:
    for length in (10**9, 10**15):
        answer, _ = Slow(address).send(head(length))  # not one byte of the body
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"larger than" in answer


def test_a_request_that_hides_its_size_is_refused_as_soon_as_it_is_too_large(address: str) -> None:
    chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
    answer, _ = Slow(address).send(head(None), *[chunk] * 6)
    assert answer.startswith(b"HTTP/1.1 413")


def test_clients_that_send_slowly_are_cut_off(saved: Path, photos: list[Path]) -> None:
    limits = Limits(seconds=1.0, header_seconds=0.5)
    with serving(saved, limits=limits) as address:
        answer, seconds = Slow(address).send()  # connects and says nothing
        assert (answer, seconds < 10) == (b"", True)
        answer, seconds = Slow(address).send(*[b"P", b"O", b"S"] * 20, pause=0.1)  # never ends its header
        assert not answer.startswith(b"HTTP/1.1 2")
        assert seconds < 10
        answer, seconds = Slow(address).send(head(1000), b"x" * 10)  # never ends its body
        assert answer.startswith(b"HTTP/1.1 408")
        assert seconds < 10
        assert httpx.post(f"{address}/predict", files=files(photos[:1])).status_code == 200


def test_idle_connections_are_kept_after_a_request(saved: Path, photos: list[Path]) -> None:
    """The limit on headers is not one on the time between two requests."""
    with serving(saved, limits=Limits(header_seconds=0.3)) as address, httpx.Client(base_url=address) as client:
        for _ in range(2):
            assert client.post("/predict", files=files(photos[:1])).status_code == 200
            time.sleep(0.6)


def test_an_answer_that_takes_too_long_is_given_up(saved: Path, photos: list[Path], monkeypatch: Any) -> None:
    monkeypatch.setattr(Service, "_answer", lambda self, images: time.sleep(1.5))
    with serving(saved, limits=Limits(seconds=0.5)) as address:
        refused = httpx.post(f"{address}/predict", files=files(photos[:1]))
        assert refused.status_code == 504
        assert "took too long" in refused.json()["detail"]


# --- starting -------------------------------------------------------------------------------------------------------


def test_the_command_refuses_what_cannot_be_served(saved: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def sentence(*arguments: str) -> str:
        result = CliRunner().invoke(app, ["serve", *arguments, "--device", "cpu"])
        assert isinstance(result.exception, InputError)
        return str(result.exception)

    assert "There is no classifier in" in sentence(str(tmp_path), "--port", "0")
    assert "no token file" in sentence(str(saved), "--token-file", str(tmp_path / "token"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "choose another with --port" in sentence(str(saved), "--port", str(taken.getsockname()[1]))
    assert "Cannot read --false-alarms 'few'" in sentence(str(saved), "--port", "0", "--false-alarms", "few")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "needs the package fastapi: pip install 'ffcil[serve]'" in sentence(str(saved))


def test_undo_goes_to_the_version_that_the_current_one_was_made_from(model: Path) -> None:
    """After an undo and another change, the undone version is not the one before."""
    other = Classifier.load(model, "cpu")
    other.rename("dog", "hound")
    other.save(model)
    Versions(model).switch(2)
    again = Classifier.load(model, "cpu")
    again.rename("dog", "puppy")
    again.save(model)
    with serving(model) as address:
        assert httpx.get(f"{address}/history").json()["versions"] == [1, 2, 3, 4]
        httpx.post(f"{address}/undo", headers=BEARER)
        assert finished(address)["version"] == 2
        httpx.post(f"{address}/undo", headers=BEARER)
        assert finished(address)["version"] == 1
        assert httpx.post(f"{address}/undo", headers=BEARER).status_code == 409


def test_tokens_are_long_enough(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"  {TOKEN}\n")
    assert read_token(path) == TOKEN
    for bad in ("", "short", "ä" * 20, "line one of two\nline two of two"):
        path.write_text(bad)
        with pytest.raises(InputError, match="openssl rand -hex 16"):
            read_token(path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_that_is_asked_to_end_has_not_failed(saved: Path, number: signal.Signals) -> None:
    """systemd and Docker report any other status as a failure."""
    command = [sys.executable, "-m", "ffcil", "serve", str(saved), "--port", "0", "--device", "cpu"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = re.search(r"http://\S+:\d+", process.stdout.readline())
        assert address
        with httpx.Client(transport=httpx.HTTPTransport(retries=10), timeout=60) as client:
            assert client.get(f"{address[0]}/health").status_code == 200
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert errors == f"ffcil: the service of {saved} has ended.\n"
