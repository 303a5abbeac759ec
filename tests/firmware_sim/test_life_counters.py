"""What a chip counts over its life: nothing that a workload does, or leaves undone, takes work back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from support.chip_station import ChipStation
from torch import Tensor

from firmware_sim import ChipProcess, Shim
from firmware_sim.work_counter import WorkCounter
from firmware_sim.work_page import MOST
from weighbridge.attest.tokens import Token
from weighbridge.attest.work import Work

ROOT = Path(__file__).parents[2]
N = 8
X = torch.ones(N, N)
ATTACHED, DETACHED = "workload-attached", "workload-detached"


@torch.library.custom_op("weighbridge_life::slow", mutates_args=())
def slow(x: Tensor) -> Tensor:
    """Work of a Prover's own, with a kernel of PyTorch's in it."""
    time.sleep(0.02)
    return torch.from_numpy(x.numpy() @ x.numpy()) + torch.ones(N, N)


@torch.library.custom_op("weighbridge_life::failing", mutates_args=())
def failing(x: Tensor) -> Tensor:
    """Work whose result leaves by an error."""
    time.sleep(0.02)
    raise ValueError("here it is")


def done(token: Token) -> Work:
    assert token.work is not None
    return token.work


def named(log: list[Token], name: str) -> list[Token]:
    return [token for token in log if token.kind == "event" and token.body["name"] == name]


def test_many_short_workloads_add_up(chip: ChipProcess, station: ChipStation) -> None:
    """Each leaves before it could be looked at; the chip knows what all of them did."""
    before = done(station.log(chip)[-1])
    for _ in range(10):
        with Shim.connect(chip.socket) as shim:
            X @ X
            assert shim.flops == 2 * N**3
    log = station.log(chip)
    assert (done(log[-1]) - before).flops == 10 * 2 * N**3
    sessions = list(zip(named(log, ATTACHED)[-10:], named(log, DETACHED)[-10:], strict=True))
    assert [(done(end) - done(begin)).flops for begin, end in sessions] == [2 * N**3] * 10
    assert all(begin.index + 1 == end.index for begin, end in sessions)


def test_a_snapshot_says_what_its_workload_did(chip: ChipProcess, station: ChipStation) -> None:
    with Shim.connect(chip.socket) as shim:
        X @ X
        shim.request_snapshot()
        index = shim.safepoint(1, 0, b"r" * 32, b"h" * 32, lambda: None)
        assert index is not None
        told = shim.work
    log = station.log(chip)
    begin = max(token.index for token in named(log, ATTACHED) if token.index < index)
    assert done(log[index]) - done(log[begin]) == told
    assert (log[index].body["kernels"], log[index].body["flops"]) == (told.kernels, told.flops) == (1, 2 * N**3)


KILLED = """
import os, signal, sys
import torch
from firmware_sim import Shim
x = torch.ones(8, 8)
with Shim.connect(sys.argv[1]):
    for _ in range(5):
        x @ x
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killing_the_workload_takes_nothing_back(chip: ChipProcess, station: ChipStation) -> None:
    before = done(station.log(chip)[-1])
    left = len(named(station.log(chip), DETACHED))
    command = [sys.executable, "-c", KILLED, str(chip.socket)]
    assert subprocess.run(command, cwd=ROOT, check=False).returncode == -signal.SIGKILL
    while len(named(log := station.log(chip), DETACHED)) == left:
        time.sleep(0.02)
    assert done(log[-1]) - before == Work(
        kernels=5, flops=5 * 2 * N**3, moved=5 * 3 * 4 * N * N, busy_ns=(done(log[-1]) - before).busy_ns
    )


def test_a_power_cut_takes_nothing_back(station: ChipStation) -> None:
    with station.chip("cut") as chip:
        shim = Shim.connect(chip.socket)
        with shim:
            X @ X
            chip.kill()
        chip.start()
        log = station.log(chip)
        assert [token.kind for token in log] == ["boot", "event", "boot"]
        assert done(log[-1]).flops == 2 * N**3
        with Shim.connect(chip.socket):
            X @ X
        assert done(station.log(chip)[-1]).flops == 2 * 2 * N**3


def test_what_a_forked_process_does_is_the_chips_work(chip: ChipProcess, station: ChipStation) -> None:
    with Shim.connect(chip.socket) as shim:
        before = done(station.log(chip)[-1])
        X @ X
        child = os.fork()
        if not child:
            X @ X
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        X @ X
        assert shim.flops == 2 * 2 * N**3
    assert (done(station.log(chip)[-1]) - before).flops == 3 * 2 * N**3


def test_time_in_foreign_code_is_unknown_work(chip: ChipProcess) -> None:
    """A kernel of PyTorch's inside is known, and its time counts once."""
    with Shim.connect(chip.socket) as shim:
        began = time.perf_counter_ns()
        slow(X)
        took = time.perf_counter_ns() - began
        work = shim.work
    assert work.flops == N**2
    assert 20e6 <= work.unknown_ns < work.busy_ns <= took
    assert work.flops_at_most(1e12) >= 0.02 * 1e12


def test_a_kernel_that_fails_has_worked(chip: ChipProcess) -> None:
    with Shim.connect(chip.socket) as shim:
        with pytest.raises(ValueError, match="here it is"):
            failing(X)
        assert shim.kernels == 1
        assert shim.work.unknown_ns >= 20e6


def test_a_counter_outgrows_its_slot() -> None:
    """A chip does 2^64 FLOPs within hours: a thread takes further slots, and nothing is lost."""
    counter, op = WorkCounter(), torch.ops.aten.mm.default
    huge = torch.empty(1, device="meta").expand(1 << 22, 1 << 22)
    for number in range(1, 4):
        counter.add(op, (huge, huge), {}, huge, 1, MOST)
        assert counter.total == Work(kernels=number, busy_ns=number, moved=number * MOST, flops=number * (1 << 67))


def test_threads_that_end_leave_their_slots(chip: ChipProcess) -> None:
    from concurrent.futures import ThreadPoolExecutor

    with Shim.connect(chip.socket) as shim:
        for _ in range(50):
            with ThreadPoolExecutor(2) as pool:
                for _ in range(2):
                    pool.submit(torch.mm, X, X).result()
        assert shim.flops == 100 * 2 * N**3
        assert len(shim._work._tallies) <= 4


def test_numpy_on_the_host_is_none_of_it(chip: ChipProcess) -> None:
    with Shim.connect(chip.socket) as shim:
        np.ones((N, N)) @ np.ones((N, N))
        assert shim.work == Work()
