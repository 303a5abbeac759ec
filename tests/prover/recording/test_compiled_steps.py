"""Steps that run as programs while they are recorded: the transcript is the one of the same steps one by one."""

from __future__ import annotations

import itertools
import os
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prover import Recorder
from prover.recording.compile_refusal import CompileError
from prover.recording.compiled_step import CompiledStep
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.errors import StateChangedError
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.transcript.reader import Transcript

KEY = SigningKey.from_seed(bytes(32)) if hasattr(SigningKey, "from_seed") else SigningKey.generate()

Step = Callable[..., Any]


class Program:
    """A training: a model, its optimizer, what a step does, and what is attached beside."""

    steps = 8
    holds = False
    """Whether the loop holds a result while the next step runs."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = self.build()
        self.optimizer = self.optimize()
        self.beside: list[Any] = self.more()

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Dropout(0.1), nn.Linear(16, 4))

    def optimize(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def more(self) -> list[Any]:
        return [torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 20)]

    def batch(self, number: int, rows: int = 6) -> Any:
        numbers = np.random.default_rng(number)
        x = torch.from_numpy(numbers.standard_normal((rows, 8)).astype(np.float32))
        return {"x": x, "y": torch.from_numpy(numbers.integers(0, 4, rows))}

    def loss(self, batch: Any) -> Tensor:
        return F.cross_entropy(self.model(batch["x"]), batch["y"])

    def function(self, batch: Any) -> Any:
        loss = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def after(self, number: int) -> None:
        for each in self.beside:
            each.step()


class Images(Program):
    def build(self) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(96, 4)
        )

    def optimize(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3, nesterov=True)

    def more(self) -> list[Any]:
        return []

    def batch(self, number: int, rows: int = 4) -> Any:
        numbers = np.random.default_rng(number)
        x = torch.from_numpy(numbers.standard_normal((rows, 3, 8, 8)).astype(np.float32))
        return {"x": x, "y": torch.from_numpy(numbers.integers(0, 4, rows))}


class GradientsStay(Program):
    """Gradients are let go of when the next step begins, and results are held longer than that."""

    holds = True

    def function(self, batch: Any) -> Any:
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return {"loss": loss, "parts": [loss * 2, "text", 3]}


class Accumulating(Program):
    """Two batches make a step, and the schedule goes on within it."""

    def function(self, batch: Any) -> Any:
        for half in range(2):
            part = {name: t[3 * half : 3 * half + 3] for name, t in batch.items()}
            (self.loss(part) / 2).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)
        self.beside[0].step()

    def after(self, number: int) -> None:
        pass


class Autocast(Program):
    def loss(self, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return super().loss(batch)


class Warming(Program):
    """The rate stays for some steps, and changes then."""

    steps = 11

    def more(self) -> list[Any]:
        return [torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=7, gamma=0.5)]


class Checkpointed(Program):
    """Activations are computed again, with the same draws."""

    def loss(self, batch: Any) -> Tensor:
        from torch.utils.checkpoint import checkpoint

        out = checkpoint(self.model, batch["x"], use_reentrant=False)
        return F.cross_entropy(cast(Tensor, out), batch["y"])


class Gpt2(Program):
    """Hugging Face's, with its objects and the empty tensors that PyTorch's attention makes."""

    def build(self) -> nn.Module:
        from transformers import GPT2Config, GPT2LMHeadModel

        names: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0}
        return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=1, n_head=2, **names))

    def batch(self, number: int, rows: int = 2) -> Any:
        return {"input_ids": torch.from_numpy(np.random.default_rng(number).integers(0, 32, (rows, 8)))}

    def loss(self, batch: Any) -> Tensor:
        return cast(Tensor, self.model(**batch, labels=batch["input_ids"]).loss)


KINDS = (Program, Images, GradientsStay, Accumulating, Autocast, Warming, Checkpointed, Gpt2)


def one_by_one(recorder: Recorder, function: Step) -> Step:
    def step(batch: Any) -> Any:
        with recorder.step(batch):
            result = function(batch)
        return result

    return step


def recorded(
    path: Path, kind: type[Program], *, compiled: bool, steps: int | None = None,
    disturb: Callable[[Program, int, Recorder], Any] = lambda program, number, recorder: None,
    stop: int | None = None, **options: Any,
) -> tuple[Program, CompiledStep | None, list[Any]]:  # fmt: skip
    """Records a program; `disturb` is called before each step, and what it returns is the batch, if anything."""
    path.parent.mkdir(exist_ok=True, parents=True)
    options = {"seed": 3, "device": "cpu", "key": KEY, "checkpoint_every": 3, **options}
    results = []
    with Recorder(path, **options) as recorder:
        with recorder.initialisation():
            program = kind()
        recorder.attach(program.model, program.optimizer, *program.beside)
        made = recorder.compile(program.function)
        step: Step = made if compiled else one_by_one(recorder, program.function)
        result: Any = None
        for number in range(recorder.updates, steps or program.steps):
            if number == stop:
                raise KeyboardInterrupt
            given = disturb(program, number, recorder)
            result = step(program.batch(number) if given is None else given)
            program.after(number)
            results.append(numbers_of(result))
            if not program.holds:
                result = None
    return program, made, results


def numbers_of(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.item()
    if isinstance(result, dict):
        return {key: numbers_of(each) for key, each in result.items()}
    return [numbers_of(each) for each in result] if isinstance(result, list) else result


def content(path: Path) -> dict[str, bytes]:
    """Every file but the manifest, which says when it was made, and lists these files with their digests."""
    files = {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}
    del files["manifest.json"]
    return files


def python_side(program: Program) -> list[Any]:
    """What a step leaves in Python's hands, contents included."""
    found: list[Any] = [
        *program.optimizer.state_dict()["param_groups"],
        *(each.state_dict() for each in program.beside),
    ]
    for p in program.model.parameters():
        held = program.optimizer.state.get(p, {})
        found.append({k: v.tolist() if isinstance(v, Tensor) else v for k, v in held.items()})
        found.append(None if p.grad is None else (p.grad.tolist(), p.grad.stride(), p.grad.requires_grad))
    found += [(n, b.tolist()) for n, b in program.model.named_buffers()]
    return [*found, torch.default_generator.initial_seed()]


def same_both_ways(tmp_path: Path, kind: type[Program], **options: Any) -> tuple[CompiledStep, list[Any]]:
    """Records both ways and compares every file and all that Python has; returns the compiled step."""
    plain, _, results = recorded(tmp_path / "plain" / "run", kind, compiled=False, **options)
    expected, left = content(tmp_path / "plain" / "run"), python_side(plain)
    program, step, found = recorded(tmp_path / "compiled" / "run", kind, compiled=True, **options)
    assert content(tmp_path / "compiled" / "run") == expected
    assert found == results
    assert python_side(program) == left
    assert step is not None
    return step, found


ESSENTIAL = {(Images, "on-demand")}


@pytest.mark.parametrize(
    ("kind", "logs"),
    [
        pytest.param(kind, logs, marks=[pytest.mark.essential] if (kind, logs) in ESSENTIAL else [])
        for kind in KINDS
        for logs in ("full", "on-demand")
    ],
)
def test_compiled_steps_leave_the_transcript_and_the_python_of_plain_ones(
    tmp_path: Path, kind: type[Program], logs: str
) -> None:
    step, _ = same_both_ways(tmp_path, kind, logs=logs)
    assert step.compiled >= 2, step.reason
    assert step.recorded + step.compiled == kind.steps


def layer(program: Program, number: int) -> Any:
    return cast(Any, program.model)[number]


# -- guards: each is broken once, after steps have run as programs -----------------------------------------------------

CHANGED = 7
"""The step before which something is changed; the one before it ran as a program."""


def set_rate(program: Program, recorder: Recorder) -> None:
    program.optimizer.param_groups[0]["lr"] = 0.5


def set_decay(program: Program, recorder: Recorder) -> None:
    program.optimizer.param_groups[0]["weight_decay"] = 0.0


def evaluate(program: Program, recorder: Recorder) -> None:
    program.model.eval()


def freeze(program: Program, recorder: Recorder) -> None:
    layer(program, 0).weight.requires_grad_(False)


def hook(program: Program, recorder: Recorder) -> None:
    layer(program, 0).register_forward_hook(lambda module, args, out: out * 2)


def hook_gradient(program: Program, recorder: Recorder) -> None:
    layer(program, 0).weight.register_hook(lambda grad: grad * 2)


def patch_forward(program: Program, recorder: Recorder) -> None:
    plain = program.model.forward
    program.model.forward = lambda x: plain(x) + 1


def patch_class(program: Program, recorder: Recorder) -> None:
    cast(Any, program.model)[1] = nn.Tanh()


def patch_function(program: Program, recorder: Recorder) -> None:
    program.loss = lambda batch: Program.loss(program, batch) * 3  # type: ignore[method-assign]


def set_dropout(program: Program, recorder: Recorder) -> None:
    layer(program, 3).p = 0.5


def larger_batch(program: Program, recorder: Recorder) -> Any:
    return program.batch(CHANGED, rows=9)


def strided_batch(program: Program, recorder: Recorder) -> Any:
    batch = program.batch(CHANGED)
    return {**batch, "x": batch["x"].t().contiguous().t()}


def aliased_batch(program: Program, recorder: Recorder) -> Any:
    whole = torch.zeros(12, 8)
    whole[3:9] = program.batch(CHANGED)["x"]
    return {"x": whole[3:9], "y": program.batch(CHANGED)["y"]}


def weights_in_an_edit(program: Program, recorder: Recorder) -> None:
    with recorder.edit(), torch.no_grad():
        layer(program, 0).weight.mul_(2)


def new_weights(program: Program, recorder: Recorder) -> None:
    with recorder.edit(), torch.no_grad():
        layer(program, 0).bias.data = layer(program, 0).bias.data.clone()


def seed(program: Program, recorder: Recorder) -> None:
    torch.manual_seed(99)


def forget_momentum(program: Program, recorder: Recorder) -> None:
    with recorder.edit():
        program.optimizer.state.clear()


def count_anew(program: Program, recorder: Recorder) -> None:
    with recorder.edit(), torch.no_grad():
        for held in program.optimizer.state.values():
            held["step"].fill_(100.0)


def deterministic(program: Program, recorder: Recorder) -> None:
    torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled())


def keep_gradient(program: Program, recorder: Recorder) -> None:
    program.kept = layer(program, 0).weight.grad  # type: ignore[attr-defined]


CHANGES = (
    set_rate, set_decay, evaluate, freeze, hook, hook_gradient, patch_forward, patch_class, patch_function, set_dropout,
    larger_batch, strided_batch, aliased_batch, weights_in_an_edit, new_weights, seed, forget_momentum, count_anew,
    deterministic,
)  # fmt: skip
STAYS = {aliased_batch, new_weights, weights_in_an_edit, seed, count_anew}
"""Those after which the program still is what the function does."""


@pytest.fixture(autouse=True)
def switches() -> Iterator[None]:
    with warnings.catch_warnings(action="ignore"):
        yield
    torch.use_deterministic_algorithms(False)


def once(change: Callable[[Program, Recorder], Any]) -> Callable[[Program, int, Recorder], Any]:
    return lambda program, number, recorder: change(program, recorder) if number == CHANGED else None


class Quick(Program):
    """Its rate stays, and it draws nothing in its first layers, so that few steps are enough."""

    steps = 9

    def more(self) -> list[Any]:
        return []

    def function(self, batch: Any) -> Any:
        loss = self.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self.optimizer.zero_grad()


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_changes_between_steps_is_noticed(tmp_path: Path, change: Callable[[Program, Recorder], Any]) -> None:
    step, _ = same_both_ways(tmp_path, Quick, disturb=once(change), steps=12, logs="on-demand", checkpoint_every=50)
    assert step.compiled >= 3, step.reason
    if change in STAYS:
        assert step.recorded == 3, step.reason
    else:
        assert step.recorded > 3


class Plain(Images):
    """Its update makes nothing but constants of a rate."""

    steps = 12


def test_a_rate_set_by_hand_is_known_again_after_two_steps(tmp_path: Path) -> None:
    step, _ = same_both_ways(tmp_path, Plain, disturb=once(set_rate), logs="on-demand")
    assert step.recorded == 4 + 2, step.reason


class Shuffled(Images):
    """Its batches are drawn outside of steps from the generator that steps with dropout would draw from."""

    def batch(self, number: int, rows: int = 4) -> Any:
        return super().batch(int(torch.randint(1000, ())), rows)


def test_draws_between_steps_go_on_as_they_would(tmp_path: Path) -> None:
    step, _ = same_both_ways(tmp_path, Shuffled, logs="on-demand")
    assert step.compiled >= 3, step.reason


def test_a_gradient_that_a_program_keeps_is_noticed(tmp_path: Path) -> None:
    step, _ = same_both_ways(tmp_path, GradientsStay, disturb=once(keep_gradient), logs="on-demand")
    assert step.compiled


def test_every_structure_has_a_program_of_its_own(tmp_path: Path) -> None:
    def turns(program: Program, number: int, recorder: Recorder) -> Any:
        return program.batch(number, rows=6 if number % 2 else 4)

    step, _ = same_both_ways(tmp_path, Quick, disturb=turns, steps=10, logs="on-demand")
    assert step.compiled == 5, step.reason


def test_a_change_of_state_by_hand_ends_the_recording_as_ever(tmp_path: Path) -> None:
    def by_hand(program: Program, number: int, recorder: Recorder) -> None:
        if number == CHANGED:
            with torch.no_grad():
                layer(program, 0).weight.mul_(2)

    with pytest.raises(StateChangedError, match=r"model.0.weight"):
        recorded(tmp_path / "run", Quick, compiled=True, disturb=by_hand)


@pytest.mark.parametrize("logs", ["full", "on-demand"])
def test_a_recording_of_compiled_steps_goes_on_after_a_crash(tmp_path: Path, logs: str) -> None:
    recorded(tmp_path / "plain" / "run", Program, compiled=False, logs=logs, steps=14)
    with pytest.raises(KeyboardInterrupt):
        recorded(tmp_path / "again" / "run", Program, compiled=True, logs=logs, steps=14, resume=True, stop=7)
    _, step, _ = recorded(tmp_path / "again" / "run", Program, compiled=True, logs=logs, steps=14, resume=True)
    assert step is not None
    assert step.compiled
    again = content(tmp_path / "again" / "run")
    assert again.pop("resumptions.cbor")
    assert again == content(tmp_path / "plain" / "run")


# -- refusals ----------------------------------------------------------------------------------------------------------


class Reads(Quick):
    def function(self, batch: Any) -> Any:
        super().function(batch)
        return self.loss(batch).item()


class Decides(Quick):
    def function(self, batch: Any) -> Any:
        if self.loss(batch) > 0:
            super().function(batch)


class ReadsByNumPy(Quick):
    def function(self, batch: Any) -> Any:
        float(self.loss(batch).detach().numpy())
        super().function(batch)


class Counts(Quick):
    count = 0

    def function(self, batch: Any) -> Any:
        self.count += 1
        super().function(batch)


class Hidden(Quick):
    """Decides by something that no look sees."""

    def function(self, batch: Any) -> Any:
        if os.environ.get("WEIGHBRIDGE_TEST_HIDDEN") == "1":
            batch = {**batch, "x": batch["x"] * 2}
        super().function(batch)

    def after(self, number: int) -> None:
        os.environ["WEIGHBRIDGE_TEST_HIDDEN"] = str(number % 2)


class Iterates(Quick):
    numbers = itertools.count()

    def function(self, batch: Any) -> Any:
        next(self.numbers)
        super().function(batch)


class Pops(Quick):
    def function(self, batch: Any) -> Any:
        batch["z"] = 1
        super().function(batch)


class Draws(Quick):
    def function(self, batch: Any) -> Any:
        random.random()
        super().function(batch)


class SetsRate(Quick):
    def function(self, batch: Any) -> Any:
        super().function(batch)
        self.optimizer.param_groups[0]["lr"] *= 0.9


class OwnSchedule(Quick):
    def after(self, number: int) -> None:
        self.optimizer.param_groups[0]["lr"] *= 1.0 - 0.3 * random.Random(number).random()


class OwnOptimizer(Quick):
    def optimize(self) -> torch.optim.Optimizer:
        return torch.optim.RAdam(self.model.parameters(), lr=1e-2)


class KeepsGraph(Quick):
    def function(self, batch: Any) -> Any:
        return self.loss(batch)


ONES = np.ones((6, 8), dtype=np.float32)


class TakesIn(Quick):
    def function(self, batch: Any) -> Any:
        x = batch["x"] + torch.from_numpy(ONES)
        super().function({**batch, "x": x})


class Masks(Quick):
    def function(self, batch: Any) -> Any:
        chosen = batch["y"] < 3
        super().function({"x": batch["x"][chosen], "y": batch["y"][chosen]})


class Returns(Quick):
    def function(self, batch: Any) -> Any:
        super().function(batch)
        return self.model


class Seeds(Quick):
    def function(self, batch: Any) -> Any:
        torch.manual_seed(5)
        super().function(batch)


REFUSALS: dict[type[Program], str] = {
    Reads: "looks at a result",
    Decides: "looks at a result",
    ReadsByNumPy: r"looks at a result \(numpy\)",
    Iterates: "leads to a count",
    Hidden: "decides by something",
    Pops: "changes its arguments",
    Counts: r"it changes .*count; do that outside",
    Draws: "draws random numbers of Python's",
    SetsRate: "it sets a number",
    OwnSchedule: "lr of an optimizer changes from step to step by no",
    OwnOptimizer: "RAdam",
    KeepsGraph: "outlives it",
    TakesIn: "neither state nor",
    Masks: "shape of what index",
    Returns: "it returns a Sequential",
    Seeds: "it seeds",
}


@pytest.mark.finding("record.compile.refused")
@pytest.mark.parametrize("kind", REFUSALS)
def test_what_no_tape_says_is_refused_before_anything_is_done(tmp_path: Path, kind: type[Program]) -> None:
    with pytest.raises(CompileError, match=REFUSALS[kind]) as refusal:
        recorded(tmp_path / "run", kind, compiled=True, steps=7, logs="on-demand")
    assert refusal.value.reason == "record.compile.refused"


class Environment(Quick):
    """Asks the environment what to do, which no look sees; the answer changes after steps have run as programs."""

    def function(self, batch: Any) -> Any:
        loss = self.loss(batch) * (3 if os.environ.get("WEIGHBRIDGE_TEST_HIDDEN") == "1" else 1)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def test_what_is_not_noticed_leaves_a_transcript_of_what_was_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit that docs/recording.md states: the program goes on, and the transcript says what it did."""

    def turn(program: Program, number: int, recorder: Recorder) -> None:
        monkeypatch.setenv("WEIGHBRIDGE_TEST_HIDDEN", "1" if number >= CHANGED else "0")

    for compiled in (False, True):
        recorded(tmp_path / str(compiled) / "run", Environment, compiled=compiled, disturb=turn, logs="on-demand")
    plain, other = (Transcript.open(tmp_path / str(compiled) / "run") for compiled in (False, True))
    assert plain.step(CHANGED).state == other.step(CHANGED).state
    assert plain.step(CHANGED + 1).state != other.step(CHANGED + 1).state
    request = {
        "path": tmp_path / "True" / "run", "steps": None, "device": "cpu", "stop": None, "salt": "", "memory": 1 << 30,
        "seconds": 60,
    }  # fmt: skip
    with torch.no_grad():
        assert Replay(request, [], lambda _: None).run()["verdict"] == "match"


def test_a_refused_function_is_recorded_as_it_is(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", seed=3, device="cpu") as recorder:
        program = Reads()
        recorder.attach(program.model, program.optimizer)
        step = recorder.compile(program.function)
        for number in range(6):
            try:
                step(program.batch(number))
            except CompileError:
                with recorder.step(program.batch(number)):
                    program.function(program.batch(number))
    assert Transcript.open(tmp_path / "run").steps == 7


def test_a_function_that_cannot_be_compiled_later_is_recorded_with_a_warning(tmp_path: Path) -> None:
    def reads(program: Program, number: int, recorder: Recorder) -> None:
        if number == CHANGED:
            program.loss = lambda batch: Program.loss(program, batch) * float(batch["x"].max())  # type: ignore[method-assign]

    _, step, _ = recorded(tmp_path / "run", Quick, compiled=True, steps=CHANGED + 4, disturb=reads, logs="on-demand")
    assert step is not None
    assert step.compiled == CHANGED - 3
    assert "looks at a result" in step.reason


@pytest.mark.parametrize("device", [None, "meta"])
def test_other_devices_are_refused(tmp_path: Path, device: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    recorder = Recorder(tmp_path / "run", seed=3, device=device)
    with pytest.raises(CompileError, match="CPU"):
        recorder.compile(lambda batch: None)
