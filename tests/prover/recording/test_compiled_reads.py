"""Compiled steps of functions that read numbers from tensors, and decide by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from prover import Recorder
from prover.recording.compile_refusal import CompileError
from tests.support.compiled_programs import CHANGED, Gpt2, Images, Program, Quick, layer, once, recorded, same_both_ways

pytestmark = pytest.mark.filterwarnings("ignore")


class Masked(Gpt2):
    """With an attention mask of ones, which Transformers asks for by a number that it reads."""

    def batch(self, number: int, rows: int = 2) -> Any:
        return {**super().batch(number, rows), "attention_mask": torch.ones(rows, 8, dtype=torch.long)}


class Padded(Masked):
    """Every other batch has padding, so that another mask is made."""

    steps = 10

    def batch(self, number: int, rows: int = 2) -> Any:
        batch = super().batch(number, rows)
        batch["attention_mask"][1, 8 - 3 * (number % 2) :] = 0
        return batch


def test_each_value_of_a_mask_has_its_program(tmp_path: Path) -> None:
    step, _ = same_both_ways(tmp_path, Padded, logs="on-demand")
    assert step.compiled == Padded.steps - 6, step.reason


def pad(program: Program, recorder: Recorder) -> Any:
    batch = program.batch(CHANGED)
    batch["attention_mask"][0, 5:] = 0
    return batch


def test_a_mask_that_is_another_once_is_noticed_and_recorded_as_ever(tmp_path: Path) -> None:
    step, _ = same_both_ways(tmp_path, Masked, logs="full", steps=CHANGED + 1, disturb=once(pad))
    assert step.compiled == CHANGED - 4
    assert "looks at a result that is not what it was" in step.reason


# -- a function that decides by what it reads, wherever it can ---------------------------------------------------------


class Small(Quick):
    """Nothing is drawn, and each kind of batch comes by turns that no look sees."""

    turns = "001021201201212010210210"
    steps = len(turns)

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 4))

    def batch(self, number: int, rows: int = 6) -> Any:
        turn = int(self.turns[number % self.steps])
        rest = torch.tensor([7, turn, (0, 1, 99)[turn]])  # what is read lies in the middle of other memory
        return {**super().batch(number, rows), "turn": rest[1], "at": rest[2:]}


class Decides(Small):
    """Computes, repeats and scales by what it reads, in its forward pass, its backward pass and its optimizer."""

    def optimize(self) -> torch.optim.Optimizer:
        optimizer = super().optimize()
        optimizer.register_step_pre_hook(self.before)
        return optimizer

    def loss(self, batch: Any) -> Tensor:
        turn, x = batch["turn"], batch["x"]
        for _ in range(int(turn)):
            x = torch.tanh(x)
        loss = super().loss({**batch, "x": x})
        if turn < 2 and bool((x.abs()[batch["at"]] >= 0).all()):  # else `at` is no row at all
            loss = loss * (1.0 + turn.item() / 3)
        loss = loss * (2 if torch.equal(turn.view(1), batch["at"]) else torch.linspace(0, 1, 3)[1].item())
        loss.register_hook(lambda grad: grad * 2 if turn == 1 else None)
        return loss * 3 if layer(self, 0).weight.abs().max() > 10 else loss

    def function(self, batch: Any) -> None:
        self.turn = batch["turn"]
        super().function(batch)
        del self.turn

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self.turn > 1:
            for p in self.model.parameters():
                p.grad *= 2  # type: ignore[operator]


def test_no_decision_makes_another_transcript(tmp_path: Path) -> None:
    def grow(program: Program, number: int, recorder: Recorder) -> None:
        if number == 14:
            with recorder.edit(), torch.no_grad():
                layer(program, 0).weight.mul_(100)

    step, _ = same_both_ways(tmp_path, Decides, logs="on-demand", checkpoint_every=50, disturb=grow)
    assert step.compiled == 7 + 4, step.reason


# -- reads that cannot be foreseen -------------------------------------------------------------------------------------


class AfterItsUpdate(Small):
    def function(self, batch: Any) -> Any:
        super().function(batch)
        return self.loss(batch).item()


class ByItsDraws(Quick):
    def function(self, batch: Any) -> Any:
        if self.loss(batch) > 0:
            super().function(batch)


class ByItsLoss(Small):
    def loss(self, batch: Any) -> Tensor:
        loss = super().loss(batch)
        assert loss < 100
        return loss


class ByAnotherNumber(Small):
    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) * float(batch["x"].max())


class Scales(Small):
    """As for 16-bit types: whether a step is made is decided by gradients."""

    def more(self) -> list[Any]:
        return [torch.amp.GradScaler("cpu", init_scale=2.0)]

    def function(self, batch: Any) -> None:
        (scaler,) = self.beside
        scaler.scale(self.loss(batch)).backward()
        scaler.step(self.optimizer)
        scaler.update()
        self.optimizer.zero_grad()

    def after(self, number: int) -> None:
        pass


class Clips(Small):
    def function(self, batch: Any) -> None:
        self.loss(batch).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, error_if_nonfinite=True)
        self.optimizer.step()
        self.optimizer.zero_grad()


class ByItsStatistics(Images):
    """A batch norm has counted on before it is asked."""

    def function(self, batch: Any) -> Any:
        self.loss(batch).backward()  # type: ignore[no-untyped-call]
        if layer(self, 1).num_batches_tracked > 100:
            return
        self.optimizer.step()
        self.optimizer.zero_grad()


REFUSED: dict[type[Program], str] = {
    AfterItsUpdate: r"looks at a result .* changes model\.",
    ByItsDraws: r"looks at a result .* \(bernoulli.*draws random numbers",
    ByItsLoss: r"assert loss < 100 looks at a result .* too many to do twice",
    ByAnotherNumber: "another one in each call",
    Scales: "looks at a result",
    Clips: "too many to do twice",
    ByItsStatistics: r"that changes model\.1\.num_batches_tracked",
}


@pytest.mark.finding("record.compile.refused")
@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_a_read_that_cannot_be_foreseen_is_refused_with_its_line(tmp_path: Path, kind: type[Program]) -> None:
    with pytest.raises(CompileError, match=REFUSED[kind]) as refusal:
        recorded(tmp_path / "run", kind, compiled=True, steps=7, logs="on-demand")
    assert "return the tensor and look at it after the step" in str(refusal.value)
