"""The Prover's service as a process: SIGTERM ends it in order, and a bad command line before it begins."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
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

from protos.weighbridge.v1 import prover_pb2, prover_pb2_grpc
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import ChipError
from weighbridge.rpc import endpoints

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


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


def test_sigterm_says_so_first_and_lets_a_running_stream_finish(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, channel):
        stub = prover_pb2_grpc.ProverServiceStub(channel)  # type: ignore[no-untyped-call]
        endpoints.call(stub.ListTranscripts, prover_pb2.ListTranscriptsRequest())
        watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""), timeout=60)
        assert next(watched).status == SERVING
        seen: list[Any] = []
        watcher = threading.Thread(target=lambda: seen.append(next(watched).status))
        watcher.start()
        process.send_signal(signal.SIGTERM)
        watcher.join(20)
        assert seen == [NOT_SERVING]
        assert process.poll() is None  # A call is running: this one.
        watched.cancel()
        assert process.wait(20) == 0
        with pytest.raises((ChipError, endpoints.RpcError)):
            endpoints.call(stub.ListTranscripts, prover_pb2.ListTranscriptsRequest(), deadline_s=2)


def test_a_stream_that_nobody_ends_holds_a_process_no_longer_than_its_grace(tmp_path: Path) -> None:
    with serving(tmp_path) as (process, channel):
        watched = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""), timeout=120)
        assert next(watched).status == SERVING
        process.send_signal(signal.SIGTERM)
        started = time.monotonic()
        with pytest.raises(grpc.RpcError):
            list(watched)
        assert process.wait(30) == 0
        assert time.monotonic() - started < 30


@pytest.mark.parametrize("options", [["--metrics", "nowhere"], ["--streams", "0"], ["--calls-per-second", "-1"]])
def test_a_bad_command_line_says_what_to_do(tmp_path: Path, options: list[str]) -> None:
    CertificateAuthority.create("Station").issue_role("prover", "p").save(tmp_path / "prover")
    arguments = ["--runs", str(tmp_path), "--credentials", str(tmp_path / "prover"), *options]
    assert fails("serve", "prover", *arguments) == "usage"
