"""`Guard`: limits on the size and the duration of requests, and their metrics. Every request passes through it
first."""

import asyncio
import json
import time
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ffcil.serving.limits import Limits
from ffcil.serving.metrics import Metrics
from ffcil.serving.refusal import Refusal

LEARN = "/learn"


class Guard:
    """An ASGI middleware. It checks the size before a body is read, and again while it is being read."""

    def __init__(self, app: ASGIApp, limits: Limits, metrics: Metrics, paths: Collection[str]) -> None:
        self.app, self.limits, self.metrics, self.paths = app, limits, metrics, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500
        path = scope["path"] if scope["path"] in self.paths else "other"
        learns = path == LEARN
        most = self.limits.learn_bytes if learns else self.limits.bytes
        deadline = time.monotonic() + (self.limits.learn_seconds if learns else self.limits.seconds)
        received, answering = 0, False

        async def limited_receive() -> Message:
            nonlocal received
            try:
                message = await asyncio.wait_for(receive(), None if answering else deadline - time.monotonic())
            except TimeoutError:
                raise Refusal(408, "The request was not sent in time: send fewer images, or try again.") from None
            received += len(message.get("body", b""))
            if received > most:
                raise Refusal(413, _too_large(most))
            return message

        async def counted_send(message: Message) -> None:
            nonlocal status, answering
            if message["type"] == "http.response.start":
                status, answering = message["status"], True
            await send(message)

        try:
            if _length(scope) > most:
                raise Refusal(413, _too_large(most))
            await self.app(scope, limited_receive, counted_send)
        except Refusal as refusal:
            if not answering:
                await _refuse(refusal, counted_send)
        finally:
            self.metrics.request(path, status, time.perf_counter() - start)


def _length(scope: Scope) -> int:
    text = dict(scope["headers"]).get(b"content-length", b"0")
    return int(text) if text.isdigit() else 0


def _too_large(most: int) -> str:
    return f"The request is larger than {most / 2**20:g} MiB: send fewer or smaller images."


async def _refuse(refusal: Refusal, send: Send) -> None:
    """Answer, and close the connection, because the rest of the body is not read."""
    body = json.dumps({"detail": refusal.sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    headers.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
