"""What an operation's operands came from: the last to write each part, however it was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.forging import at_step, forge, where
from support.recordings import replay_here, train
from torch import Tensor, nn

from weighbridge.execution import location
from weighbridge.execution.location import MAX_UPSTREAM, locate, upstream_line
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Input, Node, Tape

HALF = ((0, "f32", (4,), (1,), 0), (0, "f32", (4,), (1,), 4))
WHOLE = (0, "f32", (8,), (1,), 0)


def sources(tape: Tape, op: int) -> list[tuple[str, str, str, int | None]]:
    found = locate(tape, op)["upstream"]
    return [(each["operand"], each["origin"], each["name"], each["op"]) for each in found]


def written_in_parts() -> Tape:
    """w (state, 32 bytes): its first half is doubled, then both are summed; the sum is scaled by value 0."""
    return Tape(
        inputs=[Input(0, 32, "state", "model.w"), Input(1, 16, "batch", "x\ny")],
        refs=[*HALF, WHOLE, (1, "f32", (4,), (1,), 0), (2, "f32", (8,), (1,), 0), (2, "f32", (0,), (1,), 0)],
        nodes=[
            Node("mul_.Tensor", (("t", 0), ("t", 3)), {}, (0,), path=0),
            Node("add.Tensor", (("t", 2), ("t", 2)), {}, (4,), ((2, 32),)),
            Node("mul_.Tensor", (("t", 4), ("v", 0)), {}, (4,)),
            Node("alias.default", (("t", 4),), {}, (4,)),
            Node("neg.default", (("t", 4),), {}, (4,)),
            Node("relu.default", (("t", 1),), {}, (1,)),
            Node("cat.default", (("l", (("t", 1), ("t", 5), ("t", 0))),), {}, (2,)),
            Node("no.such", (("t", 0),), {}, ()),
        ],
        values=1,
        survivors=[(2, "model.v")],
        paths=["model.layer"],
    )


def test_each_part_of_an_operand_has_its_source() -> None:
    tape = written_in_parts()
    assert sources(tape, 0) == [("self", "state", "model.w", None), ("other", "batch", "x, y", None)]
    both = [("mul_.Tensor", "operation", 0), ("model.w", "state", None)]
    assert sources(tape, 1) == [(n, kind, name, op) for n in ("self", "other") for name, kind, op in both]
    assert locate(tape, 1)["upstream"][0]["path"] == "model.layer"
    assert sources(tape, 2) == [("self", "operation", "add.Tensor", 1), ("other", "value", "0", None)]
    assert sources(tape, 4) == [("self", "operation", "mul_.Tensor", 2)], "a view writes nothing"
    assert sources(tape, 5) == [("self", "state", "model.w", None)], "the other half was written"
    assert sources(tape, 6) == [("tensors", "state", "model.w", None), ("tensors", "operation", "mul_.Tensor", 0)]


def test_an_operation_that_does_not_exist_is_no_error() -> None:
    assert sources(written_in_parts(), 7) == [("0", "operation", "mul_.Tensor", 0)]


def test_many_operands_are_cut() -> None:
    tape = written_in_parts()
    tape.nodes.append(Node("cat.default", (("l", (("t", 0),) * 100),), {}, ()))
    assert len(locate(tape, 8)["upstream"]) == MAX_UPSTREAM


def test_lines_for_a_person() -> None:
    tape = written_in_parts()
    lines = [upstream_line(source) for source in locate(tape, 1)["upstream"]]
    assert lines[0] == "self f32[8]: operation 0 (mul_.Tensor) in model.layer"
    assert lines[1] == "self f32[8]: state model.w"
    assert upstream_line(locate(tape, 2)["upstream"][1]) == "other: value 0"


@pytest.mark.parametrize(
    "raw",
    [
        {}, {"path": 1, "upstream": []}, {"path": None, "upstream": [1]}, {"path": None, "upstream": [{}]},
        {"path": None, "upstream": None},
    ],
)  # fmt: skip
def test_what_a_worker_says_is_read_as_hostile(raw: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        location.checked(raw)


def test_what_locate_says_passes_and_long_texts_are_cut() -> None:
    said = locate(written_in_parts(), 1)
    assert location.checked(said) == said
    assert location.checked({"path": "m\ud800" * 5000, "upstream": []})["path"] == ("m?" * 5000)[:1000]


# --- in a replay ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    generator = torch.Generator().manual_seed(2)

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.5), nn.Linear(5, 1))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    path = tmp_path_factory.mktemp("runs") / "run"
    train(path, build, step, [torch.randn(3, 6, generator=generator) for _ in range(2)])
    return path


def test_a_mismatch_says_where_it_is_and_where_its_operands_came_from(run: Path, tmp_path: Path) -> None:
    def other_scale(tape: Tape, fields: dict[str, Any]) -> None:
        scale = next(value for value in tape.nodes[where(tape, "div_.Scalar")].args if value[0] == "v")
        fields["values"][scale[1]] *= 2

    result = replay_here(forge(run, tmp_path / "forged", at_step(2, other_scale)))
    first = result["first_difference"]
    assert (result["verdict"], first["step"], first["operation"]) == ("mismatch", 2, "div_.Scalar")
    assert first["path"] == "model.1"
    assert [source["origin"] for source in first["upstream"]] == ["random", "value"]
    (finding,) = [each for each in result["findings"] if each["id"] == "replay.mismatch"]
    assert finding["message"].endswith("(by the Prover's word this is in model.1)")
    assert finding["evidence"]["path"] == "model.1"


def test_a_difference_outside_operations_has_no_module(run: Path, tmp_path: Path) -> None:
    def other_state(_: Tape, fields: dict[str, Any]) -> None:
        fields["state"] = bytes(32)

    first = replay_here(forge(run, tmp_path / "forged", at_step(2, other_state)))["first_difference"]
    assert (first["operation"], first["path"], first["upstream"]) == ("state", None, [])


def test_names_are_the_provers_and_change_no_verdict(run: Path, tmp_path: Path) -> None:
    """Renamed modules mislead only the reader of the path: the replay still matches."""

    def renamed(_: int, tape: Tape, fields: dict[str, Any]) -> None:
        tape.paths = [f"innocent.{i}" for i in range(len(tape.paths))]

    target = forge(run, tmp_path / "renamed", renamed)
    assert replay_here(target)["verdict"] == "match"
    digests = [[record.tape for record in Transcript.open(path).records()] for path in (run, target)]
    assert digests[0][0] == digests[1][0], "the initialisation names no module"
    assert digests[0][1] != digests[1][1], "paths are part of the content address"
