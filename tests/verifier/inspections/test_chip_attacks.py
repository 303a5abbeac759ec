"""Attacks on interrupts and snapshots, over real chips and trainings: each is caught, and an honest twin passes."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from redteam.on_chips import STEPS, Hide, Swap, train
from support.station import Station, ids
from torch import nn

from benchmarks import soak_chip_crashes
from firmware_sim import Shim
from firmware_sim.frames import Connection
from prover import Recorder
from weighbridge.core.errors import ChipError
from weighbridge.core.host_memory import octets


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    with Station(tmp_path_factory.mktemp("station")) as station:
        yield station


@pytest.fixture(scope="module")
def prover(station: Station) -> str:
    return station.prover()


def inspected(station: Station, name: str, prover: str) -> dict[str, Any]:
    station.register(name, prover)
    return station.inspect(name)


def statuses(report: dict[str, Any]) -> list[str]:
    return [snapshot["status"] for chip in report["chips"] for snapshot in chip["snapshots"]]


def accused(report: dict[str, Any]) -> list[str]:
    return [finding for finding in ids(report, "violation") + ids(report, "warning")]


def ask(chip: Shim, model: nn.Module, number: int) -> None:
    if number == 3:
        chip.request_snapshot()


def test_an_honest_run_passes(station: Station, prover: str) -> None:
    """In the middle of a step, and after the last one: an interrupt that waits when the recording ends is served."""

    def last(chip: Shim, model: nn.Module, number: int) -> None:
        if number == STEPS:
            chip.request_snapshot()

    train(station, "honest", after_forward=ask, between=last)
    report = inspected(station, "honest", prover)
    assert accused(report) == []
    assert statuses(report) == ["explained", "explained"]
    snapshots = report["chips"][0]["snapshots"]
    assert [(each["step"], each["op"] > 0) for each in snapshots] == [(3, True), (STEPS + 1, False)]
    # What the Recorder computes for bounds is counted too; loops of the host's are not.
    assert all(0 < each["flops"] < 1.1 * each["flops_explained"] for each in snapshots)
    assert all(each["weights_bytes"] > 8000 for each in snapshots)


def test_weights_swapped_at_the_moment_of_an_interrupt(station: Station, prover: str) -> None:
    train(station, "swapped", after_forward=Swap())
    report = inspected(station, "swapped", prover)
    violations = set(ids(report, "violation"))
    assert {"snapshot.memory.missing", "snapshot.memory.unexplained", "snapshot.weights.mismatch"} <= violations
    assert statuses(report) == ["mismatch"]


def test_a_second_model_that_hides_from_snapshots_leaves_its_work(station: Station, prover: str) -> None:
    train(station, "hiding", between=Hide())
    report = inspected(station, "hiding", prover)
    assert accused(report) == ["snapshot.work.unexplained"]
    (snapshot,) = report["chips"][0]["snapshots"]
    assert snapshot["memory"]["unexplained"] == 0  # nothing of it was to be seen


def by_hand(x: torch.Tensor) -> torch.Tensor:
    return (x[:, :, None] * x).sum(1)


def by_vectors(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([torch.mv(x, row) for row in x.t()], 1)


@torch.library.custom_op("weighbridge_attack::product", mutates_args=())
def in_an_operator(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def at_inference(x: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return torch.nn.functional.linear(x, x.t())


def in_a_thread(x: torch.Tensor) -> torch.Tensor:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(torch.mm, x, x).result()


WORK: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "by hand": by_hand, "vectors": by_vectors, "operator": in_an_operator, "inference": at_inference,
    "thread": in_a_thread, "inverse": torch.linalg.inv,
}  # fmt: skip


@pytest.mark.parametrize("way", WORK)
def test_work_beside_a_run_is_counted_in_whatever_form(station: Station, prover: str, way: str) -> None:
    """A second model trains between steps, and its products are called so that no product of matrices is to be seen."""
    weights = np.eye(64, dtype=np.float32)

    def between(chip: Shim, model: nn.Module, number: int) -> None:
        hidden = torch.from_numpy(weights.copy())
        for _ in range(3):
            hidden = WORK[way](hidden)
        weights[...] = hidden.clone().numpy()
        del hidden
        if number == 2:
            chip.request_snapshot()

    train(station, f"work-{way.replace(' ', '-')}", between=between)
    report = inspected(station, f"work-{way.replace(' ', '-')}", prover)
    assert accused(report) == ["snapshot.work.unexplained"]


def test_interrupts_within_an_operation_are_not_accused(station: Station, prover: str) -> None:
    """The firmware waits for no safepoint here, so snapshots come in the middle of the Recorder's wide arithmetic."""

    def often(chip: Shim, model: nn.Module, number: int) -> None:
        if number in (2, 4):
            chip.request_snapshot()

    train(station, "within", after_forward=often, hold=1)
    report = inspected(station, "within", prover)
    assert ids(report, "violation") == []
    snapshots = report["chips"][0]["snapshots"]
    assert len(snapshots) == 2
    assert not any(each["safepoint"] for each in snapshots)
    assert all(each["memory"]["missing"] == each["memory"]["unexplained"] == 0 for each in snapshots)
    hidden = [each for each in snapshots if each["memory"]["temporary"]]
    assert all(each["status"] == "unverified" for each in hidden)


def test_a_hidden_run_off_safepoints_is_unexplained(station: Station, prover: str) -> None:
    """A workload that never offers a safepoint claims no position, and no transcript names it."""
    process = station.chip("hidden")
    x = torch.ones(8, 8)
    with Shim.connect(process.socket) as chip:
        chip.request_snapshot()
        for _ in range(100):
            x = x @ x * 0.1
    assert ids(inspected(station, "hidden", prover), "violation") == ["snapshot.unexplained"]


def starve(path: Path, times: int) -> None:
    """Leaves whenever the chip interrupts, and comes back."""
    done = 0
    while done < times:
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        end.connect(str(path))
        connection = Connection(end)
        connection.send({"do": "hello"})
        answer = connection.receive()
        if answer is not None and "ok" in answer:  # else the chip has not noticed yet that the last one is gone
            connection.send({"do": "force"})
            assert "interrupt" in (connection.receive() or {})
            done += 1
        connection.close()


def attend(path: Path) -> None:
    """Connects once the chip has noticed, and logged, that the workload before is gone."""
    deadline = time.monotonic() + 30
    while True:
        try:
            with Shim.connect(path):
                return
        except ChipError as error:
            if error.reason != "chip.busy" or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@pytest.mark.finding("chip.interrupt.unserved")
@pytest.mark.parametrize(("times", "severity"), [(1, "info"), (4, "violation")])
def test_starved_interrupts_are_counted(station: Station, times: int, severity: str) -> None:
    """One may be a crash; it costs the chip its place among the sampled all the same."""
    name = f"starved{times}"
    process = station.chip(name)
    starve(process.socket, times)
    attend(process.socket)
    report = station.inspect(name)
    assert [(f["id"], f["severity"]) for f in report["findings"]] == [("chip.interrupt.unserved", severity)]
    assert report["counts"]["verified"] == 0
    assert report["chips"][0]["interrupts"]["unserved"] == times


@pytest.mark.soak  # the honest inspections and test_crashes_of_jobs have such crashes one by one
def test_honest_crashes_accuse_nobody(tmp_path: Path) -> None:
    """Three jobs die at random moments or at the worst; one goes on; the others never do."""
    report = soak_chip_crashes.inspect(3, seed=2, out=tmp_path, per_second=0.5)
    assert [finding for finding in report["findings"] if finding["severity"] == "violation"] == []
    assert report["counts"]["snapshots"] >= 2
    for chip in report["chips"]:  # what could not be verified is not counted as sampled
        assert chip["verified"] == (
            all(each["status"] == "explained" for each in chip["snapshots"]) and not chip["interrupts"]["unserved"]
        )


@pytest.mark.parametrize("swapped", [False, True])
def test_what_a_program_lets_go_of_after_its_last_step_is_not_missed(
    station: Station, prover: str, swapped: bool
) -> None:
    """No tape says when it died. Weights that were never the run's are found there all the same."""
    name = f"after-the-end-{swapped}"
    process = station.chip(name)
    with Shim.connect(process.socket) as chip, Recorder(station.runs / name, seed=1, chip=chip) as recorder:
        with recorder.initialisation():
            model = nn.Linear(32, 64)
            optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        recorder.attach(model, optimizer)
        for _ in range(2):
            batch = {"x": torch.ones(4, 32)}
            with recorder.step(batch):
                out = model(batch["x"])
                loss = out.square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        del loss, out
        if swapped:
            np.frombuffer(octets(model.weight), dtype=np.float32)[:] = 1.0
        chip.request_snapshot()
    report = inspected(station, name, prover)
    (snapshot,) = report["chips"][0]["snapshots"]
    assert (snapshot["step"], snapshot["op"], snapshot["safepoint"]) == (3, 0, True)
    expected = ["snapshot.memory.unexplained", "snapshot.weights.mismatch"] if swapped else []
    assert sorted(accused(report)) == expected
