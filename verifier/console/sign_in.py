"""Sign-in by role certificate: TLS demands one of the authority, and every request asks whether it still stands.

A browser keeps a connection open for minutes, so what TLS saw when it began is not enough: role, expiry and revocation
are looked at again at each request, as the services do at each call. Nothing is remembered between requests: there are
no cookies and no sessions.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

from starlette.responses import PlainTextResponse

from weighbridge.attest import credential_files, peers
from weighbridge.attest.identity import Credentials
from weighbridge.core.errors import IdentityError, UsageError, WeighbridgeError
from weighbridge.rpc.own_credentials import OwnCredentials

READERS = ("operator", "verifier")
"""Roles that may read: those whose holders may start inspections and fetch reports of this Verifier."""
METHODS = ("GET", "HEAD")
CALLER = "weighbridge.caller"
"""Key of the signed-in `Peer` in a request's scope."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""Content Security Policy of pages: no inline script or style, nothing from another host, in no other site's frame."""
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Door:
    """What the server shows browsers, and what it asks of them."""

    def __init__(self, directory: Path) -> None:
        """Reads the server's own credentials.

        Args:
            directory: Of a role certificate of an operator or Verifier, with the list of revoked certificates.

        Raises:
            IdentityError: They are unreadable or have expired, or the list cannot be relied on.
            UsageError: The certificate is of another role.
        """
        credentials = Credentials.load(directory)
        role, name = peers.peer_role(credentials.certificate)
        if role not in READERS:
            raise UsageError(f"these are the credentials of {role} {name}; the console needs those of a Verifier")
        self._directory, self._own = directory, OwnCredentials(credentials)
        self._lock, self._stamp = threading.Lock(), credentials.stamp
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.verify_mode = ssl.CERT_REQUIRED
        self.context.load_verify_locations(cadata=credentials.authority.decode("ascii"))
        self.context.load_cert_chain(directory / "certificate.pem", directory / "key.pem")

    def admit(self, der: bytes | None) -> peers.Peer:
        """Returns who calls.

        Args:
            der: The certificate that TLS verified when the connection began; None if it saw none.

        Raises:
            IdentityError: There is none, it may not read, has expired or is revoked, or there is no list to tell.
        """
        if not der:
            raise IdentityError("No caller is signed in: this connection has no client certificate.")
        self._renew()
        pem = ssl.DER_cert_to_PEM_cert(der).encode("ascii")
        peer = peers.peer(pem)
        if peer.role not in READERS:
            raise IdentityError(
                f"The certificate of {peer.role} {peer.name} may not read here; sign in as an operator.",
                code="identity.role",
            )
        self._own.admit(pem)
        return peer

    def _renew(self) -> None:
        """Shows a renewed certificate from the next connection on; one that cannot be used is not taken."""
        stamp = credential_files.file_stamp(self._directory)
        with self._lock:
            if stamp == self._stamp:
                return
            self._stamp = stamp
            try:
                Credentials.load(self._directory)
                self.context.load_cert_chain(self._directory / "certificate.pem", self._directory / "key.pem")
            except (WeighbridgeError, ssl.SSLError, OSError) as error:
                _log.error("a changed certificate is not taken: %s", error)


class SignIn:
    """An ASGI application around the console's: nothing gets past it unsigned, and nothing but GET and HEAD."""

    def __init__(self, app: App, door: Door) -> None:
        """Guards an application."""
        self._app, self._door = app, door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or hands it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"the console serves no {scope['type']}")
        send = _with_headers(send)
        try:
            caller = self._door.admit(scope.get("extensions", {}).get("tls", {}).get("client_cert"))
        except IdentityError as error:
            _log.warning("refused: %s", error.message)
            await PlainTextResponse(f"{error.reason}: {error.message}\n", 403)(scope, receive, send)
            return
        if scope["method"] not in METHODS:
            answer = PlainTextResponse("the console only reads: GET and HEAD\n", 405, {"Allow": ", ".join(METHODS)})
            await answer(scope, receive, send)
            return
        _log.info("%s %s reads %s", caller.role, caller.name, scope["path"][:200])
        await self._app({**scope, CALLER: caller}, receive, send)


def _with_headers(send: Send) -> Send:
    """Adds what browsers are told at every answer; an answer's own header stays."""

    async def out(message: Message) -> None:
        if message["type"] == "http.response.start":
            there = {name.lower() for name, _ in message["headers"]}
            more = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
            message["headers"] = [*message["headers"], *(pair for pair in more if pair[0] not in there)]
        await send(message)

    return out
