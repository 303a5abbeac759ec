"""What a compiled step looks at before each call; each is broken once, after steps have run as programs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn

from prover import Recorder
from tests.support.compiled_programs import (
    CHANGED,
    GradientsStay,
    Images,
    Program,
    Quick,
    layer,
    once,
    recorded,
    same_both_ways,
)
from weighbridge.core.errors import StateChangedError
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.transcript.reader import Transcript


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


def test_a_gradient_that_a_program_keeps_is_noticed(tmp_path: Path) -> None:
    step, _ = same_both_ways(tmp_path, GradientsStay, disturb=once(keep_gradient), logs="on-demand")
    assert step.compiled


def test_a_change_of_state_by_hand_ends_the_recording_as_ever(tmp_path: Path) -> None:
    def by_hand(program: Program, number: int, recorder: Recorder) -> None:
        if number == CHANGED:
            with torch.no_grad():
                layer(program, 0).weight.mul_(2)

    with pytest.raises(StateChangedError, match=r"model.0.weight"):
        recorded(tmp_path / "run", Quick, compiled=True, disturb=by_hand)


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
