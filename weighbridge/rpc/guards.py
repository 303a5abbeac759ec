"""What a gRPC server asks of every call that it works on: a valid request, a deadline, no more than its share.

`weighbridge.rpc.endpoints` puts one `Guard` around the methods of each server, inside the check of roles;
`weighbridge.rpc.door` decides before that when a call gets a worker. Who is
meant by "a caller" is a certificate: as many connections as it opens, they share one allowance.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import grpc
import protovalidate
from google.protobuf import message

from weighbridge.core.errors import FormatError, IdentityError, TokenError, UsageError
from weighbridge.rpc.busy import BusyError
from weighbridge.rpc.memory import Held, Memory
from weighbridge.rpc.patience import Patience

MAX_VIOLATIONS = 20
LEAST_MEMORY = 16 << 20
"""Bytes: some messages of the largest size, each of which may take a share of the memory."""

FAULT_COST = 50
"""What a call costs, in calls, that breaks a rule of its form or whose signatures do not verify."""

_SMALL = 4096
_MAX_CALLERS = 4096


class InvalidRequestError(UsageError):
    """A request breaks a rule of its `.proto` file; details: the rule broken, by field."""

    code = "rpc.invalid"


class NoDeadlineError(UsageError):
    """A call has no deadline, or one further away than the server's limit."""

    code = "rpc.deadline"


@dataclass(frozen=True, kw_only=True, slots=True)
class CallLimits:
    """A server's limits.

    Attributes:
        rate_per_s: Calls that one certificate may begin a second, on average; a chip's or Prover's a quarter of them,
            as of `burst` and `calls`.
        burst: Calls that it may begin at once after a rest.
        calls: Calls of one certificate that are served at the same time; others of it wait.
        waiting: Calls of one certificate that may wait.
        streams: Streaming calls that one certificate may have open.
        idle_s: Seconds that a call may wait for its client to send or to read on.
        least_per_s: Bytes a second that a client must send or read, on average over all of a stream's waiting for it
            beyond the first `idle_s`.
        memory: Bytes of requests of all callers that a server may hold at the same time.
        deadline_s: The furthest deadline that a call may have.
    """

    rate_per_s: float = 500.0
    burst: float = 2000.0
    calls: int = 24
    waiting: int = 64
    streams: int = 16
    idle_s: float = 60.0
    least_per_s: float = 1024.0
    memory: int = 256 << 20
    deadline_s: float = 31 * 86400.0

    def __post_init__(self) -> None:
        """Refuses limits that would refuse everything (UsageError)."""
        if not (self.rate_per_s > 0 and min(self.burst, self.streams, self.calls) >= 1 and self.waiting >= 0):
            raise UsageError("a server's limits must admit a call: rate above 0, burst, calls and streams at least 1")
        if not (self.idle_s > 0 and self.deadline_s > 0 and self.least_per_s >= 0):
            raise UsageError("a server's limits of time must be above 0 seconds")
        if self.memory < LEAST_MEMORY:
            raise UsageError(f"a server needs at least {LEAST_MEMORY} bytes of memory for requests")


_FAULTS = (InvalidRequestError, TokenError, IdentityError, FormatError)


def wrap(
    handler: grpc.RpcMethodHandler[Any, Any], around: Callable[..., Any], *, decoded: bool = True
) -> grpc.RpcMethodHandler[Any, Any]:
    """Returns `handler` with its behaviour called through `around(behaviour, request, context)`.

    Args:
        handler: Of a method.
        around: What is called instead of its behaviour.
        decoded: Whether requests are messages; if not, `around` gets their bytes.
    """
    if handler.request_streaming:
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        behaviour = handler.stream_stream or handler.stream_unary
    else:
        make = (
            grpc.unary_stream_rpc_method_handler if handler.response_streaming else grpc.unary_unary_rpc_method_handler
        )
        behaviour = handler.unary_stream or handler.unary_unary

    def wrapped(request: Any, context: grpc.ServicerContext) -> Any:
        return around(behaviour, request, context)

    return make(wrapped, handler.request_deserializer if decoded else None, handler.response_serializer)


def check_request(request: Any) -> None:
    """Checks a request against the rules of its `.proto` file.

    Args:
        request: A message of generated code.

    Raises:
        InvalidRequestError: It breaks some; the details name each field and what it must be.
    """
    # A large request may break a rule half a million times, and finding each takes longer than sending it.
    fail_fast = request.ByteSize() > _SMALL
    violations = protovalidate.collect_violations(request, fail_fast=fail_fast)[:MAX_VIOLATIONS]
    if violations:
        found: dict[str, str] = {}
        for each in violations:
            path = each.proto.field.elements if each.proto.field else []
            found.setdefault(".".join(element.field_name for element in path), each.proto.message)
        said = "; ".join(f"{field} {rule}" for field, rule in found.items())
        raise InvalidRequestError(f"The request breaks the rules of its .proto file: {said}.", **found)


class Buckets:
    """Token buckets, one for each caller: each fills at a rate up to a burst, and a call takes one token."""

    def __init__(self, rate_per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts with full buckets; `clock` returns seconds."""
        self._rate, self._burst, self._clock = rate_per_s, burst, clock
        self._levels: dict[str, tuple[float, float]] = {}
        self._lock = threading.Lock()

    def take(self, caller: str, tokens: float = 1.0) -> float:
        """Takes tokens, and returns 0; or takes none, and returns the seconds until there are so many."""
        now = self._clock()
        with self._lock:
            level, since = self._levels.pop(caller, (self._burst, now))
            level = min(self._burst, level + (now - since) * self._rate)
            wait = 0.0 if level >= tokens else (tokens - level) / self._rate
            self._levels[caller] = (level if wait else level - tokens, now)
            if len(self._levels) > _MAX_CALLERS:  # The one that called longest ago: its bucket is the fullest.
                del self._levels[next(iter(self._levels))]
        return wait

    def charge(self, caller: str, tokens: float) -> None:
        """Takes more tokens for a call that was admitted, down to a debt of one burst."""
        with self._lock:
            if caller in self._levels:
                level, since = self._levels[caller]
                self._levels[caller] = (max(level - tokens, -self._burst), since)


class Guard(grpc.ServerInterceptor):
    """Raises a `WeighbridgeError` out of calls that a server should not serve; see `CallLimits`."""

    def __init__(self, limits: CallLimits, open_services: Collection[str], buckets: Buckets) -> None:
        """Guards the methods of one server.

        Args:
            limits: What each certificate may do.
            open_services: Services that need no deadline, as common tools give none.
            buckets: What calls were paid from; a faulty one costs more.
        """
        self._limits, self._open = limits, frozenset(open_services)
        self._memory, self._buckets = Memory(limits.memory), buckets
        self._streams: dict[str, int] = {}
        self._lock = threading.Lock()

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Wraps the method's handler."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        is_open = handler_call_details.method.split("/")[1] in self._open

        def around(behaviour: Callable[..., Any], request: Any, context: grpc.ServicerContext) -> Any:
            caller = caller_of(context)
            if not is_open:
                self._check_deadline(context)
            if handler.response_streaming:
                return self._sent(behaviour, request, context, caller)
            with self._charged(caller), self._requests(request, context, caller) as requests:
                return behaviour(requests, context)

        return wrap(handler, around)

    @contextmanager
    def _charged(self, caller: str) -> Iterator[None]:
        """Charges what it costs to find out that a caller sends what no honest one does."""
        try:
            yield
        except _FAULTS:
            self._buckets.charge(caller, FAULT_COST)
            raise

    def _check_deadline(self, context: grpc.ServicerContext) -> None:
        left = cast("float | None", context.time_remaining())  # None, whatever the stubs say: there is none.
        if left is None or left > self._limits.deadline_s:
            raise NoDeadlineError(f"A call needs a deadline of at most {self._limits.deadline_s:g} s; give it one.")

    @contextmanager
    def _requests(self, request: Any, context: grpc.ServicerContext, caller: str) -> Iterator[Any]:
        """Yields the request, or an iterator of them, valid and counted as long as the block runs."""
        with self._memory.of_call(caller) as held:
            if isinstance(request, message.Message):
                check_request(request)
                held.take(request.ByteSize())
                yield request
            else:
                with self._stream(caller):
                    yield self._received(request, context, held)

    @contextmanager
    def _stream(self, caller: str) -> Iterator[None]:
        with self._lock:
            if self._streams.get(caller, 0) >= self._limits.streams:
                raise BusyError(
                    f"This certificate has {self._limits.streams} streams open already; end one and call again.",
                    retry_s=1,
                )
            self._streams[caller] = self._streams.get(caller, 0) + 1
        try:
            yield
        finally:
            with self._lock:
                self._streams[caller] -= 1
                if not self._streams[caller]:
                    del self._streams[caller]

    def _received(self, requests: Iterator[Any], context: grpc.ServicerContext, held: Held) -> Iterator[Any]:
        """Yields valid messages, as long as none keeps the call waiting too long; holds one at a time."""
        patience = Patience(self._limits.idle_s, self._limits.least_per_s)
        while True:
            try:
                with patience.waits(context):
                    request = next(requests, None)
            except grpc.RpcError:
                if patience.over:  # gRPC logs no traceback of a call that was aborted
                    context.abort(grpc.StatusCode.CANCELLED, "The call was kept waiting too long.")
                raise
            if request is None:
                return
            check_request(request)
            size = request.ByteSize()
            patience.add(size)
            held.take(size)
            yield request
            held.give_back(size)

    def _sent(
        self, behaviour: Callable[..., Any], request: Any, context: grpc.ServicerContext, caller: str
    ) -> Iterator[Any]:
        """Yields responses, as long as the client takes each in time."""
        patience = Patience(self._limits.idle_s, self._limits.least_per_s)
        one = self._stream(caller) if isinstance(request, message.Message) else nullcontext()
        with (
            self._charged(caller),
            one,
            self._requests(request, context, caller) as requests,
            closing(behaviour(requests, context)) as sent,
        ):
            for response in sent:
                try:
                    with patience.waits(context):
                        yield response
                except grpc.RpcError:
                    return
                patience.add(response.ByteSize())


def caller_of(context: grpc.ServicerContext) -> str:
    """Returns the hex SHA-256 of the caller's certificate: who a caller is, over all its connections."""
    certificates: Any = context.auth_context().get("x509_pem_cert", ())
    return hashlib.sha256(b"".join(certificates)).hexdigest()
