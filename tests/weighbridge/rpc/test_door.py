# ruff: noqa: N802 (gRPC names the methods)
"""Callers in the queues of a real server: whatever some certificates do, others get workers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from protos.weighbridge.v1 import chip_pb2, chip_pb2_grpc
from weighbridge.attest.identity import CertificateAuthority, Credentials
from weighbridge.rpc import endpoints
from weighbridge.rpc.busy import BusyError
from weighbridge.rpc.guards import CallLimits
from weighbridge.rpc.metrics import Metrics

HEAD = "/weighbridge.v1.ChipService/GetHead"
AUTHORITY = CertificateAuthority.create("Station")
SERVER = AUTHORITY.issue_role("chip", "c")
RIVALS = [AUTHORITY.issue_role("verifier", f"rival-{n}") for n in range(2)]
VERIFIER, OPERATOR, PROVER = (AUTHORITY.issue_role(role, "x") for role in ("verifier", "operator", "prover"))


class Chip(chip_pb2_grpc.ChipServiceServicer):
    """Answers at once, or once it may."""

    def __init__(self) -> None:
        self.may, self.order = threading.Event(), list[bytes]()

    def GetHead(self, request: chip_pb2.GetHeadRequest, context: grpc.ServicerContext) -> chip_pb2.GetHeadResponse:
        if request.nonce.startswith(b"wait"):
            self.may.wait(20)
        self.order.append(request.nonce)
        return chip_pb2.GetHeadResponse(token=b"token")


@contextmanager
def served(metrics: Metrics | None = None, **limits: Any) -> Iterator[tuple[str, Chip]]:
    server, address = endpoints.server(
        SERVER, allow={HEAD: {"verifier", "operator"}}, limits=CallLimits(**limits), metrics=metrics
    )
    chip = Chip()
    chip_pb2_grpc.add_ChipServiceServicer_to_server(chip, server)  # type: ignore[no-untyped-call]
    server.start()
    try:
        yield address, chip
    finally:
        chip.may.set()
        server.stop(None).wait()


@contextmanager
def stub(address: str, credentials: Credentials) -> Iterator[Any]:
    with endpoints.channel(address, credentials, "chip") as channel:
        yield chip_pb2_grpc.ChipServiceStub(channel)  # type: ignore[no-untyped-call]


def head(address: str, credentials: Credentials, nonce: bytes = b"fresh nonce") -> float:
    """Calls once; returns the seconds that it took, with its connection."""
    started = time.monotonic()
    with stub(address, credentials) as chip:
        assert chip.GetHead(chip_pb2.GetHeadRequest(nonce=nonce), timeout=10).token == b"token"
    return time.monotonic() - started


def test_calls_whose_message_never_comes_hold_nobody_else() -> None:
    """Before any method sees such a call it has a worker, which gRPC lets wait for ever."""
    silent = threading.Event()

    def nothing() -> Iterator[bytes]:
        silent.wait(20)
        yield from ()

    with served(idle_s=3) as (address, _), ExitStack() as stack:
        held = []
        for rival in (*RIVALS, PROVER):
            channel = stack.enter_context(endpoints.channel(address, rival, "chip"))
            held += [channel.stream_unary(HEAD).future(nothing(), timeout=60) for _ in range(60)]
        time.sleep(0.5)
        assert head(address, VERIFIER) < 1
        assert head(address, OPERATOR) < 1
        assert held[0].code() == grpc.StatusCode.CANCELLED  # waits for it
        assert head(address, RIVALS[0]) < 5
        silent.set()


def test_a_call_beyond_queue_and_share_is_refused_before_it_is_read() -> None:
    metrics = Metrics()
    with served(metrics, calls=2, waiting=3) as (address, chip), stub(address, RIVALS[0]) as rival:
        request = chip_pb2.GetHeadRequest(nonce=b"wait for me")
        calls = [rival.GetHead.future(request, timeout=20) for _ in range(5)]
        time.sleep(0.5)
        started = time.monotonic()
        with pytest.raises(grpc.RpcError) as caught:
            rival.GetHead(chip_pb2.GetHeadRequest(nonce=bytes(1 << 20)), timeout=20)
        assert time.monotonic() - started < 1
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert isinstance(endpoints.from_rpc_error(caught.value), BusyError)
        retry = error_details_pb2.RetryInfo()
        assert any(each.Unpack(retry) for each in rpc_status.from_call(caught.value).details)
        assert retry.retry_delay.seconds == 1
        assert head(address, VERIFIER) < 1
        chip.may.set()
        assert [call.result().token for call in calls] == [b"token"] * 5
        assert "weighbridge_calls_refused_total 1.0" in metrics.text()


def test_certificates_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker is left when sixty calls of a rival wait; the next call that it takes is another's."""
    monkeypatch.setattr("weighbridge.rpc.door.WORKERS", 1)
    with served() as (address, chip), stub(address, RIVALS[0]) as rival, stub(address, VERIFIER) as other:
        calls = [rival.GetHead.future(chip_pb2.GetHeadRequest(nonce=b"wait, rival"), timeout=20) for _ in range(60)]
        time.sleep(0.5)
        late = other.GetHead.future(chip_pb2.GetHeadRequest(nonce=b"another's"), timeout=20)
        time.sleep(1)  # until it waits too, on a machine that has other things to do
        assert head(address, OPERATOR) < 1  # a role of its own
        chip.may.set()
        assert late.result().token == b"token"
        assert all(call.result().token for call in calls)
        assert chip.order.index(b"another's") <= 3


def test_health_is_apart_and_nobody_watches_it() -> None:
    with served() as (address, _), ExitStack() as stack:
        for rival in RIVALS:
            channel = stack.enter_context(endpoints.channel(address, rival, "chip"))
            watched = [health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()) for _ in range(64)]
            asked = reflection_pb2_grpc.ServerReflectionStub(channel)
            silent = threading.Event()
            stack.callback(silent.set)
            held = [asked.ServerReflectionInfo(_silence(silent), timeout=60) for _ in range(64)]
            with pytest.raises(grpc.RpcError) as caught:
                next(watched[0])
            assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED
            assert held[0].is_active()
        with endpoints.channel(address, PROVER, "chip") as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        assert head(address, OPERATOR) < 1


def _silence(until: threading.Event) -> Iterator[reflection_pb2.ServerReflectionRequest]:
    until.wait(20)
    yield from ()


def test_calls_that_are_cancelled_at_once_leave_nothing() -> None:
    with served(calls=4, waiting=8) as (address, _), stub(address, RIVALS[0]) as rival:
        request = chip_pb2.GetHeadRequest(nonce=b"fresh nonce")
        for _ in range(500):
            rival.GetHead.future(request, timeout=20).cancel()
        assert head(address, OPERATOR) < 1
        deadline = time.monotonic() + 10
        while True:  # Its share is free again.
            try:
                rival.GetHead(request, timeout=5)
                break
            except grpc.RpcError:
                assert time.monotonic() < deadline
                time.sleep(0.1)
