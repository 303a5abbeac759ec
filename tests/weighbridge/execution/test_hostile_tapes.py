"""Transcripts made to order by a Prover: each lie in a tape or record is named, and nothing gets past the worker.

A recorded run is changed and signed again, so that every digest and signature is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.forging import at_step, forge, node
from support.recordings import violations
from torch import Tensor, nn

from prover import Recorder
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.numerics.rounding import formats, rounding_log
from weighbridge.transcript.tape import Input, Node, Tape


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps with dropout, a loss that is kept from step to step, and a batch of two tensors on one storage."""
    path = tmp_path_factory.mktemp("honest") / "run"
    with Recorder(path, seed=1) as recorder:
        with recorder.initialisation():
            model = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        recorder.attach(model, optimizer)
        for number in range(3):
            rows = torch.arange(24.0).reshape(6, 4) + number
            with recorder.step({"x": rows[:4], "y": rows[2:]}):
                loss = (model(rows[:4]) - model(rows[2:])).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    return path


def replayed(path: Path, memory: int = 1 << 28) -> dict[str, Any]:
    """Replays in this process."""
    request = {
        "path": path, "steps": None, "device": "cpu", "stop": None, "salt": None, "memory": memory, "seconds": 60,
    }  # fmt: skip
    with torch.no_grad():
        return Replay(request, [], lambda _: None).run()


def outcome(path: Path) -> tuple[str, list[str]]:
    """Returns (verdict, identifiers of the violations) of a replay."""
    result = replayed(path)
    return result["verdict"], violations(result)


def test_a_copy_signed_again_matches(run: Path, tmp_path: Path) -> None:
    assert outcome(forge(run, tmp_path / "copy", lambda *_: None)) == ("match", [])


def _state_twice(tape: Tape, _: dict[str, Any]) -> None:
    first = next(i for i in tape.inputs if i.origin == "state")
    tape.inputs.append(Input(10_000, first.bytes, "state", first.name))


def _two_survivors_of_one_name(tape: Tape, _: dict[str, Any]) -> None:
    name = next(i.name for i in tape.inputs if i.origin == "state")
    slot = next(slot for slot, _ in tape.survivors)
    tape.survivors = [(slot, name)]


def _one_storage_under_two_names(tape: Tape, _: dict[str, Any]) -> None:
    tape.survivors.append((tape.survivors[0][0], "another"))


def _state_survives_again(tape: Tape, _: dict[str, Any]) -> None:
    tape.survivors.append((next(i.slot for i in tape.inputs if i.origin == "state"), "another"))


def _name(name: str) -> Callable[[Tape, dict[str, Any]], None]:
    def change(tape: Tape, _: dict[str, Any]) -> None:
        at = next(n for n, i in enumerate(tape.inputs) if i.origin == "state")
        tape.inputs[at] = replace(tape.inputs[at], name=name)

    return change


def _boolean_reference(tape: Tape, _: dict[str, Any]) -> None:
    at = next(n for n, each in enumerate(tape.nodes) if each.op == "addmm.default")
    node(tape, at, args=(("t", True), *tape.nodes[at].args[1:]))


def _negative_reference(tape: Tape, _: dict[str, Any]) -> None:
    at = next(n for n, each in enumerate(tape.nodes) if each.op == "addmm.default")
    node(tape, at, args=(("t", -1), *tape.nodes[at].args[1:]))


def _birth_of_an_operand(tape: Tape, _: dict[str, Any]) -> None:
    """Two slots on one memory: a checkpoint would part them, so what follows could replay or not as one likes."""
    at = next(n for n, each in enumerate(tape.nodes) if each.op == "add_.Tensor")
    (output,) = tape.nodes[at].outputs
    assert output is not None
    slot, dtype, size, stride, offset = tape.refs[output]
    tape.refs.append((10_000, dtype, size, stride, offset))
    assert tape.nodes[at].args[0] == ("t", output)
    bytes_ = next(i.bytes for i in tape.inputs if i.slot == slot)
    node(tape, at, outputs=(len(tape.refs) - 1,), births=((10_000, bytes_),))


def _drop_what_is_not_there(tape: Tape, _: dict[str, Any]) -> None:
    tape.inputs.append(Input(10_000, 4, "dropped", "nothing"))


def _use_what_was_dropped(tape: Tape, _: dict[str, Any]) -> None:
    at = next(n for n, i in enumerate(tape.inputs) if i.origin == "state")
    tape.inputs[at] = replace(tape.inputs[at], origin="dropped")


def _counter_after(_: Tape, fields: dict[str, Any]) -> None:
    ((name, (before, after)),) = fields["rng"].items()
    fields["rng"] = {name: (before, after + 5)}


def _generator_that_nobody_uses(_: Tape, fields: dict[str, Any]) -> None:
    fields["rng"] = {**fields["rng"], "7": (0, 1)}


def _later_first_draw(tape: Tape, fields: dict[str, Any]) -> None:
    at = next(n for n, each in enumerate(tape.nodes) if each.draw is not None)
    ((name, (before, after)),) = fields["rng"].items()
    node(tape, at, draw=(0, 3))
    fields["rng"] = {name: (before - 3, after)}


def _other_rows_below(_: Tape, fields: dict[str, Any]) -> None:
    """The batch says one thing of the rows that both of its tensors share, and the other another."""
    batch: dict[str, Tensor] = fields["batch"]
    batch["x"] = batch["x"].clone()
    batch["x"][3] += 1


@pytest.mark.parametrize(
    "change",
    [
        _state_twice, _two_survivors_of_one_name, _one_storage_under_two_names, _state_survives_again,
        _name("~²/3"), _name("~" + "9" * 5000 + "/1"), _name("kept/0/1"), _name("~01/2"),
        _boolean_reference, _negative_reference, _birth_of_an_operand, _drop_what_is_not_there, _use_what_was_dropped,
        _counter_after, _generator_that_nobody_uses, _later_first_draw, _other_rows_below,
    ],
)  # fmt: skip
def test_a_tape_made_to_order_is_refused(
    run: Path, tmp_path: Path, change: Callable[[Tape, dict[str, Any]], None]
) -> None:
    assert outcome(forge(run, tmp_path / "forged", at_step(2, change))) == ("mismatch", ["tape.malformed"])


def test_the_log_is_no_way_in(run: Path, tmp_path: Path) -> None:
    """Rounding whatever is NaN to numbers of the Prover's choice would make any state without an undeclared value."""

    def change(tape: Tape, fields: dict[str, Any]) -> None:
        weight = next(i for i in tape.inputs if i.name == "model.0.weight")
        index = len(tape.refs)
        slot = 10_000
        tape.refs += [(weight.slot, "f32", (24,), (1,), 0), (slot, "f32", (24,), (1,), 0)]
        tape.values += 1
        fields["values"] = [*fields["values"], float("nan")]
        at = len(tape.nodes)
        tape.nodes += [
            Node("full.default", (("l", (24,)), ("v", tape.values - 1)), {}, (index + 1,), ((slot, 96),)),
            Node("sin_.default", (("t", index + 1),), {}, (index + 1,)),
            Node("copy_.default", (("t", index), ("t", index + 1)), {}, (index,)),
        ]
        tape.frees = [(a, s) for a, s in tape.frees if a < at] + [(at + 3, slot)]
        wanted = np.arange(24, dtype=np.float32) + 1
        bits = wanted.view(np.uint32).astype(np.uint64)
        entries = rounding_log.decode(fields["rounding"], max_entries=1 << 20)
        mine = rounding_log.OpEntries(at + 1, 0, np.arange(24), np.zeros(24, dtype=np.uint8), bits)
        fields["rounding"] = rounding_log.encode([*entries, mine])
        fields["logged"] += 24
        checksum = formats.checksum(torch.from_numpy(wanted))
        fields["checksums"] += checksum.to_bytes(8, "little")

    result = replayed(forge(run, tmp_path / "forged", at_step(3, change)))
    assert result["verdict"] == "mismatch"
    assert result["first_difference"]["operation"] == "sin_.default"  # it never reaches the state


def test_what_this_verifier_cannot_replay_accuses_nobody(run: Path, tmp_path: Path) -> None:
    result = replayed(run, memory=100)
    assert result["verdict"] == "inconclusive"
    assert [(f["id"], f["severity"]) for f in result["findings"] if f["id"] != "data.not_precommitted"] == [
        ("tape.too_large", "warning")
    ]
    with pytest.raises(WeighbridgeError) as caught:
        replayed(forge(run, tmp_path / "other", lambda *_: None, rules="00" * 32))
    assert caught.value.reason == "replay.rules.unknown"
