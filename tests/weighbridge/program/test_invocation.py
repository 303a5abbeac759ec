"""Operations of a tape are tried before it is written: what a replay would find malformed, no Recorder writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.rule_tables import restored
from torch import nn
from zoo.machines import replay_here

from prover import Recorder
from weighbridge.core.errors import TapeError
from weighbridge.numerics.custom import rule
from weighbridge.numerics.rule_table import RULES, Kind
from weighbridge.numerics.schemas import needed
from weighbridge.program.invocation import Trial, WithoutMemory, invocation
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Node, Tape


@torch.library.custom_op("weighbridge_trial::flipped", mutates_args=())
def flipped(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0).contiguous()


@flipped.register_fake
def _described(x: torch.Tensor) -> torch.Tensor:
    if not x.shape[0]:
        raise ValueError("a description that knows no empty tensors")
    return torch.empty_like(x)


@pytest.fixture(scope="module", autouse=True)
def _ruled() -> Iterator[None]:
    with restored():
        rule("weighbridge_trial::flipped", kind="move")(flipped)
        yield


VIEWS = sorted(
    f"{name}.{overload}"
    for name, overload in (key.split(".") for key, rule in RULES.items() if rule.kind is Kind.VIEW)
    if overload in getattr(torch.ops.aten, name).overloads()
)


def record(path: Path, rows: list[int]) -> Transcript:
    with Recorder(path, seed=1) as recorder:
        with recorder.initialisation():
            model = nn.Linear(3, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder.attach(model, optimizer)
        for count in rows:
            with recorder.step(x := torch.ones(count, 3)):
                model(flipped(x)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    return Transcript.open(path)


def test_a_tape_that_a_replay_would_refuse_is_not_written(tmp_path: Path) -> None:
    """The operator runs, but its description fails, and a replay asks that first."""
    with pytest.raises(TapeError, match=r"weighbridge_trial::flipped.*cannot be applied.*knows no empty tensors"):
        record(tmp_path / "run", [4, 0])
    assert Transcript.open(tmp_path / "run").steps == 2
    assert replay_here(tmp_path / "run")["verdict"] == "match"


def test_operations_that_differ_in_sizes_only_are_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr("weighbridge.program.invocation._try", lambda call, node: tried.append(node.op))
    transcript = record(tmp_path / "run", [4, 5, 1])
    written = [transcript.step(number).tape for number in range(transcript.steps)]
    assert len(set(written)) == transcript.steps == 4
    assert tried.count("weighbridge_trial::flipped.default") == len({"rows", "one row"})
    again = len(tried)
    trial = Trial()
    for digest in written:
        tape = Tape.decode(transcript.tape(digest))
        trial(tape, [0.1] * tape.values)
        trial(tape, [0.2] * tape.values)
    assert len(tried) == 2 * again


@pytest.mark.parametrize("key", VIEWS)
def test_a_view_that_lacks_an_operand_is_refused_by_name(key: str) -> None:
    """Views are not run, so no kernel misses what they lack: each is left out in turn, by position and by name."""
    name, overload = key.split(".")
    names = needed(getattr(getattr(torch.ops.aten, name), overload))
    tape = Tape(refs=[(0, "f32", (2, 3), (3, 1), 0)])
    operands = WithoutMemory(torch.device("meta"), tape, {}, [])
    given = {each: ("t", 0) if each == "self" else 0 for each in names}
    invocation(Node(key, tuple(given.values()), {}, (0,), ()), 5, tape, operands)
    for index, lacking in enumerate(names):
        rest = {each: value for each, value in given.items() if each != lacking}
        for args, kwargs in ((tuple(given.values())[:index], {}), ((), rest)):
            with pytest.raises(TapeError, match=rf"operation 5 \({key}\) lacks its operand '{lacking}'"):
                invocation(Node(key, args, kwargs, (0,), ()), 5, tape, operands)
