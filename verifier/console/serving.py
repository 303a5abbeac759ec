"""Runs the console: uvicorn over mutual TLS, in a thread, until the block ends."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from verifier.console.sign_in import App, Door, Receive, Scope, Send, SignIn
from weighbridge.core.errors import UsageError

_START_S = 30.0
_CONNECTIONS = 64
_OF_ONE = 16
"""Connections of one certificate at a time, so that one that may not read keeps no operator out; browsers open six."""
_REQUEST_HEAD = 16 << 10
"""Bytes of a request's line and headers."""


class _Identified(H11Protocol):
    """Hands the certificate of a connection's client to the application, which uvicorn itself does not."""

    app_held: ClassVar[dict[bytes, set[asyncio.Transport]]] = {}

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        secured, app = transport.get_extra_info("ssl_object"), self.app
        der = None if secured is None else secured.getpeercert(binary_form=True)
        held = self.app_held.setdefault(der or b"", set())
        held.add(transport)
        if len(held) > _OF_ONE:
            held.discard(transport)
            transport.abort()  # a proper end waits for the other side

        async def identified(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "extensions": {"tls": {"client_cert": der}}}, receive, send)

        self.app = identified

    def connection_lost(self, exc: Exception | None) -> None:
        for held in self.app_held.values():
            held.discard(self.transport)
        super().connection_lost(exc)


@contextmanager
def served(app: App, door: Door, address: str) -> Iterator[str]:
    """Serves an application to those whom the door admits; yields `host:port`.

    Args:
        app: The pages, which see only requests of signed-in callers.
        door: Own credentials, and who may read.
        address: host:port to listen at; port 0 picks a free one.

    Raises:
        UsageError: Nothing can listen there.
    """
    listening, shown = _listen(address)
    config = uvicorn.Config(
        SignIn(app, door), http=_Identified, ws="none", lifespan="off", loop="asyncio", log_config=None,
        access_log=False, server_header=False, proxy_headers=False, limit_concurrency=_CONNECTIONS,
        h11_max_incomplete_event_size=_REQUEST_HEAD, timeout_graceful_shutdown=5,
        ssl_context_factory=lambda *_: door.context,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listening],), name="console", daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + _START_S
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline:
                raise UsageError(f"the console does not serve at {shown}; its log says why")
            time.sleep(0.02)
        yield shown
    finally:
        server.should_exit = True
        thread.join(_START_S)
        listening.close()


def _listen(address: str) -> tuple[socket.socket, str]:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{address!r} is no address; name host:port, e.g. 127.0.0.1:8443")
    bare = host.strip("[]")
    try:
        family = socket.getaddrinfo(bare or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        listening = socket.create_server((bare, int(port)), family=family, backlog=_CONNECTIONS)
    except OSError as error:
        # `weighbridge up` looks for these words to try another port.
        raise UsageError(f"Cannot listen at {address} ({error.strerror}); choose another address") from None
    return listening, f"{host or '0.0.0.0'}:{listening.getsockname()[1]}"
