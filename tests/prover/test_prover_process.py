"""The Prover's service as a process: SIGTERM ends it in order, and a bad command line before it begins."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.command_line import fails
from support.station import ROOT, wait_for
from support.untrained_transcripts import write_transcript

from protos.weighbridge.v1 import prover_pb2, prover_pb2_grpc
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import ChipError
from weighbridge.rpc import endpoints

LARGE = 48 << 20


@contextmanager
def serving(path: Path) -> Iterator[tuple[subprocess.Popen[bytes], grpc.Channel]]:
    """The Prover's service over no transcripts, as a process, and a Verifier's channel to it."""
    authority = CertificateAuthority.create("Station")
    authority.issue_role("prover", "p").save(path / "prover")
    (path / "runs").mkdir()
    address_file = path / "address"
    command = [sys.executable, "-m", "weighbridge.cli", "serve", "prover", "--runs", str(path / "runs")]
    command += ["--credentials", str(path / "prover"), "--address-file", str(address_file)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        wait_for(address_file.exists, process)
        with endpoints.channel(address_file.read_text(), authority.issue_role("verifier", "v"), "prover") as channel:
            yield process, channel
    finally:
        process.kill()
        process.wait()


def begun(path: Path, stub: Any) -> tuple[Any, int]:
    """Begins to fetch a transcript that no connection's window holds; returns the stream, and the bytes to come."""
    identifier = write_transcript(path / "runs" / "large", tape=random.Random(1).randbytes(LARGE))
    pieces = stub.FetchTranscript(prover_pb2.FetchTranscriptRequest(id=identifier), timeout=120)
    size = sum(each.stat().st_size for each in (path / "runs" / "large").rglob("*") if each.is_file())
    return pieces, size - len(next(pieces).data)


def check(channel: grpc.Channel) -> grpc.StatusCode | None:
    """Asks for the service's health: none is its status when it serves, otherwise why it does not answer."""
    try:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=""), timeout=2)
    except grpc.RpcError as error:
        code: grpc.StatusCode = error.code()
        return code
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    return None


def test_sigterm_says_so_first_and_lets_a_running_stream_finish(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, channel):
        stub = prover_pb2_grpc.ProverServiceStub(channel)  # type: ignore[no-untyped-call]
        pieces, size = begun(tmp_path, stub)
        assert check(channel) is None
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: check(channel) == grpc.StatusCode.UNAVAILABLE, process)
        with pytest.raises((ChipError, endpoints.RpcError)):
            endpoints.call(stub.ListTranscripts, prover_pb2.ListTranscriptsRequest(), deadline_s=2)
        assert process.poll() is None  # A call is running: this one.
        assert sum(len(piece.data) for piece in pieces) == size
        assert process.wait(20) == 0


def test_a_stream_that_nobody_ends_holds_a_process_no_longer_than_its_grace(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, channel):
        stub = prover_pb2_grpc.ProverServiceStub(channel)  # type: ignore[no-untyped-call]
        pieces, _ = begun(tmp_path, stub)
        process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        assert process.wait(30) == 0
        assert time.monotonic() - started < 30
        with pytest.raises(grpc.RpcError):
            list(pieces)


@pytest.mark.parametrize("options", [["--metrics", "nowhere"], ["--streams", "0"], ["--calls-per-second", "-1"]])
def test_a_bad_command_line_says_what_to_do(tmp_path: Path, options: list[str]) -> None:
    CertificateAuthority.create("Station").issue_role("prover", "p").save(tmp_path / "prover")
    arguments = ["--runs", str(tmp_path), "--credentials", str(tmp_path / "prover"), *options]
    assert fails("serve", "prover", *arguments) == "usage"
