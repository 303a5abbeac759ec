"""What a gRPC server asks of every call before it works on it: a valid request, a deadline, no more than its share.

`weighbridge.rpc.endpoints` puts one `Guard` around the methods of each server, inside the check of roles. Who is
meant by "a caller" is a certificate: as many connections as it opens, they share one allowance.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import grpc
import protovalidate

from weighbridge.core.errors import UsageError, WeighbridgeError

MAX_VIOLATIONS = 20
_MAX_CALLERS = 4096


class InvalidRequestError(UsageError):
    """A request breaks a rule of its `.proto` file; details: the rule broken, by field."""

    code = "rpc.invalid"


class NoDeadlineError(UsageError):
    """A call has no deadline, or one further away than the server's limit."""

    code = "rpc.deadline"


class BusyError(WeighbridgeError):
    """A caller has used up its share for now; details: `retry_s`, the seconds after which to try again."""

    code = "rpc.busy"

    @property
    def retry_s(self) -> float:
        """Seconds to wait; a peer's nonsense reads as one."""
        try:
            return min(max(float(self.details.get("retry_s", 1)), 0.0), 3600.0)
        except ValueError:
            return 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class CallLimits:
    """A server's limits.

    Attributes:
        rate_per_s: Calls that one certificate may begin a second, on average.
        burst: Calls that it may begin at once after a rest.
        streams: Streaming calls that one certificate may have open.
        idle_s: Seconds that a stream may wait for its client to send or to read on.
        deadline_s: The furthest deadline that a call may have.
    """

    rate_per_s: float = 500.0
    burst: float = 2000.0
    streams: int = 16
    idle_s: float = 60.0
    deadline_s: float = 31 * 86400.0

    def __post_init__(self) -> None:
        """Refuses limits that would refuse everything (UsageError)."""
        if not (self.rate_per_s > 0 and self.burst >= 1 and self.streams >= 1):
            raise UsageError("a server's limits must admit a call: rate above 0, burst and streams at least 1")
        if not (self.idle_s > 0 and self.deadline_s > 0):
            raise UsageError("a server's limits of time must be above 0 seconds")


def wrap(handler: grpc.RpcMethodHandler[Any, Any], around: Callable[..., Any]) -> grpc.RpcMethodHandler[Any, Any]:
    """Returns `handler` with its behaviour called through `around(behaviour, request, context)`."""
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

    return make(wrapped, handler.request_deserializer, handler.response_serializer)


def check_request(request: Any) -> None:
    """Checks a request against the rules of its `.proto` file.

    Args:
        request: A message of generated code.

    Raises:
        InvalidRequestError: It breaks some; the details name each field and what it must be.
    """
    violations = protovalidate.collect_violations(request)[:MAX_VIOLATIONS]
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

    def take(self, caller: str) -> float:
        """Takes a token, and returns 0; or takes none, and returns the seconds until there is one."""
        now = self._clock()
        with self._lock:
            level, since = self._levels.pop(caller, (self._burst, now))
            level = min(self._burst, level + (now - since) * self._rate)
            wait = 0.0 if level >= 1 else (1 - level) / self._rate
            self._levels[caller] = (level - 1 if level >= 1 else level, now)
            if len(self._levels) > _MAX_CALLERS:  # The one that called longest ago: its bucket is the fullest.
                del self._levels[next(iter(self._levels))]
        return wait


class Watchdog:
    """Cancels calls that wait for their client too long; one thread for all calls of a process."""

    def __init__(self) -> None:
        """The thread starts with the first call."""
        self._due: dict[int, tuple[float, grpc.ServicerContext]] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, context: grpc.ServicerContext, seconds: float) -> Iterator[None]:
        """Cancels the call unless the block ends within so many seconds; raises grpc.RpcError if it ends after that.

        The iterator of a cancelled call's requests may just end, as if the client had sent all that it had to say.
        """
        place = object()  # A call may wait twice at once: for what it reads and for what it writes.
        with self._changed:
            self._due[id(place)] = (time.monotonic() + seconds, context)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rpc watchdog", daemon=True)
                self._thread.start()
            if len(self._due) == 1:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                late = self._due.pop(id(place), None) is None
        if late:
            raise grpc.RpcError

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due:
                    self._changed.wait()
                now = time.monotonic()
                late = [(key, context) for key, (due, context) in self._due.items() if due <= now]
                for key, _ in late:
                    del self._due[key]
            for _, context in late:
                context.cancel()
            time.sleep(0.1)


_WATCHDOG = Watchdog()


class Guard(grpc.ServerInterceptor):
    """Raises a `WeighbridgeError` out of calls that a server should not serve; see `CallLimits`."""

    def __init__(self, limits: CallLimits, open_services: Collection[str]) -> None:
        """Guards the methods of one server; those of `open_services` need no deadline, as common tools give none."""
        self._limits, self._open = limits, frozenset(open_services)
        self._buckets = Buckets(limits.rate_per_s, limits.burst)
        self._streams: dict[str, int] = {}
        self._lock = threading.Lock()

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        """Wraps the method's handler."""
        handler = continuation(handler_call_details)
        if handler is None:
            return None
        is_open = handler_call_details.method.split("/")[1] in self._open

        def around(behaviour: Callable[..., Any], request: Any, context: grpc.ServicerContext) -> Any:
            caller = self._admit(context, is_open)
            if handler.request_streaming:
                request = self._received(request, context)
            else:
                check_request(request)
            if handler.response_streaming:
                return self._sent(behaviour(request, context), context, caller)
            if not handler.request_streaming:
                return behaviour(request, context)
            with self._stream(caller):
                return behaviour(request, context)

        return wrap(handler, around)

    def _admit(self, context: grpc.ServicerContext, is_open: bool) -> str:
        certificates: Any = context.auth_context().get("x509_pem_cert", ())
        caller = hashlib.sha256(b"".join(certificates)).hexdigest()
        wait = self._buckets.take(caller)
        if wait:
            raise BusyError(
                f"This certificate calls more than {self._limits.rate_per_s:g} times a second; "
                f"wait {wait:.3g} s and call again.",
                retry_s=round(wait, 6),
            )
        left = cast("float | None", context.time_remaining())  # None, whatever the stubs say: there is none.
        if not is_open and (left is None or left > self._limits.deadline_s):
            raise NoDeadlineError(f"A call needs a deadline of at most {self._limits.deadline_s:g} s; give it one.")
        return caller

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

    def _received(self, requests: Iterator[Any], context: grpc.ServicerContext) -> Iterator[Any]:
        """Yields valid messages, as long as none keeps the call waiting too long."""
        while True:
            with _WATCHDOG.watch(context, self._limits.idle_s):
                request = next(requests, None)
            if request is None:
                return
            check_request(request)
            yield request

    def _sent(self, responses: Generator[Any, None, None], context: grpc.ServicerContext, caller: str) -> Iterator[Any]:
        """Yields responses, as long as the client takes each in time."""
        with self._stream(caller), closing(responses):
            for response in responses:
                try:
                    with _WATCHDOG.watch(context, self._limits.idle_s):
                        yield response
                except grpc.RpcError:
                    return
