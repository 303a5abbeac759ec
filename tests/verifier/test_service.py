"""The Verifier's service as a process: registry, inspections in the background, progress, report, orderly end."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.command_line import fails
from support.station import LIMIT_OPTIONS, ROOT, Station, service, wait_for

from protos.weighbridge.v1 import verifier_pb2, verifier_pb2_grpc
from verifier import units
from verifier.registry import Chip, Registry
from verifier.report.signing import open_report
from verifier.service import MAX_ATTEMPTS
from weighbridge.cli.inspect.operator import VerifierUnreachableError, connect
from weighbridge.core.errors import IdentityError, UsageError
from weighbridge.rpc import endpoints

DEAD = b"\x01" + b"d" * 16


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    with Station(tmp_path_factory.mktemp("station")) as station:
        station.chip("idle")
        yield station


def arguments(station: Station, name: str) -> list[str]:
    root = station.root
    return [
        *("--db", str(root / f"{name}.db"), "--cache", str(root / f"{name}-cache")),
        *("--credentials", str(root / "verifier"), "--manufacturer", str(root / "manufacturer.pem")),
        *("--firmware", str(root / "firmware.img"), *LIMIT_OPTIONS),
    ]


@pytest.fixture(scope="module")
def stub(station: Station) -> Iterator[Any]:
    """A Verifier with one living and one dead chip, seen by an operator."""
    with (
        service("serve verifier", arguments(station, "service"), station.root / "verifier.address") as address,
        endpoints.channel(address, station.operator, "verifier") as channel,
    ):
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        for ueid, chip_address in ((station.ueids["idle"], station.chips["idle"].address), (DEAD, "127.0.0.1:1")):
            request = verifier_pb2.RegisterChipRequest(ueid=ueid, chip_address=chip_address, owner="o", site="s")
            endpoints.call(stub.RegisterChip, request)
        yield stub


def plan(**changes: Any) -> verifier_pb2.StartInspectionRequest:
    base: dict[str, Any] = {
        "samples": 2,
        "seed": b"0123456789abcdef",
        "flops_threshold": 1.0,
        "chip_flops_per_day": 1.0,
        "period_days": 1.0,
        "snapshot_rate_per_day": 1.0,
    }
    return verifier_pb2.StartInspectionRequest(**(base | changes))


def watch(stub: Any, identifier: str) -> list[Any]:
    return list(endpoints.stream(stub.WatchInspection, verifier_pb2.WatchInspectionRequest(inspection_id=identifier)))


def fetch(stub: Any, identifier: str) -> dict[str, Any]:
    pieces = endpoints.stream(stub.GetReport, verifier_pb2.GetReportRequest(inspection_id=identifier))
    return open_report(b"".join(piece.data for piece in pieces)).report


def test_the_registry_is_listed_in_order(station: Station, stub: Any) -> None:
    listed = endpoints.call(stub.ListChips, verifier_pb2.ListChipsRequest()).chips
    assert [chip.ueid for chip in listed] == sorted([station.ueids["idle"], DEAD])
    assert {chip.chip_address for chip in listed} == {station.chips["idle"].address, "127.0.0.1:1"}


def test_an_inspection_from_start_to_report(station: Station, stub: Any) -> None:
    identifier = endpoints.call(stub.StartInspection, plan()).inspection_id
    updates = watch(stub, identifier)
    assert updates[0].stage == "draw"
    assert updates[-1].stage == "done"
    assert [update.stage for update in watch(stub, identifier)] == [update.stage for update in updates]
    report = fetch(stub, identifier)
    assert report["inspection"] == identifier
    assert [each["id"] for each in report["findings"]] == ["chip.unreachable"]
    assert [chip["verified"] for chip in report["chips"]] == [chip["reachable"] for chip in report["chips"]]
    assert report["counts"]["verified"] == 1


def test_a_seed_is_made_if_none_is_given(stub: Any) -> None:
    identifier = endpoints.call(stub.StartInspection, plan(seed=b"", samples=1)).inspection_id
    assert watch(stub, identifier)[-1].stage == "done"
    assert len(bytes.fromhex(fetch(stub, identifier)["plan"]["seed"])) == 32


@pytest.mark.parametrize(
    "changes",
    [
        {"samples": 3},
        {"samples": 0},
        {"seed": b"short"},
        {"flops_threshold": 0.0},
        {"period_days": float("nan")},
        {"snapshot_rate_per_day": float("inf")},
        {"replay_device": "cpu; rm -rf"},
        {"replay_env": {"LD_PRELOAD": "/tmp/evil.so"}},
        {"replay_env": {"OMP_NUM_THREADS": "1\n2"}},
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(stub: Any, changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        endpoints.call(stub.StartInspection, plan(**changes))


def test_unknown_inspections_are_refused(stub: Any) -> None:
    with pytest.raises(UsageError):
        watch(stub, "none")
    with pytest.raises(UsageError):
        fetch(stub, "none")


def test_only_operators_are_served(station: Station) -> None:
    address = (station.root / "verifier.address").read_text()
    for role in ("verifier", "prover", "chip"):
        with endpoints.channel(address, station.authority.issue_role(role, "x"), "verifier") as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
            with pytest.raises(IdentityError):
                endpoints.call(stub.ListChips, verifier_pb2.ListChipsRequest())
    with grpc.insecure_channel(address) as plain:
        stub = verifier_pb2_grpc.VerifierServiceStub(plain)  # type: ignore[no-untyped-call]
        with pytest.raises(grpc.RpcError):
            stub.ListChips(verifier_pb2.ListChipsRequest(), timeout=5)


def test_an_inspection_goes_on_where_a_killed_verifier_left_it(station: Station) -> None:
    command = [sys.executable, "-m", "weighbridge.cli", "serve", "verifier", *arguments(station, "killed")]
    address_file = station.root / "killed.address"
    process = subprocess.Popen([*command, "--address-file", str(address_file)], cwd=ROOT)
    listener = socket.create_server(("127.0.0.1", 0))
    mute = f"127.0.0.1:{listener.getsockname()[1]}"
    try:
        wait_for(address_file.exists, process)
        with endpoints.channel(address_file.read_text(), station.operator, "verifier") as channel:
            stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
            # A peer that listens and never says a word keeps the inspection busy until its deadline.
            request = verifier_pb2.RegisterChipRequest(ueid=DEAD, chip_address=mute)
            endpoints.call(stub.RegisterChip, request)
            identifier = endpoints.call(stub.StartInspection, plan(samples=1)).inspection_id
            before = [next(iter(watch_until(stub, identifier, "log")))]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        listener.close()
    address_file.unlink()
    with (
        service("serve verifier", arguments(station, "killed"), address_file) as address,
        endpoints.channel(address, station.operator, "verifier") as channel,
    ):
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        updates = watch(stub, identifier)
        assert updates[0] == before[0]
        assert "resume" in [update.stage for update in updates]
        assert updates[-1].stage == "done"
        assert [each["id"] for each in fetch(stub, identifier)["findings"]] == ["chip.unreachable"]
        later = verifier_pb2.WatchInspectionRequest(inspection_id=identifier, after=len(updates) - 1)
        assert [update.stage for update in endpoints.stream(stub.WatchInspection, later)] == ["done"]
        # No other Verifier may run inspections on this database meanwhile.
        second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert second.returncode == 2
        assert "another Verifier" in second.stderr
    registry = Registry(station.root / "killed.db")
    assert registry.inspection(identifier).stage == "done"
    registry.close()


def test_a_watcher_outlives_a_killed_verifier(station: Station) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address_file = station.root / "watched.address"
    command = [sys.executable, "-m", "weighbridge.cli", "serve", "verifier", *arguments(station, "watched")]
    command += ["--address", f"127.0.0.1:{port}", "--address-file", str(address_file)]
    process = subprocess.Popen(command, cwd=ROOT)
    listener = socket.create_server(("127.0.0.1", 0))
    try:
        wait_for(address_file.exists, process)
        with connect(address_file.read_text(), station.root / "operator") as operator:
            mute = f"127.0.0.1:{listener.getsockname()[1]}"
            operator.register(ueid=DEAD, chip=mute, prover="")
            identifier = operator.start(
                samples=1, seed=b"0123456789abcdef", flops_threshold=1.0, chip_flops_per_day=1.0, period_days=1.0,
                snapshot_rate_per_day=1.0,
            )  # fmt: skip
            updates = operator.watch(identifier, patience_s=300)
            seen = [next(updates), next(updates)]
            assert [update.stage for update in seen] == ["draw", "log"]
            process.kill()
            process.wait()
            listener.close()
            process = subprocess.Popen(command, cwd=ROOT)
            seen += updates
            assert [update.stage for update in seen].count("draw") == 1, "what was seen is not said again"
            assert "resume" in [update.stage for update in seen]
            assert seen[-1].stage == "done"
            process.kill()
            process.wait()
            with pytest.raises(VerifierUnreachableError):
                list(operator.watch(identifier, patience_s=1))
    finally:
        process.kill()
        process.wait()


def watch_until(stub: Any, identifier: str, stage: str) -> Iterator[Any]:
    request = verifier_pb2.WatchInspectionRequest(inspection_id=identifier)
    for update in endpoints.stream(stub.WatchInspection, request):
        yield update
        if update.stage == stage:
            return


def test_an_inspection_that_kills_every_verifier_is_given_up(station: Station) -> None:
    """Without an end to it, the Verifier could not be started any more."""
    database = station.root / "doomed.db"
    registry = Registry(database)
    registry.register(Chip(ueid=DEAD, address="127.0.0.1:1"))
    registry.start_inspection("doomed", seed=b"s" * 16, plan={}, chips=[DEAD])
    for attempt in range(1, MAX_ATTEMPTS + 1):
        assert units.begin_attempt(registry.session, "doomed") == attempt
    assert units.unfinished(registry.session) == ["doomed"]
    registry.close()
    with (
        service("serve verifier", arguments(station, "doomed"), station.root / "doomed.address") as address,
        endpoints.channel(address, station.operator, "verifier") as channel,
    ):
        stub = verifier_pb2_grpc.VerifierServiceStub(channel)  # type: ignore[no-untyped-call]
        (update,) = watch(stub, "doomed")
        assert (update.stage, update.message[:28]) == ("failed", "the Verifier ended 10 times ")
        assert len(endpoints.call(stub.ListChips, verifier_pb2.ListChipsRequest()).chips) == 1


@pytest.mark.parametrize(
    ("missing", "code"),
    [("--db", "usage"), ("--manufacturer", "usage"), ("--credentials", "identity.chain"), ("--firmware", "usage")],
)
def test_a_bad_command_line_is_one_line_and_exit_code_2(
    station: Station, tmp_path: Path, missing: str, code: str
) -> None:
    line = arguments(station, "bad")
    (tmp_path / "empty").mkdir()
    line[line.index(missing) + 1] = str(tmp_path / "empty" if missing != "--manufacturer" else tmp_path / "none.pem")
    assert fails("serve", "verifier", *line) == code
