"""Where calls wait for a worker: each role has workers of its own, and each certificate a share of them.

gRPC for Python gives a server one pool of threads and one queue for all callers, and takes a thread before a call's
message has come. A `Door` takes the pool's place. As soon as a call begins, and before anything of it is read, it looks
at the certificate: a call beyond the share of its certificate waits in that certificate's own queue, and one beyond the
queue, or beyond the rate, is refused at once, without a thread. So whatever one role does, the others have workers, and
within a role certificates take turns.

The executor that `grpc.server` is given sees what `grpc._server` submits: the call's event, its state and the method's
behaviour. `tests/weighbridge/rpc/test_door.py` holds that with the installed version.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf import message
from grpc import _server as internals
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from weighbridge.attest import peers
from weighbridge.core.errors import IdentityError, WeighbridgeError
from weighbridge.core.turns import Turns
from weighbridge.rpc.busy import BusyError
from weighbridge.rpc.guards import Buckets, CallLimits, caller_of, wrap
from weighbridge.rpc.patience import WATCHDOG

WORKERS = 96
"""Calls of one role that are served at the same time, streams included."""

WORKERS_APART, CALLS_APART = 8, 2
"""Health checks and reflection have a few workers of their own, whatever the caller's role, and each caller fewer."""

INSPECTED, PART = ("chip", "prover"), 4
"""Those who are inspected have a quarter of the calls, and of the rate, that Verifiers and operators have."""

_NO_ROLE = ""
_LARGE = 1 << 14
_log = logging.getLogger(__name__)


@dataclass
class _Call:
    """A call that has begun: `run(*arguments)` serves it; `ended` is what gRPC waits for."""

    caller: str
    core: Any
    run: Callable[..., Any]
    arguments: tuple[Any, ...]
    ended: futures.Future[None] = field(default_factory=futures.Future)


class _Lane:
    """The calls of one role: those that run, and each caller's queue, in the order of their turns."""

    def __init__(self, workers: int, own: int) -> None:
        self.workers, self.own = workers, own
        self.running: dict[str, int] = {}
        self.waiting: dict[str, deque[_Call]] = {}
        self.busy = 0

    def free_for(self, caller: str) -> bool:
        return self.busy < self.workers and self.running.get(caller, 0) < self.own

    def begin(self, caller: str) -> None:
        self.busy += 1
        self.running[caller] = self.running.get(caller, 0) + 1

    def end(self, caller: str) -> None:
        self.busy -= 1
        self.running[caller] -= 1
        if not self.running[caller]:
            del self.running[caller]

    def next(self) -> _Call | None:
        """Takes the first call of the first caller who may have another one served; that caller is last then."""
        caller = next((each for each in self.waiting if self.free_for(each)), None)
        if caller is None:
            return None
        queue = self.waiting.pop(caller)
        call = queue.popleft()
        if queue:
            self.waiting[caller] = queue
        return call


class Door(futures.ThreadPoolExecutor):
    """Serves calls in lanes; give it to `grpc.server` as its pool, and `arrivals` as the outermost interceptor."""

    def __init__(
        self,
        limits: CallLimits,
        *,
        roles: Collection[str],
        apart: Collection[str],
        to_status: Callable[[WeighbridgeError], grpc.Status],
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        """Opens the door.

        Args:
            limits: What each certificate may do.
            roles: Roles that may call at all; all others share a few workers.
            apart: Services with workers of their own.
            to_status: Makes the status that a refused call ends with.
            refused: Is told of each of these.
        """
        own = {role: -(-limits.calls // PART) if role in INSPECTED else limits.calls for role in roles}
        self._lanes = {role: _Lane(WORKERS, own[role]) for role in roles}
        self._lanes |= {name: _Lane(WORKERS_APART, CALLS_APART) for name in (*apart, _NO_ROLE)}
        super().__init__(sum(lane.workers for lane in self._lanes.values()), thread_name_prefix="rpc")
        self._limits, self.buckets = limits, Buckets(limits.rate_per_s, limits.burst)
        self._refused, self._door = refused, threading.Lock()
        self._arriving = threading.local()
        self.arrivals = _Arrivals(self._arriving, frozenset(apart))
        self._status = functools.lru_cache(maxsize=256)(lambda what, wait: to_status(self._busy(what, wait)))

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> futures.Future[Any]:
        """Has a call served, now or later, or refuses it.

        Args:
            fn: Serves it.
            *args: What gRPC passes to it: a function, the call's event, its state, the method's behaviour, and more.
            **kwargs: None.
        """
        _, event, state, behaviour = args[:4]
        caller, role = who(event.call)
        name = behaviour.apart or (role if role in self._lanes else _NO_ROLE)
        call = _Call(caller, event.call, fn, args)
        wait = self.buckets.take(caller, 1 if role not in INSPECTED else min(PART, self._limits.burst))
        if wait:
            return self._refuse(call, state, "rate", round(wait + 0.005, 2))
        with self._door:
            lane = self._lanes[name]
            queue = lane.waiting.get(caller)
            if queue is None and lane.free_for(caller):
                lane.begin(caller)
            elif len(queue or ()) < self._limits.waiting:
                lane.waiting.setdefault(caller, deque()).append(call)
                return call.ended
            else:
                return self._refuse(call, state, "waiting", 1.0)
        super().submit(self._serve, lane, call)
        return call.ended

    def _serve(self, lane: _Lane, call: _Call | None) -> None:
        while call is not None:
            place = self._arriving.place = WATCHDOG.begin(call.core, self._limits.idle_s)
            try:
                call.run(*call.arguments)
            except BaseException:  # gRPC catches what services raise, so this is a fault of its own or of ours.
                _log.exception("a call ended with an internal fault")
            finally:
                WATCHDOG.end(place)
                with self._door:
                    lane.end(call.caller)
                    ended, call = call.ended, lane.next()
                    if call is not None:
                        lane.begin(call.caller)
                ended.set_result(None)

    def _refuse(self, call: _Call, state: Any, what: str, wait: float) -> futures.Future[None]:
        """Ends a call before anything of it was read; gRPC holds the lock of its state."""
        self._refused()
        status = self._status(what, wait)
        state.trailing_metadata = status.trailing_metadata
        internals._abort(state, call.core, cygrpc.StatusCode.resource_exhausted, status.details.encode())
        call.ended.set_result(None)
        return call.ended

    def _busy(self, what: str, wait: float) -> BusyError:
        if what == "rate":
            return BusyError(
                f"This certificate calls more often than {self._limits.rate_per_s:g} times a second, or a quarter of "
                f"that if it is a chip's or Prover's; wait {wait:g} s and call again.",
                retry_s=wait,
            )
        return BusyError(
            f"This certificate has {self._limits.waiting} calls waiting beside those that are served; "
            f"wait {wait:g} s and call again.",
            retry_s=wait,
        )


class _Arrivals(grpc.ServerInterceptor):
    """Marks methods whose workers are apart, notes that a call's message has come, and decodes messages.

    gRPC would decode them in the one thread that serves the events of all calls, which a message of a million empty
    fields stops for 30 ms. Here the call's own thread does it, one large message of a caller at a time.
    """

    def __init__(self, arriving: threading.local, apart: frozenset[str]) -> None:
        self._arriving, self._apart, self._turns = arriving, apart, Turns()

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        handler = continuation(handler_call_details)
        if handler is None:
            return None

        def around(behaviour: Callable[..., Any], request: Any, context: grpc.ServicerContext) -> Any:
            WATCHDOG.end(self._arriving.place)
            decode = functools.partial(self._decode, handler.request_deserializer, context)
            return behaviour(map(decode, request) if handler.request_streaming else decode(request), context)

        wrapped: Any = wrap(handler, around, decoded=False)
        for behaviour in (wrapped.unary_unary, wrapped.unary_stream, wrapped.stream_unary, wrapped.stream_stream):
            if behaviour is not None:
                service = handler_call_details.method.split("/")[1]
                behaviour.apart = service if service in self._apart else ""
        return wrapped

    def _decode(self, deserialize: Callable[[bytes], Any], context: grpc.ServicerContext, data: bytes) -> Any:
        large = len(data) > _LARGE
        try:
            with self._turns.of(caller_of(context)) if large else contextlib.nullcontext():
                return deserialize(data)
        except message.DecodeError:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "these bytes are no message of this method")


def who(call: Any) -> tuple[str, str]:
    """Returns the hex SHA-256 of the caller's certificate, and its role: empty if it says none that is known."""
    certificates = (cygrpc.auth_context(call) or {}).get(b"x509_pem_cert", ())
    return _known(b"".join(certificates))


@functools.lru_cache(maxsize=4096)
def _known(pem: bytes) -> tuple[str, str]:
    role = _NO_ROLE
    with contextlib.suppress(IdentityError):
        role = peers.peer(pem).role
    return hashlib.sha256(pem).hexdigest(), role
