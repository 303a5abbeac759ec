"""gRPC over mutual TLS: the same server, client and errors for chip, Prover and Verifier.

A server knows which roles may call which method and refuses everything that its table does not name. Errors cross the
wire as a gRPC status with a `google.rpc.ErrorInfo` whose reason is the error's code, and arrive as the same
`WeighbridgeError` subclass; `BadRequest`, `RetryInfo`, `QuotaFailure` and `ResourceInfo` say the rest to clients of
other makes. Every call has a deadline, and a share of the server that is its certificate's; see
`weighbridge.rpc.guards`.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import grpc
from google.protobuf import any_pb2, message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from grpc_status import rpc_status

from weighbridge.attest import identity, peers
from weighbridge.core import errors
from weighbridge.core.errors import ChipError, IdentityError, OwnCredentialsError, UsageError, WeighbridgeError
from weighbridge.rpc import known_servers
from weighbridge.rpc.busy import BusyError
from weighbridge.rpc.door import Door
from weighbridge.rpc.guards import CallLimits, Guard, InvalidRequestError, wrap
from weighbridge.rpc.metrics import Counting, Metrics
from weighbridge.rpc.own_credentials import OwnCredentials
from weighbridge.rpc.patience import Patience
from weighbridge.rpc.standing import Standing

T = TypeVar("T")

DOMAIN = "weighbridge"
MAX_MESSAGE_BYTES = 4 << 20
MAX_METADATA_BYTES = 16 << 10
MAX_REQUEST_BYTES = 5 << 18
"""The largest message that a server takes: one MiB of content, and what goes with it."""

MAX_CONNECTIONS, STREAMS_A_CONNECTION = 4096, 128
HANDSHAKE_S, IDLE_CONNECTION_S = 10, 60
"""Seconds in which a connection must be set up, and after which one without calls is closed; clients open another."""

_WINDOW_BYTES = 1 << 18

DEFAULT_DEADLINE_S = 30.0
CHIP = "weighbridge-ueid-bin"
"""Key of the metadata in which a caller names the chip that it wants, where many answer at one address."""

_log = logging.getLogger(__name__)
_OPEN_SERVICES = (health.SERVICE_NAME, reflection.SERVICE_NAME, "grpc.reflection.v1.ServerReflection")
_STATUS: tuple[tuple[type[WeighbridgeError], grpc.StatusCode], ...] = (
    (BusyError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.QuotaError, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.NotFoundError, grpc.StatusCode.NOT_FOUND),
    (errors.UsageError, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.IdentityError, grpc.StatusCode.PERMISSION_DENIED),
    (errors.ChipError, grpc.StatusCode.DATA_LOSS),
    (errors.FormatError, grpc.StatusCode.DATA_LOSS),
    (errors.TranscriptError, grpc.StatusCode.DATA_LOSS),
)
"""Status by error class; any other WeighbridgeError is FAILED_PRECONDITION."""


class RpcError(WeighbridgeError):
    """A peer did not answer a call as agreed, and there is no more specific reason."""

    code = "rpc.failed"


Metadata = Sequence[tuple[str, str | bytes]]

Allow = Mapping[str, Collection[str]]
"""Full method name, e.g. `/weighbridge.v1.ChipService/GetHead`, to the roles that may call it."""


def server(
    credentials: identity.Credentials,
    *,
    allow: Allow,
    address: str = "127.0.0.1:0",
    limits: CallLimits | None = None,
    metrics: Metrics | None = None,
) -> tuple[grpc.Server, str]:
    """Makes a server on a bound port, with health checking and reflection; add servicers to it, then `start()` it.

    End it with `shut_down`.

    Args:
        credentials: Of the process that serves. If they were read from files, the server follows these: a renewed
            certificate and a new list of revoked ones count at once, also for connections that stand.
        allow: Who may call what. Methods that are not in it are refused; its services are reported as serving.
        address: Host and port to listen at; port 0 picks a free one.
        limits: What each caller may do; by default `CallLimits()`.
        metrics: Where calls are counted, if anywhere.

    Returns:
        The server and the address it is bound to, as host:port.

    Raises:
        UsageError: The address cannot be bound.
        IdentityError: The certificate has expired, or there is no list of revoked certificates to rely on.
    """
    own = OwnCredentials(credentials)
    limits = limits or CallLimits()
    door = Door(
        limits,
        roles={role for roles in allow.values() for role in roles},
        apart=_OPEN_SERVICES,
        to_status=to_status,
        refused=metrics.refused if metrics else lambda: None,
    )
    result = grpc.server(
        door,
        interceptors=[
            door.arrivals,
            *([Counting(metrics)] if metrics else []),
            _RoleInterceptor(allow),
            _ErrorInterceptor(),
            Standing(own),
            Guard(limits, _OPEN_SERVICES, door.buckets),
        ],
        options=[
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", MAX_REQUEST_BYTES),
            ("grpc.max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.max_concurrent_streams", STREAMS_A_CONNECTION),
            ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
            ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * 1000),
            ("grpc.max_connection_idle_ms", IDLE_CONNECTION_S * 1000),
            # gRPC would let a client's window grow with the speed of its connection, and hold as much unread.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
        ],
    )
    services = sorted({method.split("/")[1] for method in allow})
    reporter = _Health(experimental_non_blocking=False)  # The other kind has no handlers to wrap.
    for service in (health.OVERALL_HEALTH, *services):
        reporter.set(service, health_pb2.HealthCheckResponse.SERVING)
    health_pb2_grpc.add_HealthServicer_to_server(reporter, result)
    reflection.enable_server_reflection((*services, health.SERVICE_NAME, reflection.SERVICE_NAME), result)
    try:
        port = result.add_secure_port(address, own.server_credentials())
    except RuntimeError as error:
        raise UsageError(f"Cannot listen at {address}; choose a free port of this host.") from error
    return result, f"{address.rpartition(':')[0]}:{port}"


class _Health(health.HealthServicer):  # type: ignore[misc]
    """Health checks, each asked for: a watch would hold a worker for as long as its client likes."""

    def Watch(self, request: Any, context: grpc.ServicerContext, send_response_callback: Any = None) -> Iterator[Any]:  # noqa: N802 (gRPC names the methods)
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "health is not streamed here; call Check again and again")

    def List(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "health is not listed here; call Check with a service's name")


def shut_down(server: grpc.Server, grace_s: float) -> threading.Event:
    """Ends a server: new calls are refused, running ones have `grace_s` seconds to finish.

    Returns:
        What is set when all calls have ended.
    """
    return server.stop(grace_s)


@contextlib.contextmanager
def channel(
    address: str,
    credentials: identity.Credentials,
    server_role: str,
    *,
    unreachable: type[WeighbridgeError] = ChipError,
) -> Iterator[grpc.Channel]:
    """Opens a channel to a server that must prove to have `server_role`; closes it at the end.

    Args:
        address: Host and port. Nothing in it names a way of resolving: `unix:7` is port 7 of a host called unix, and
            not a socket of this machine's.
        credentials: Of the caller. If they were read from files, these are read again if they have changed.
        server_role: One of `peers.ROLES`. TLS fails against any other certificate, before anything is sent.
        unreachable: What to raise if the certificate that is shown there is revoked.

    Raises:
        OwnCredentialsError: The caller's certificate has expired, its files cannot be read any more, or it has no list
            of revoked certificates to rely on.
        WeighbridgeError: As `unreachable`; see `weighbridge.rpc.known_servers`.
    """
    try:
        credentials = credentials.current()
    except WeighbridgeError as error:
        raise OwnCredentialsError(error.message) from error
    secure = grpc.ssl_channel_credentials(
        root_certificates=known_servers.trusted(address, credentials, server_role, unreachable),
        private_key=credentials.key,
        certificate_chain=credentials.certificate,
    )
    options = [
        ("grpc.ssl_target_name_override", peers.role_domain(server_role)),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.enable_http_proxy", 0),
    ]
    with grpc.secure_channel(f"dns:///{address}", secure, options=options) as opened:
        yield opened


def call(
    method: Callable[..., T],
    request: Any,
    *,
    deadline_s: float = DEFAULT_DEADLINE_S,
    unreachable: type[WeighbridgeError] = ChipError,
    metadata: Metadata = (),
) -> T:
    """Makes a unary call. Where the server says that the caller is to wait a while, it does, within the deadline.

    Args:
        method: A method of a generated stub.
        request: Its request message.
        deadline_s: Seconds after which to give up.
        unreachable: What to raise if there is no answer.
        metadata: What to send beside the request.

    Returns:
        The response message.

    Raises:
        WeighbridgeError: The peer's own error, or `unreachable`, or an `RpcError`.
    """
    end = time.monotonic() + deadline_s
    while True:
        try:
            return method(request, timeout=max(0.0, end - time.monotonic()), metadata=metadata)
        except grpc.RpcError as error:
            _wait_if_told(from_rpc_error(error, unreachable), request, end)


def _wait_if_told(error: WeighbridgeError, request: Any, end: float) -> None:
    """Waits as long as a server asks for; raises the error if it is another, or there is no time to call again."""
    again = isinstance(request, message.Message)  # What comes from an iterator cannot be sent twice.
    if not isinstance(error, BusyError) or not again or time.monotonic() + error.retry_s >= end:
        raise error from None
    time.sleep(error.retry_s)


def stream(
    method: Callable[..., Any],
    request: Any,
    *,
    deadline_s: float = DEFAULT_DEADLINE_S,
    unreachable: type[WeighbridgeError] = ChipError,
    metadata: Metadata = (),
    patience: Patience | None = None,
) -> Iterator[Any]:
    """Makes a call whose response is a stream, and yields its messages; otherwise as `call`.

    The deadline is for the whole stream. A consumer that stops early cancels the call. A peer that sends more slowly
    than `patience` allows counts as one that does not answer.
    """
    end, begun = time.monotonic() + deadline_s, False
    while True:
        responses = method(request, timeout=max(0.0, end - time.monotonic()), metadata=metadata)
        try:
            for response in responses if patience is None else patience.each(responses):
                begun = True
                yield response
            return
        except grpc.RpcError as error:
            if patience is not None and patience.over:
                raise unreachable("The service sends too slowly or not at all; check the network to it.") from None
            raised = from_rpc_error(error, unreachable)
            if begun:
                raise raised from None
            _wait_if_told(raised, request, end)
        finally:
            responses.cancel()


def from_rpc_error(error: grpc.RpcError, unreachable: type[WeighbridgeError] = ChipError) -> WeighbridgeError:
    """Turns what gRPC raised into the error that the peer had, or into one that says what happened on the way."""
    status, details = error.code(), (error.details() or "")[:500]
    reason, metadata = _error_info(error)
    if reason is not None:
        return _class_called(metadata.pop("class", ""))(details, code=reason, **metadata)
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        return unreachable(f"No service with the right certificate answers there ({details}); check address and power.")
    if status in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return IdentityError(f"The peer refuses this role ({details}); use credentials of a role that it allows.")
    return RpcError(f"The call failed with {status.name} ({details}); see the peer's log.", status=status.name)


def _error_info(error: grpc.RpcError) -> tuple[str | None, dict[str, str]]:
    """Returns reason and metadata of the peer's ErrorInfo; a malformed one, which a hostile peer may send, is none."""
    try:
        status = rpc_status.from_call(error)
        for detail in status.details if status else ():
            info = error_details_pb2.ErrorInfo()
            if detail.Unpack(info) and info.domain == DOMAIN and _is_code(info.reason):
                known = {key: value for key, value in info.metadata.items() if key not in ("message", "code")}
                return info.reason, known
    except (ValueError, TypeError, message.DecodeError):
        pass
    return None, {}


def _is_code(reason: str) -> bool:
    return 0 < len(reason) <= 100 and reason.replace(".", "").replace("_", "").isalnum() and reason.isascii()


def _class_called(name: str) -> type[WeighbridgeError]:
    return next((each for each in _subclasses(WeighbridgeError) if each.__name__ == name), RpcError)


def _subclasses(cls: type[WeighbridgeError]) -> Iterator[type[WeighbridgeError]]:
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


def to_status(error: WeighbridgeError) -> Any:
    """Returns the gRPC status that carries an error to the client."""
    code = next((code for cls, code in _STATUS if isinstance(error, cls)), grpc.StatusCode.FAILED_PRECONDITION)
    metadata = {key: str(value)[:200] for key, value in list(error.details.items())[:20]}
    metadata["class"] = type(error).__name__
    details = [error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=metadata), *_more(error)]
    packed = [any_pb2.Any() for _ in details]
    for detail, each in zip(packed, details, strict=True):
        detail.Pack(each)
    number: int = code.value[0]
    return rpc_status.to_status(status_pb2.Status(code=number, message=error.message[:500], details=packed))


def _more(error: WeighbridgeError) -> Iterator[message.Message]:
    """Yields the details of google.rpc that say what ErrorInfo says, too, where any client looks for it."""
    if isinstance(error, InvalidRequestError):
        violation = error_details_pb2.BadRequest.FieldViolation
        yield error_details_pb2.BadRequest(
            field_violations=[violation(field=field, description=rule) for field, rule in error.details.items()]
        )
    if isinstance(error, BusyError):
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(int(error.retry_s * 1e9))
        yield retry
    if isinstance(error, errors.QuotaError):
        failure = error_details_pb2.QuotaFailure
        violation = failure.Violation(subject="certificate", description=error.message[:500])
        yield failure(violations=[violation])
    if isinstance(error, errors.NotFoundError):
        kind, name = (str(error.details.get(key, ""))[:200] for key in ("resource", "name"))
        yield error_details_pb2.ResourceInfo(resource_type=kind, resource_name=name, description=error.message[:500])


class _RoleInterceptor(grpc.ServerInterceptor):
    """Answers PERMISSION_DENIED to all but the roles that the table names."""

    def __init__(self, allow: Allow) -> None:
        self._allow = {method: frozenset(roles) for method, roles in allow.items()}

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None:
            return None
        open_to_all = method.split("/")[1] in _OPEN_SERVICES
        allowed = frozenset(peers.ROLES) if open_to_all else self._allow.get(method, frozenset())

        def around(behaviour: Callable[..., Any], request: Any, context: grpc.ServicerContext) -> Any:
            check_role(context, allowed)
            return behaviour(request, context)

        return wrap(handler, around)


def peer_of(context: grpc.ServicerContext) -> peers.Peer:
    """Returns what the caller's certificate says.

    Raises:
        IdentityError: There is none, or it says nothing that a role certificate says.
    """
    certificates: Any = context.auth_context().get("x509_pem_cert", ())
    if len(certificates) != 1:
        raise IdentityError("The peer showed no certificate.")
    return peers.peer(certificates[0])


def check_role(context: grpc.ServicerContext, allowed: Collection[str]) -> None:
    """Ends the call with PERMISSION_DENIED unless the peer's certificate has one of the roles."""
    try:
        peer = peer_of(context)
        if peer.role not in allowed:
            allowed_roles = " or ".join(sorted(allowed)) or "no role"
            raise IdentityError(
                f"The role {peer.role} may not call this; use credentials of {allowed_roles}.",
                code="identity.role",
                role=peer.role,
                name=peer.name,
            )
    except IdentityError as error:
        context.abort_with_status(to_status(error))


class _ErrorInterceptor(grpc.ServerInterceptor):
    """Answers a WeighbridgeError with its status; anything else is a fault of ours and tells the client nothing."""

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method

        def around(behaviour: Callable[..., Any], request: Any, context: grpc.ServicerContext) -> Any:
            if not handler.response_streaming:
                with _mapped(context, method):
                    return behaviour(request, context)
            return pieces(behaviour, request, context)

        def pieces(behaviour: Callable[..., Any], request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
            with _mapped(context, method):
                yield from behaviour(request, context)

        return wrap(handler, around)


@contextlib.contextmanager
def _mapped(context: grpc.ServicerContext, method: str) -> Iterator[None]:
    try:
        yield
    except WeighbridgeError as error:
        context.abort_with_status(to_status(error))
    except grpc.RpcError:
        raise  # The client left in the middle of what it was sending; there is no peer to tell.
    except Exception:
        # abort() itself raises a bare Exception after it has set the code; that one is on its way out already.
        if context.code() is not None:  # type: ignore[attr-defined]
            raise
        _log.exception("internal fault in %s", method)
        context.abort(grpc.StatusCode.INTERNAL, "internal fault; see the server's log")
