"""The service on a port of this machine."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from ffcil.errors import InputError
from ffcil.serving.app import create_app
from ffcil.serving.limits import Limits
from ffcil.serving.service import Service

KEEP_ALIVE = 15
"""Seconds that a connection stays open without a request."""
SHORTEST_TOKEN = 16
"""Fewest characters of a token."""


def read_token(path: Path) -> str:
    """The token in a file. Only clients that send it may change the classifier."""
    remedy = f"make one with `openssl rand -hex 16 > {path}`"
    if not path.is_file():
        raise InputError(f"There is no token file {path}: {remedy}.")
    token = path.read_text(encoding="utf-8", errors="replace").strip()
    if len(token) < SHORTEST_TOKEN or not (token.isascii() and token.isprintable()):
        raise InputError(f"The token in {path} is not {SHORTEST_TOKEN} or more printable ASCII characters: {remedy}.")
    return token


def bind(host: str, port: int) -> socket.socket:
    """Reserve a port; 0 chooses a free one."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=1024)
    except (OSError, OverflowError) as error:
        raise InputError(f"Port {port} of {host} cannot be used ({error}): choose another with --port.") from error


def make_server(service: Service, token: str | None = None) -> uvicorn.Server:
    """The server of a service. `run(sockets=[bind(...)])` serves until the process is interrupted."""
    config = uvicorn.Config(
        create_app(service, token),
        http=patient_protocol(service.limits),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=10,
        limit_concurrency=service.limits.connections,
    )
    return uvicorn.Server(config)


def patient_protocol(limits: Limits) -> type[asyncio.Protocol]:
    """HTTP/1.1 of uvicorn with a time limit for the header of a request, which uvicorn itself does not have."""

    class PatientProtocol(H11Protocol):
        _hurry: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE:  # the header is complete
                self._end_wait()
            elif self._hurry is None:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_wait()
            super().connection_lost(exc)

        def _wait(self) -> None:
            self._hurry = self.loop.call_later(limits.header_seconds, self.transport.close)

        def _end_wait(self) -> None:
            if self._hurry is not None:
                self._hurry.cancel()
                self._hurry = None

    return PatientProtocol
