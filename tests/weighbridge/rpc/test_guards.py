# ruff: noqa: N802 (gRPC names the methods)
"""What a server asks of every call, over real sockets: a valid request, a deadline, no more than its share."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2
from hypothesis import given
from hypothesis import strategies as st

from protos.weighbridge.v1 import chip_pb2, chip_pb2_grpc, verifier_pb2, witness_pb2, witness_pb2_grpc
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.core.errors import ChipError, UsageError
from weighbridge.rpc import endpoints, memory
from weighbridge.rpc.busy import BusyError
from weighbridge.rpc.guards import Buckets, CallLimits, InvalidRequestError, NoDeadlineError, check_request

NONCE = b"fresh nonce"
HEAD = "/weighbridge.v1.ChipService/GetHead"
LIST = "/weighbridge.v1.ChipService/ListEntries"
ADD = "/weighbridge.v1.WitnessService/AddCheckpoint"


class Chip(chip_pb2_grpc.ChipServiceServicer):
    """Counts what reached it; its log has entries of 100 kB without end."""

    def __init__(self) -> None:
        self.heads, self.ended = 0, threading.Event()

    def GetHead(self, request: chip_pb2.GetHeadRequest, context: grpc.ServicerContext) -> chip_pb2.GetHeadResponse:
        self.heads += 1
        if request.nonce == b"wait for me":
            time.sleep(1.5)
        return chip_pb2.GetHeadResponse(token=b"token")

    def ListEntries(
        self, request: chip_pb2.ListEntriesRequest, context: grpc.ServicerContext
    ) -> Iterator[chip_pb2.ListEntriesResponse]:
        try:
            for index in range(request.start, request.end):
                yield chip_pb2.ListEntriesResponse(index=index, token=bytes(100_000))
        finally:
            self.ended.set()


class Witness(witness_pb2_grpc.WitnessServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def AddCheckpoint(self, request_iterator: Iterator[Any], context: grpc.ServicerContext) -> Any:
        pieces = []
        for piece in request_iterator:
            pieces.append(piece.checkpoint)
            if piece.token == b"keep":
                memory.keep(piece.ByteSize())
        self.kept += pieces
        return witness_pb2.AddCheckpointResponse()


AUTHORITY = CertificateAuthority.create("Station")
VERIFIER, OTHER = AUTHORITY.issue_role("verifier", "v"), AUTHORITY.issue_role("verifier", "w")
SERVER = AUTHORITY.issue_role("chip", "c")


@contextmanager
def served(**limits: Any) -> Iterator[tuple[str, Chip, Witness, grpc.Server]]:
    allow = {method: {"verifier"} for method in (HEAD, LIST, ADD)}
    server, address = endpoints.server(SERVER, allow=allow, limits=CallLimits(**limits))
    chip, witness = Chip(), Witness()
    chip_pb2_grpc.add_ChipServiceServicer_to_server(chip, server)  # type: ignore[no-untyped-call]
    witness_pb2_grpc.add_WitnessServiceServicer_to_server(witness, server)  # type: ignore[no-untyped-call]
    server.start()
    try:
        yield address, chip, witness, server
    finally:
        server.stop(None).wait()


@contextmanager
def stubs(address: str, credentials: Credentials = VERIFIER) -> Iterator[tuple[Any, Any]]:
    with endpoints.channel(address, credentials, "chip") as channel:
        yield chip_pb2_grpc.ChipServiceStub(channel), witness_pb2_grpc.WitnessServiceStub(channel)  # type: ignore[no-untyped-call]


def head(stub: Any, **options: Any) -> Any:
    return endpoints.call(stub.GetHead, chip_pb2.GetHeadRequest(nonce=NONCE), **options)


def details(error: grpc.RpcError, kind: type[Any]) -> Any:
    status = endpoints.rpc_status.from_call(error)
    found = kind()
    assert any(each.Unpack(found) for each in status.details)
    return found


def test_a_request_against_the_rules_never_reaches_the_service() -> None:
    with served() as (address, chip, _, _), stubs(address) as (stub, _):
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetHead(chip_pb2.GetHeadRequest(nonce=b"short"), timeout=5)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        (violation,) = details(caught.value, error_details_pb2.BadRequest).field_violations
        assert violation.field == "nonce"
        assert "8 bytes" in violation.description
        info = details(caught.value, error_details_pb2.ErrorInfo)
        assert (info.reason, info.domain) == ("rpc.invalid", "weighbridge")
        with pytest.raises(InvalidRequestError, match="nonce must be at least 8 bytes") as ours:
            endpoints.call(stub.GetHead, chip_pb2.GetHeadRequest(nonce=b"short"))
        assert ours.value.details == {"nonce": "must be at least 8 bytes"}
        assert chip.heads == 0
        assert head(stub).token == b"token"


def test_every_message_of_a_stream_is_checked() -> None:
    with served() as (address, _, witness, _), stubs(address) as (_, stub):
        good = witness_pb2.AddCheckpointRequest(checkpoint=b"note")
        bad = witness_pb2.AddCheckpointRequest(proof=[b"no hash"])
        with pytest.raises(InvalidRequestError, match="proof"):
            endpoints.call(stub.AddCheckpoint, iter([good, bad]))
        assert witness.kept == []
        endpoints.call(stub.AddCheckpoint, iter([good]))
        assert witness.kept == [b"note"]


def test_a_large_request_with_many_faults_is_refused_at_the_first() -> None:
    request = witness_pb2.AddCheckpointRequest(proof=[b""] * 500_000)
    started = time.monotonic()
    with pytest.raises(InvalidRequestError, match="proof"):
        check_request(request)
    assert time.monotonic() - started < 1


PLAN: dict[str, Any] = {
    "samples": 1, "flops_threshold": 1.0, "chip_flops_per_day": 1.0, "period_days": 1.0, "snapshot_rate_per_day": 1.0
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"samples": 0}, "samples"),
        ({"seed": b"short"}, "seed"),
        ({"period_days": float("nan")}, "period_days"),
        ({"flops_threshold": float("inf")}, "flops_threshold"),
        ({"cutoff_s": -1.0}, "cutoff_s"),
        ({"sharded": "some"}, "sharded"),
        ({"strata_by": ["owner", "owner"]}, "strata_by"),
        ({"type_flops_per_day": {"H200": 0.0}}, "type_flops_per_day"),
    ],
)
def test_rules_of_a_plan(changes: dict[str, Any], field: str) -> None:
    check_request(verifier_pb2.StartInspectionRequest(**PLAN))
    with pytest.raises(InvalidRequestError) as caught:
        check_request(verifier_pb2.StartInspectionRequest(**(PLAN | changes)))
    assert list(caught.value.details) == [field]


@given(st.binary(max_size=200))
def test_hostile_requests_raise_only_our_errors(data: bytes) -> None:
    """Whatever parses as a request is valid or an InvalidRequestError."""
    request = verifier_pb2.StartInspectionRequest()
    try:
        request.ParseFromString(data)
    except DecodeError:  # gRPC refuses it before any interceptor looks.
        return
    with contextlib.suppress(InvalidRequestError):
        check_request(request)


def test_calls_need_a_deadline_and_not_a_distant_one() -> None:
    with served(deadline_s=60) as (address, chip, _, _), stubs(address) as (stub, _):
        request = chip_pb2.GetHeadRequest(nonce=NONCE)
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetHead(request)
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert details(caught.value, error_details_pb2.ErrorInfo).reason == "rpc.deadline"
        with pytest.raises(NoDeadlineError):
            endpoints.call(stub.GetHead, request, deadline_s=100)
        assert chip.heads == 0
        assert head(stub, deadline_s=50).token == b"token"


def test_whoever_calls_too_often_is_told_when_to_come_back() -> None:
    with served(rate_per_s=2, burst=3) as (address, _, _, _), stubs(address) as (stub, _):
        request = chip_pb2.GetHeadRequest(nonce=NONCE)

        def call_often(times: int) -> None:
            for _ in range(times):
                stub.GetHead(request, timeout=5)

        call_often(3)
        with pytest.raises(grpc.RpcError) as caught:
            call_often(10)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        delay = details(caught.value, error_details_pb2.RetryInfo).retry_delay.ToTimedelta().total_seconds()
        assert 0 < delay <= 0.5
        assert details(caught.value, error_details_pb2.ErrorInfo).reason == "rpc.busy"
        with stubs(address) as (again, _), pytest.raises(grpc.RpcError):  # Another connection, the same certificate.
            again.GetHead(request, timeout=5)
        with stubs(address, OTHER) as (other, _):
            assert other.GetHead(request, timeout=5).token == b"token"
        assert head(stub).token == b"token"  # Our client waits as it is told.
        with pytest.raises(BusyError):
            head(stub, deadline_s=0.3)  # There is no time to wait.


def test_faulty_calls_cost_more() -> None:
    """What is wrong takes longer to find out than to send; whoever sends it has fewer calls left."""
    with served(rate_per_s=1, burst=120) as (address, chip, _, _), stubs(address) as (stub, _):
        for _ in range(3):
            with pytest.raises(grpc.RpcError) as caught:
                stub.GetHead(chip_pb2.GetHeadRequest(nonce=b"short"), timeout=5)
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetHead(chip_pb2.GetHeadRequest(nonce=NONCE), timeout=5)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert chip.heads == 0
        with stubs(address, OTHER) as (other, _):
            assert head(other).token == b"token"


@given(
    st.floats(0.1, 1000), st.floats(1, 100), st.lists(st.floats(0, 2, allow_subnormal=False), min_size=1, max_size=60)
)
def test_buckets_admit_no_more_than_rate_and_burst_allow(rate: float, burst: float, pauses: list[float]) -> None:
    now = [0.0]
    buckets = Buckets(rate, burst, lambda: now[0])
    admitted = 0
    for pause in pauses:
        now[0] += pause
        wait = buckets.take("a")
        admitted += wait == 0
        assert admitted <= burst + rate * now[0] + 1e-6
        if wait:
            now[0] += wait * (1 + 1e-9) + 1e-9
            assert buckets.take("a") == 0
            admitted += 1


def test_streams_of_one_certificate_are_counted_over_all_its_connections() -> None:
    with served(streams=2) as (address, _, _, _), stubs(address) as (first, _), stubs(address) as (second, _):
        request = chip_pb2.ListEntriesRequest(start=0, end=10_000)
        held = [stub.ListEntries(request, timeout=60) for stub in (first, second)]
        for each in held:
            next(each)
        third = first.ListEntries(request, timeout=5)
        with pytest.raises(grpc.RpcError) as caught:
            next(third)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert head(first).token == b"token"
        with stubs(address, OTHER) as (other, _):
            assert next(other.ListEntries(request, timeout=5)).index == 0
        for each in held:
            each.cancel()
        small = chip_pb2.ListEntriesRequest(start=0, end=2)
        assert [each.index for each in endpoints.stream(first.ListEntries, small)] == [0, 1]


def test_a_client_that_does_not_read_is_let_go() -> None:
    with served(idle_s=0.5) as (address, chip, _, _), stubs(address) as (stub, _):
        call = stub.ListEntries(chip_pb2.ListEntriesRequest(start=0, end=10_000), timeout=60)
        next(call)
        assert chip.ended.wait(10), "the worker is still held"
        with pytest.raises(grpc.RpcError) as caught:
            list(call)
        assert caught.value.code() == grpc.StatusCode.CANCELLED
        assert head(stub).token == b"token"


def test_a_client_that_does_not_send_is_let_go(caplog: pytest.LogCaptureFixture) -> None:
    with served(idle_s=0.5) as (address, _, witness, _), stubs(address) as (chip, stub):
        silent = threading.Event()

        def pieces() -> Iterator[witness_pb2.AddCheckpointRequest]:
            yield witness_pb2.AddCheckpointRequest(checkpoint=b"note")
            silent.wait(20)

        started = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            stub.AddCheckpoint(pieces(), timeout=60)
        silent.set()
        assert caught.value.code() == grpc.StatusCode.CANCELLED
        assert time.monotonic() - started < 10
        assert witness.kept == []
        assert head(chip).token == b"token"
    assert not caplog.records, "silent clients would fill the log with tracebacks"


def test_a_client_that_sends_too_little_is_let_go() -> None:
    """It never is silent for long, and yet holds a worker for nothing."""
    with served(idle_s=1, least_per_s=10_000) as (address, _, witness, _), stubs(address) as (_, stub):

        def pieces(size: int, count: int) -> Iterator[witness_pb2.AddCheckpointRequest]:
            for _ in range(count):
                yield witness_pb2.AddCheckpointRequest(checkpoint=bytes(size))
                time.sleep(0.2)

        with pytest.raises(grpc.RpcError) as caught:
            stub.AddCheckpoint(pieces(10, 100), timeout=60)
        assert caught.value.code() == grpc.StatusCode.CANCELLED
        assert witness.kept == []
        stub.AddCheckpoint(pieces(10_000, 10), timeout=60)
        assert len(witness.kept) == 10


def test_requests_of_one_certificate_take_a_share_of_the_memory() -> None:
    with served(memory=16 << 20) as (address, _, _, _), stubs(address) as (stub, keeper):

        def pieces(keep: bool) -> Iterator[witness_pb2.AddCheckpointRequest]:
            for _ in range(6):
                yield witness_pb2.AddCheckpointRequest(token=b"keep" * keep, entries=[bytes(1 << 20)])

        for _ in range(3):  # What was refused has given back what it held.
            with pytest.raises(grpc.RpcError) as caught:
                keeper.AddCheckpoint(pieces(True), timeout=60)
            assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "--request-memory" in (caught.value.details() or "")
            assert details(caught.value, error_details_pb2.ErrorInfo).reason == "rpc.busy"
            assert details(caught.value, error_details_pb2.RetryInfo).retry_delay.seconds == 1
        keeper.AddCheckpoint(pieces(False), timeout=60)
        assert head(stub).token == b"token"


def test_huge_messages_and_headers_are_refused() -> None:
    with served() as (address, chip, _, _), stubs(address) as (stub, _):
        huge = chip_pb2.GetHeadRequest(nonce=bytes(endpoints.MAX_REQUEST_BYTES + 1))
        with pytest.raises(grpc.RpcError) as caught:
            stub.GetHead(huge, timeout=10)
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.RpcError):
            stub.GetHead(chip_pb2.GetHeadRequest(nonce=NONCE), timeout=10, metadata=[("x", "y" * 100_000)])
        assert chip.heads == 0
        assert head(stub).token == b"token"


def test_bytes_that_are_no_message_are_refused() -> None:
    with served() as (address, chip, _, _), endpoints.channel(address, VERIFIER, "chip") as channel:
        for data in (b"\xff" * 20, b"\x0a\x7f"):
            with pytest.raises(grpc.RpcError) as caught:
                channel.unary_unary(HEAD)(data, timeout=5)
            assert caught.value.code() in (grpc.StatusCode.INTERNAL, grpc.StatusCode.INVALID_ARGUMENT)
        assert chip.heads == 0


def test_a_server_that_ends_lets_running_calls_finish_and_takes_no_others() -> None:
    with served() as (address, _, _, server), stubs(address) as (stub, _):
        answers: list[Any] = []
        slow = chip_pb2.GetHeadRequest(nonce=b"wait for me")
        running = threading.Thread(target=lambda: answers.append(endpoints.call(stub.GetHead, slow)))
        running.start()
        time.sleep(0.3)
        ending = endpoints.shut_down(server, 5)
        running.join(10)
        assert ending.wait(10)
        assert [each.token for each in answers] == [b"token"]
        with pytest.raises(ChipError):
            head(stub, deadline_s=2)


@pytest.mark.parametrize(
    "limits",
    [{"rate_per_s": 0}, {"burst": 0.5}, {"streams": 0}, {"idle_s": 0}, {"deadline_s": 0}, {"calls": 0}, {"memory": 1}],
)
def test_limits_that_refuse_everything_make_no_sense(limits: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        CallLimits(**limits)
