"""Whether a caller's certificate still stands: asked at every call, and at every message of a stream.

TLS looks at a certificate once, when a connection begins, and a connection may stand for weeks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import grpc

from weighbridge.rpc.guards import wrap
from weighbridge.rpc.own_credentials import OwnCredentials


class Standing(grpc.ServerInterceptor):
    """Raises an `IdentityError` out of calls by certificates that have expired or are revoked."""

    def __init__(self, own: OwnCredentials) -> None:
        """Guards the methods of the server that has these credentials."""
        self._own = own

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Wraps the method's handler."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None

        def around(behaviour: Callable[..., Any], request: Any, context: grpc.ServicerContext) -> Any:
            certificates: Any = context.auth_context()["x509_pem_cert"]  # The check of roles saw that there is one.
            pem = certificates[0]
            self._own.admit(pem)
            if handler.request_streaming:
                request = self._each(request, pem)
            if not handler.response_streaming:
                return behaviour(request, context)
            return self._sent(behaviour, request, context, pem)

        return wrap(handler, around)

    def _sent(
        self, behaviour: Callable[..., Any], request: Any, context: grpc.ServicerContext, pem: bytes
    ) -> Iterator[Any]:
        with closing(behaviour(request, context)) as responses:
            yield from self._each(responses, pem)

    def _each(self, messages: Iterator[Any], pem: bytes) -> Iterator[Any]:
        """Yields messages for as long as the caller's certificate stands."""
        for message in messages:
            self._own.admit(pem)
            yield message
