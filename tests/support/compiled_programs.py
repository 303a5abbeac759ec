"""Trainings that are recorded both ways, operation by operation and as compiled steps, and how the two are compared."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from prover import Recorder
from prover.recording.compiled_step import CompiledStep
from weighbridge.attest.manifest import SigningKey

KEY = SigningKey.from_seed(bytes(32)) if hasattr(SigningKey, "from_seed") else SigningKey.generate()

CHANGED = 7
"""The step before which something is changed; the one before it ran as a program."""

Step = Callable[..., Any]


class Arguments(tuple[Any, ...]):
    """What a step is called with, if that is more than its batch."""


def arguments(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, Arguments) else (given,)


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

    def generators(self) -> list[torch.Generator]:
        """Returns those of its own."""
        return []


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


class Brain(Program):
    """Weights, gradients and the optimizer's state are bfloat16."""

    dtype = torch.bfloat16

    def build(self) -> nn.Module:
        return super().build().to(self.dtype)

    def batch(self, number: int, rows: int = 6) -> Any:
        batch = super().batch(number, rows)
        return {**batch, "x": batch["x"].to(self.dtype)}


class Wild(Brain):
    """Subnormal numbers and both zeros, and in the last steps infinities and NaN, after which no weight is a number."""

    dtype = torch.float16

    def batch(self, number: int, rows: int = 6) -> Any:
        batch = super().batch(number, rows)
        batch["x"][:, :3] = torch.tensor([6e-8, -0.0, -3e-7])
        if number > self.steps - 3:
            batch["x"][0, 3:6] = torch.tensor([torch.inf, -torch.inf, torch.nan])
        return batch


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


def one_by_one(recorder: Recorder, function: Step) -> Step:
    def step(*args: Any) -> Any:
        with recorder.step(args[0] if len(args) == 1 else args):
            result = function(*args)
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
            result = step(*arguments(program.batch(number) if given is None else given))
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
        found.append({k: _own(v).tolist() if isinstance(v, Tensor) else v for k, v in held.items()})
        found.append(None if p.grad is None else (_own(p.grad).tolist(), p.grad.stride(), p.grad.requires_grad))
    found += [(n, b.tolist()) for n, b in program.model.named_buffers()]
    return [*found, *(each.get_state().tolist() for each in (torch.default_generator, *program.generators()))]


def _own(t: Tensor) -> Tensor:
    """The part of a tensor that this process has."""
    return cast(Tensor, t.to_local()) if hasattr(t, "to_local") else t


def same_both_ways(tmp_path: Path, kind: type[Program], **options: Any) -> tuple[CompiledStep, list[Any]]:
    """Records both ways and compares every file and all that Python has; returns the compiled step."""
    plain, _, results = recorded(tmp_path / "plain" / "run", kind, compiled=False, **options)
    expected, left = content(tmp_path / "plain" / "run"), python_side(plain)
    program, step, found = recorded(tmp_path / "compiled" / "run", kind, compiled=True, **options)
    assert content(tmp_path / "compiled" / "run") == expected
    assert repr(found) == repr(results), "not by ==, which no NaN is to itself"
    assert repr(python_side(program)) == repr(left)
    assert step is not None
    return step, found


def layer(program: Program, number: int) -> Any:
    return cast(Any, program.model)[number]


def once(change: Callable[[Program, Recorder], Any]) -> Callable[[Program, int, Recorder], Any]:
    return lambda program, number, recorder: change(program, recorder) if number == CHANGED else None
