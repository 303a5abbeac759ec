"""Where attacks are tried: a Verifier, chips with real keys, small trainings, and what all of it costs in FLOPs.

A training is a classifier or a regression of a thousand weights. Its transcript comes from the Recorder; its chip's log
is signed as a chip signs it; the Verifier inspects the chip over mutual TLS and replays in a confined worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from support.flop_counting import counted
from support.forging import at_step, forge
from support.station import ids
from support.workers_here import workers_here
from support.written_chips import Bench, WrittenChip
from torch import Tensor, nn
from torch.nn import functional as F

from prover import Recorder
from prover.recipes.digits import Digits
from verifier.model.policies import SEGMENTS_AS_DESIGNED
from weighbridge.cli.demo.cheat import CheatingRecorder
from weighbridge.program.flops import flops
from weighbridge.transcript.chip_notes import ChipNotes
from weighbridge.transcript.data import DataCommitment, VerifiableOrder
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

Batch = dict[str, Tensor]
Weights = dict[str, Tensor]
Update = Callable[[int, Batch, nn.Module, torch.optim.Optimizer], None]
ROWS = 32
"""Records in a batch."""
PIXELS = 64
RATE = 0.2
USUAL: Mapping[str, Any] = {"segments": SEGMENTS_AS_DESIGNED}
"""Attacks are inspected by the default plan, unless their row says otherwise."""


def classifier() -> nn.Sequential:
    """A net of 1,210 weights for the digits."""
    return nn.Sequential(nn.Linear(PIXELS, 16), nn.GELU(), nn.Linear(16, 10))


def update(step: int, batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One honest step on labelled images."""
    F.cross_entropy(model(batch["x"]), batch["y"]).backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    optimizer.zero_grad()


@lru_cache(maxsize=1)
def _digits() -> tuple[Tensor, Tensor]:
    recipe = Digits()
    whole = recipe.batch(range(recipe.count()))
    return whole["image"].reshape(-1, PIXELS), whole["label"]


def digits(seed: int, steps: int) -> list[Batch]:
    """Batches of handwritten digits, drawn with a seed."""
    images, labels = _digits()
    chosen = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    rows = [chosen[[(ROWS * step + i) % len(images) for i in range(ROWS)]] for step in range(steps)]
    return [{"x": images[each], "y": labels[each]} for each in rows]


@dataclass(kw_only=True)
class Training:
    """What is trained, and how.

    Attributes:
        batches: One for each step; the data set is their rows.
        step: Does a step.
        build: Makes the model.
        rate: Learning rate of plain SGD.
    """

    batches: Sequence[Batch]
    step: Update = update
    build: Callable[[], nn.Module] = classifier
    rate: float = RATE

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of a model of it."""
        return torch.optim.SGD(model.parameters(), lr=self.rate)


@dataclass
class Recorded:
    """A run that was recorded.

    Attributes:
        path: Its transcript.
        start: Its weights after the initialisation.
        weights: Its weights at the end.
        flops: FLOPs of all its programs.
    """

    path: Path
    start: Weights
    weights: Weights
    flops: int


def weights_of(model: nn.Module) -> Weights:
    """A copy of a model's weights."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def flat(weights: Weights) -> Tensor:
    """All weights in one row."""
    return torch.cat([each.reshape(-1) for each in weights.values()])


def distance(a: Weights, b: Weights) -> float:
    """The Euclidean distance of two models, in float64."""
    return float(torch.linalg.vector_norm(flat(a).double() - flat(b).double()))


def nearer(start: Weights, end: Weights, wanted: Weights) -> float:
    """The share of the way to the wanted weights that a run has covered: 1 if it ends there."""
    return 1 - distance(end, wanted) / distance(start, wanted)


def plainly(training: Training, seed: int) -> Weights:
    """Trains without a Recorder: the model that an adversary wants to launder, for example."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = training.build()
        optimizer = training.optimizer(model)
        for number, batch in enumerate(training.batches, 1):
            training.step(number, batch, model, optimizer)
    return weights_of(model)


def honest_flops(training: Training) -> int:
    """FLOPs of a training as it would be if every step were an honest one."""
    return counted(lambda: plainly(Training(batches=training.batches, build=training.build), 0))


def flops_of(path: Path) -> int:
    """FLOPs of all steps of a transcript."""
    transcript = Transcript.open(path)
    known: dict[bytes, int] = {}
    total = 0
    for record in transcript.records():
        if record.tape not in known:
            known[record.tape] = sum(flops(Tape.decode(transcript.tape(record.tape))))
        total += known[record.tape]
    return total


def committed(batches: Sequence[Batch], *, verifiable: bytes | None = None) -> tuple[DataCommitment, list[Batch]]:
    """Commits to batches as a data set; returns the commitment, and the batches in the order of use.

    Args:
        batches: The data.
        verifiable: Randomness from which, with the data, the order follows; by default they are used as they stand.
    """
    whole = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
    count = len(next(iter(whole.values())))
    records = ({name: rows[i] for name, rows in whole.items()} for i in range(count))
    data = DataCommitment.over(records, range(count) if verifiable is None else VerifiableOrder(verifiable, 1))
    order = torch.from_numpy(data.ids())
    size = len(next(iter(batches[0].values())))
    used = [order[at : at + size] for at in range(0, count, size)]
    return data, [{name: rows[each] for name, rows in whole.items()} for each in used]


@dataclass
class Workshop:
    """A bench, and numbered directories.

    Attributes:
        bench: The Verifier, its chips and authorities.
        apart: Whether replays run in confined processes of their own, as they always do outside of tests.
        usual: What plans have that do not say otherwise.
    """

    bench: Bench
    apart: bool = True
    usual: Mapping[str, Any] = field(default_factory=lambda: USUAL)
    _count: int = field(default=0, init=False)

    def place(self) -> Path:
        """A new directory."""
        self._count += 1
        place = self.bench.runs / str(self._count)
        place.mkdir(parents=True)
        return place

    def name(self) -> str:
        """A new name for a chip."""
        self._count += 1
        return f"chip {self._count}"

    def report(self, *chips: str, runs: Path | None = None, **plan: Any) -> dict[str, Any]:
        """Has chips of the station inspected, which are processes or false ones, and returns the report.

        Args:
            chips: Their names.
            runs: What their Prover shows; without it there is none.
            plan: More of the inspection's plan.
        """
        with ExitStack() as stack:
            if runs is not None:
                address = stack.enter_context(self.bench.shown(runs))
                for name in chips:
                    self.bench.register(name, address)
            if not self.apart:
                stack.enter_context(workers_here())
            return self.bench.inspect(*chips, **{**self.usual, **plan})

    def record(
        self,
        training: Training,
        seed: int,
        *,
        verifiable: bool = False,
        begin: Weights | None = None,
        beside: Path | None = None,
        substitute: Callable[[int], Batch] | None = None,
        **options: Any,
    ) -> Recorded:
        """Records a training to its end; its data are committed to.

        Args:
            training: What is trained.
            seed: Of the weights, unless they follow from the data.
            verifiable: Whether order and weights follow from the data.
            begin: Weights of a model that exists before the recording; by default its initialisation is recorded.
            beside: Another transcript of the same Prover, which shows both.
            substitute: Given the number of a step, what it is trained on instead of its batch.
            options: Of the Recorder.
        """
        data, batches = committed(training.batches, verifiable=seed.to_bytes(32, "big") if verifiable else None)
        own = data.seed()
        plain = self.place() / "run"
        usual = {"seed": seed if own is None else own, "data": data, "checkpoint_every": 50}
        with (CheatingRecorder if substitute else Recorder)(plain, **{**usual, **options}) as recorder:
            with recorder.initialisation() if begin is None else nullcontext():
                model = training.build()
            if begin is not None:
                model.load_state_dict(begin)
            optimizer = training.optimizer(model)
            recorder.attach(model, optimizer)
            start = weights_of(model)
            for number, batch in enumerate(batches, 1):
                if isinstance(recorder, CheatingRecorder):
                    recorder.substitute = lambda _, number=number: substitute(number)  # type: ignore[misc]
                with recorder.step(batch):
                    training.step(number, batch, model, optimizer)
        # What a chip would have been told is the model's memory is said in the transcript; without a chip, by hand.
        target = (self.place() if beside is None else beside.parent) / f"run{self._count}"
        path = forge(plain, target, lambda *_: None, data=data, notes=notes(model))
        return Recorded(path, start, weights_of(model), flops_of(path))

    def in_the_middle(self, run: Path, op: int = 5) -> tuple[Path, WrittenChip]:
        """A copy of a run on a chip that took a snapshot in the middle of it, and the chip; the transcript names it."""
        transcript, chip = Transcript.open(run), self.bench.written()
        step = transcript.steps // 2

        def named(tape: Tape, fields: dict[str, Any]) -> None:
            fields["snapshots"] = [(chip.ueid, 2, op)]  # after the chip's boot and the run's beginning

        change = at_step(step, named)
        path = forge(run, self.place() / "run", change, data=transcript.data, notes=transcript.notes)
        chip.told(path).saw(path, step, op)
        return path, chip

    def accused(self, run: Path, *chips: WrittenChip, replays: bool = True, **plan: Any) -> frozenset[str]:
        """Has a run inspected, and returns what it is accused of.

        Args:
            run: A transcript; the Prover shows what lies beside it.
            chips: The chips that ran it; by default one that has it in memory after the last step.
            replays: Whether it can be replayed to its end; else that chip shows anything.
            plan: More of the inspection's plan.
        """
        seen = chips or (self.bench.at_end(run, replays=replays),)
        return accusations(self.bench.inspected(run.parent, *seen, apart=self.apart, **{**self.usual, **plan}))


def notes(model: nn.Module) -> ChipNotes:
    """What a transcript says of its chip: which state is the model's weights."""
    return ChipNotes(tuple(sorted(f"model.{name}" for name, _ in model.named_parameters())))


def accusations(report: Mapping[str, Any]) -> frozenset[str]:
    """Identifiers of a report's violations and warnings."""
    return frozenset(ids(dict(report), "violation") + ids(dict(report), "warning"))
