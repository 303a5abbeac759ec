"""The referee's gRPC service; `weighbridge referee serve` runs it as a process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import grpc

from protos.weighbridge.v1 import referee_pb2, referee_pb2_grpc
from weighbridge.attest.identity import Credentials
from weighbridge.core.errors import UsageError
from weighbridge.execution.dispute.docket import DisputeLimitError, Docket
from weighbridge.rpc import endpoints
from weighbridge.rpc import memory as request_memory
from weighbridge.rpc.guards import CallLimits
from weighbridge.rpc.metrics import Metrics

_SERVICE = "/weighbridge.v1.RefereeService/"
_METHODS = ("GetReferee", "OpenDispute", "PostMessage", "GetDispute", "FetchDispute")
ALLOW = {_SERVICE + method: {"prover", "verifier", "operator"} for method in _METHODS}
"""Who may call; whose claims they are, the messages' signatures say."""

PIECE = 1 << 20
"""Most bytes of a piece of a message."""

TICK_SECONDS = 0.25
GRACE_SECONDS = 5.0
_log = logging.getLogger(__name__)


class RefereeService(referee_pb2_grpc.RefereeServiceServicer):
    """Answers for one docket; see `protos/weighbridge/v1/referee.proto`."""

    def __init__(self, docket: Docket, changed: Callable[[], None] = lambda: None) -> None:
        """Serves `docket`, and calls `changed` whenever there may be something to judge."""
        self._docket, self._changed = docket, changed

    def GetReferee(  # noqa: N802 (gRPC names the methods)
        self, request: referee_pb2.GetRefereeRequest, context: grpc.ServicerContext
    ) -> referee_pb2.GetRefereeResponse:
        """Says the key and the clock."""
        return referee_pb2.GetRefereeResponse(key=self._docket.key.public, clock=self._docket.limits.clock)

    def OpenDispute(  # noqa: N802
        self, request: Iterator[referee_pb2.OpenDisputeRequest], context: grpc.ServicerContext
    ) -> referee_pb2.OpenDisputeResponse:
        """Takes a challenge."""
        first = next(request, None)
        if first is None:
            raise UsageError("a challenge has at least one piece")
        data = _joined(first.data, (each.data for each in request), self._docket.limits.challenge)
        dispute, merged = self._docket.open(first.notice, data)
        return referee_pb2.OpenDisputeResponse(id=dispute, merged=merged)

    def PostMessage(  # noqa: N802
        self, request: Iterator[referee_pb2.PostMessageRequest], context: grpc.ServicerContext
    ) -> referee_pb2.PostMessageResponse:
        """Takes a message; of a dispute that is not there, or that waits for none, it reads no more than a piece."""
        first = next(request, None)
        if first is None:
            raise UsageError("a message has at least one piece")
        self._docket.require_due(first.id)
        self._docket.post(first.id, _joined(first.data, (each.data for each in request), self._docket.limits.size))
        self._changed()
        return referee_pb2.PostMessageResponse()

    def GetDispute(  # noqa: N802
        self, request: referee_pb2.GetDisputeRequest, context: grpc.ServicerContext
    ) -> referee_pb2.GetDisputeResponse:
        """Says how far a dispute has come."""
        found = self._docket.standing(request.id)
        return referee_pb2.GetDisputeResponse(
            parties=found.parties, party=found.party, due=found.due, used=found.used, ruled=found.ruled,
            messages=found.messages,
        )  # fmt: skip

    def FetchDispute(  # noqa: N802
        self, request: referee_pb2.FetchDisputeRequest, context: grpc.ServicerContext
    ) -> Iterator[referee_pb2.FetchDisputeResponse]:
        """Streams the file."""
        for message in self._docket.messages(request.id):
            for at in range(0, len(message.data), PIECE):
                yield referee_pb2.FetchDisputeResponse(data=message.data[at : at + PIECE])


def _joined(first: bytes, rest: Iterator[bytes], most: int) -> bytes:
    """Returns the pieces as one; stops reading where they become too large for the docket or the server's memory."""
    data = bytearray(first)
    request_memory.keep(len(first))
    for piece in rest:
        if len(data) + len(piece) > most:
            raise DisputeLimitError(f"A message may have {most} bytes here; send a smaller one.")
        request_memory.keep(len(piece))
        data += piece
    return bytes(data)


@contextmanager
def serve(
    docket: Docket, credentials: Credentials, address: str = "127.0.0.1:0", *, limits: CallLimits | None = None,
    metrics: Metrics | None = None,
) -> Iterator[str]:  # fmt: skip
    """Serves a docket until the block ends; yields the address as host:port.

    Args:
        docket: The disputes.
        credentials: Of the role referee.
        address: Where to listen.
        limits: What each caller may do.
        metrics: Where calls are counted.

    Raises:
        UsageError: The address cannot be bound.
    """
    server, bound = endpoints.server(credentials, allow=ALLOW, address=address, limits=limits, metrics=metrics)
    stop, work = threading.Event(), threading.Event()
    referee_pb2_grpc.add_RefereeServiceServicer_to_server(  # type: ignore[no-untyped-call]
        RefereeService(docket, work.set), server
    )
    work.set()  # A referee that was killed while it judged has something to do.

    def ticking() -> None:
        while not stop.wait(TICK_SECONDS):
            _tried(docket.tick)

    def judging() -> None:
        while not stop.is_set():
            if work.wait(TICK_SECONDS):
                work.clear()
                _tried(docket.judge)

    threads = [
        threading.Thread(target=each, name=f"referee {each.__name__}", daemon=True) for each in (ticking, judging)
    ]
    server.start()
    for thread in threads:
        thread.start()
    try:
        yield bound
    finally:
        endpoints.shut_down(server, GRACE_SECONDS).wait()
        stop.set()
        threads[0].join()  # A judgement may take hours; the next start judges again what this one did not.


def _tried(work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:
        _log.exception("a dispute could not be continued; see the disk, and start the referee again")
