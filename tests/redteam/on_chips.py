"""Attacks on what a chip sees: real chips as processes of their own, and real trainings on them."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from redteam.row import Outcome, Row
from redteam.workshop import Workshop, accusations, flops_of
from support.flop_counting import counted
from support.station import Station
from torch import Tensor, nn

from firmware_sim import ChipProcess, Shim, provision
from prover import Recorder, formulas
from verifier.model.policies import SnapshotPolicy
from weighbridge.core.host_memory import octets

STEPS = 4
SESSIONS, WIDE = 30, 64
PARKED = 64 << 20
"""Bytes of a model that is only kept."""
FORMULAS = formulas.constant(1e-2) | formulas.adamw()
Move = Callable[[Shim, nn.Module, int], None]


def batch_of(step: int) -> dict[str, Tensor]:
    """The batch of a step."""
    return {"x": torch.from_numpy(np.random.default_rng(step).standard_normal((16, 32)).astype(np.float32))}


def train(
    station: Station,
    name: str,
    *,
    between: Move | None = None,
    after_forward: Move | None = None,
    hold: int = 4096,
    seed: int = 1,
    out: Path | None = None,
) -> Path:
    """A recorded training on a chip of its own, with what an attacker does between steps and after a forward pass."""
    process = station.chip(name, hold=hold)
    out = out or station.runs / name
    with (
        Shim.connect(process.socket) as chip,
        Recorder(out, seed=seed, chip=chip, checkpoint_every=2, formulas=FORMULAS) as recorder,
    ):
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        recorder.attach(model, optimizer)
        for number in range(1, STEPS + 1):
            batch = batch_of(number)
            with recorder.step(batch):
                out_ = model(batch["x"])
                if after_forward is not None:
                    after_forward(chip, model, number)
                loss = out_.square().mean()
                if after_forward is not None:
                    after_forward(chip, model, -number)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if between is not None:
                between(chip, model, number)
    return out


class Swap:
    """Shows other weights for one operation in step 3; bytes are moved by the host, so no kernel tells."""

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}

    def __call__(self, chip: Shim, model: nn.Module, number: int) -> None:
        for place, parameter in enumerate(model.parameters()):
            # By its address: an array that a step asks for is read-only.
            memory = np.frombuffer(octets(parameter), dtype=np.float32).reshape(parameter.shape)
            if number == 3:
                self.kept[place] = memory.copy()
                memory[...] = np.random.default_rng(place).standard_normal(memory.shape)
            elif number == -3:
                memory[...] = self.kept[place]
        if number == 3:
            chip.request_snapshot()


class Hide:
    """Trains a second model between steps, and takes it off the chip before each snapshot."""

    def __init__(self) -> None:
        self.weights = np.zeros((256, 256), dtype=np.float32)

    def __call__(self, chip: Shim, model: nn.Module, number: int) -> None:
        hidden = torch.from_numpy(self.weights.copy())
        for _ in range(3):
            hidden = hidden + 0.01 * (hidden @ hidden + 1)
        self.weights = hidden.numpy().copy()  # to the host's memory
        del hidden
        if number == 2:
            chip.request_snapshot()


class Keep:
    """Keeps a second model in the chip's memory, where no declaration mentions it."""

    def __init__(self) -> None:
        self.second = nn.Linear(256, 256)

    def __call__(self, chip: Shim, model: nn.Module, number: int) -> None:
        self.second(torch.ones(8, 256)).sum().backward()
        if number == 2:
            chip.request_snapshot()


class Park:
    """Holds a second model, made elsewhere, in memory of the process in which no tensor lies."""

    def __init__(self, seed: int) -> None:
        noise = np.random.default_rng(seed).standard_normal(PARKED // 4).astype(np.float32)
        self.behind = mmap.mmap(-1, PARKED)
        self.behind.write(noise.tobytes())
        self.made = hash(noise.tobytes())

    def __call__(self, chip: Shim, model: nn.Module, number: int) -> None:
        if number == 2:
            chip.request_snapshot()

    def kept(self) -> bool:
        """Whether it is there still, bit for bit."""
        return hash(self.behind[:]) == self.made


class Undeclared:
    """A regression that is trained without a transcript, step by step.

    Attributes:
        steps: Steps so far.
    """

    def __init__(self, seed: int) -> None:
        """Makes the model.

        Args:
            seed: Of weights and data.
        """
        self._seed, self.steps = seed, 0
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self._model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-2)

    def step(self) -> None:
        """Trains a step."""
        self.steps += 1
        batch = batch_of(1000 * self._seed + self.steps)
        self._model(batch["x"]).square().mean().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def hidden(chip: Shim, seed: int, steps: int = STEPS) -> int:
    """Trains on a chip without a transcript, and lets it take a snapshot; returns the FLOPs."""
    training = Undeclared(seed)

    def work() -> None:
        for _ in range(steps):
            training.step()

    done = counted(work)
    chip.request_snapshot()
    work()  # the chip waits so many kernels for a safepoint that never comes
    return done


# -- the attacks -------------------------------------------------------------------------------------------------------


def recorded(shop: Workshop, seed: int, gain: Callable[[], float], **moves: Any) -> Outcome:
    """A declared run on a real chip with something beside it; its cost is what the run's programs say."""
    runs, name = shop.place(), shop.name()
    run = train(shop.bench, name, seed=seed, out=runs / "run", **moves)
    report = shop.report(name, runs=runs)
    on_chip = max(snapshot["flops"] for snapshot in report["chips"][0]["snapshots"])
    told = max(snapshot["flops_explained"] or 0 for snapshot in report["chips"][0]["snapshots"])
    return Outcome(findings=accusations(report), gain=gain(), cost=on_chip / (told or flops_of(run)))


def swapped(shop: Workshop, seed: int) -> Outcome:
    """Weights are swapped for noise at the moment of the interrupt."""
    swap = Swap()
    return recorded(shop, seed, lambda: len(swap.kept) / 4, after_forward=swap)


def beside(shop: Workshop, seed: int) -> Outcome:
    """A second model is trained between steps, and moved to the host's memory before each snapshot."""
    hide = Hide()
    return recorded(shop, seed, lambda: float(hide.weights.any()), between=hide)


def undeclared_region(shop: Workshop, seed: int) -> Outcome:
    """A second model stays in memory that was not declared to hold weights."""
    keep = Keep()
    return recorded(shop, seed, lambda: float(keep.second.weight.grad is not None), between=keep)


def parked(shop: Workshop, seed: int) -> Outcome:
    """A second model lies on the chip during a declared run, and no kernel touches it."""
    park = Park(seed)
    return recorded(shop, seed, lambda: float(park.kept()), between=park)


def exempt(shop: Workshop, seed: int) -> Outcome:
    """The Prover says that no training runs on this chip, and shows no transcript."""
    runs, name = shop.place(), shop.name()
    process = shop.bench.chip(name)
    with Shim.connect(process.socket) as chip:
        done = hidden(chip, seed)
    return Outcome(findings=accusations(shop.report(name, runs=runs)), gain=float(done > 0), cost=1.0)


def short_sessions(shop: Workshop, seed: int) -> Outcome:
    """The run goes on in many short workloads; each leaves before an interrupt, and hands its weights to the next."""
    runs, name = shop.place(), shop.name()
    process, weights, done = shop.bench.chip(name), None, 0
    for session in range(SESSIONS):
        model = nn.Linear(WIDE, WIDE)
        if weights is not None:
            model.load_state_dict(weights)

        def work(model: nn.Module = model, session: int = session) -> None:
            x = torch.ones(WIDE, WIDE) * (seed + session)
            model(x).square().mean().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= 1e-3 * p.grad

        with Shim.connect(process.socket):
            done += counted(work)
        weights = model.state_dict()
    plan = {"flops_threshold": done / 2, "snapshots": SnapshotPolicy(unexplained_flops=0.0)}
    return Outcome(findings=accusations(shop.report(name, runs=runs, **plan)), gain=float(done > 0), cost=1.0)


def unregistered(shop: Workshop, seed: int) -> Outcome:
    """The run is on an unregistered chip; what is registered is idle."""
    name, station, secret = shop.name(), shop.bench, shop.place()
    station.chip(name)
    provision(secret / "chip", station.manufacturer, image=station.image)
    process = ChipProcess(secret / "chip", station.root / "chip", rate_per_day=1.0, hold=64, allow_forced=True)
    with process, Shim.connect(process.socket) as chip:
        done = hidden(chip, seed)
    return Outcome(findings=accusations(shop.report(name)), gain=float(done > 0), cost=1.0)


def cheat(number: int) -> str:
    """The source of a row: a cheat of Shavit's paper, by its place in our list of them."""
    return f"Shavit 2023, cheat {number}"


HIDDEN_RUN = "train without declaring it"

ROWS = (
    Row(
        name="a secret stockpile: the run is on an unregistered chip",
        source=cheat(6),
        wants=HIDDEN_RUN,
        gains="1 if the run was made",
        attack=unregistered,
        note="Only registered chips are drawn. That every chip is registered is an assumption; "
        "manufacturers' statements in the registry back it.",
    ),
    Row(
        name="weights are swapped at the moment of the snapshot",
        source=cheat(1),
        wants="show a chip other weights than it trains",
        gains="the share of the tensors that were swapped",
        attack=swapped,
        expected=("snapshot.memory.missing", "snapshot.memory.unexplained", "snapshot.weights.mismatch"),
    ),
    Row(
        name="a training that is said to be other work",
        source=cheat(16),
        wants=HIDDEN_RUN,
        gains="1 if the run was made",
        attack=exempt,
        expected=("snapshot.unexplained",),
        note="No label exempts a chip; what no transcript explains is unexplained.",
    ),
    Row(
        name="a training in many short workloads, each gone before an interrupt",
        source="attacks on chips' counters",
        wants=HIDDEN_RUN,
        gains="1 if the run was made",
        attack=short_sessions,
        expected=("chip.work.unexplained",),
        note="Counters are the chip's, over its life. The plan's smallest run is half of this one; what stays "
        "below it is not reported.",
    ),
    Row(
        name="a second model in memory that was not declared",
        source=cheat(19),
        wants=HIDDEN_RUN,
        gains="1 if the second model was trained",
        attack=undeclared_region,
        expected=("snapshot.memory.unexplained",),
        note="Snapshots cover all live storages, not only declared ones.",
    ),
    Row(
        name="a second model in memory that no kernel touches between snapshots",
        source="attacks on what snapshots see",
        wants="hold a model that no snapshot shows",
        gains="1 if the model lay on the chip during the run, bit for bit",
        attack=parked,
        note="A model that does no work is no storage that a snapshot covers, and 64 MiB are less than an interpreter "
        "takes. Snapshots say how many bytes they could not see; what trains the model shows in the counters.",
    ),
    Row(
        name="a second model that hides in the host's memory from snapshots",
        source=cheat(19),
        wants=HIDDEN_RUN,
        gains="1 if the second model was trained",
        attack=beside,
        expected=("snapshot.work.unexplained",),
        note="Cost is what the chip counted, relative to what the transcript says.",
    ),
)
