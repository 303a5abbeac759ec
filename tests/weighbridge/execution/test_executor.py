"""Replays of real recorded steps: honest ones match, and each lie is named with its step and operation.

Everything here runs in the test's own process; `test_replay` has the worker. `test_executor_refusals` has what must not
run at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.forging import at_step, forge, where
from support.noted_training import POSITIONS, SALT, STEPS, UEID, Notebook, record
from support.recordings import replay_here, violations

from weighbridge.core.errors import WeighbridgeError
from weighbridge.numerics.rounding import rounding_log
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.state import Checkpoint, checkpoint_digest
from weighbridge.transcript.tape import Node, Tape

Fields = dict[str, Any]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Notebook]:
    path = tmp_path_factory.mktemp("runs") / "run"
    return path, record(path)


@pytest.fixture(scope="module")
def run(recorded: tuple[Path, Notebook]) -> Path:
    return recorded[0]


# --- honest ---------------------------------------------------------------------------------------------------------


def test_an_honest_run_matches(run: Path) -> None:
    result, transcript = replay_here(run), Transcript.open(run)
    assert (result["verdict"], result["steps"], violations(result)) == ("match", [0, STEPS + 1], [])
    assert result["state"] == transcript.step(STEPS).state.hex()
    assert result["rounded"] == sum(r.rounded for r in transcript.records()) > 0
    assert result["logged"] == sum(r.logged for r in transcript.records())
    assert result["first_difference"] is None


def test_steps_share_tapes_and_values_are_told_apart(run: Path) -> None:
    """Momentum begins in step 1, whose loss step 2 lets go of: only then does one program run again and again."""
    result = replay_here(run)
    uses = sorted((use["kind"], use["count"], use["free_values"] > 0) for use in result["tapes"].values())
    assert uses == [("init", 1, False), ("step", 1, False), ("step", 1, False), ("step", STEPS - 2, True)], (
        "the learning rate changes and comes from nowhere"
    )


@pytest.mark.parametrize("steps", [(0, 1), (1, 2), (2, 4), (3, 5), (4, 5)])
def test_any_part_replays_from_the_checkpoint_before_it(run: Path, steps: tuple[int, int]) -> None:
    result, transcript = replay_here(run, steps=steps), Transcript.open(run)
    begin = max([c for c in transcript.checkpoint_steps if c <= steps[0]], default=0)
    assert (result["verdict"], result["steps"]) == ("match", [begin, steps[1]])
    assert result["state"] == transcript.step(steps[1] - 1).state.hex()


@pytest.mark.parametrize("steps", [(0, 9), (5, 5), (3, 2), (-1, 2)])
def test_steps_that_are_not_there_are_a_usage_error(run: Path, steps: tuple[int, int]) -> None:
    with pytest.raises(WeighbridgeError) as caught:
        replay_here(run, steps=steps)
    assert caught.value.reason == "usage"


@pytest.mark.parametrize("position", sorted(POSITIONS))
def test_a_stop_has_the_memory_that_the_training_process_had(
    recorded: tuple[Path, Notebook], position: tuple[int, int]
) -> None:
    path, chip = recorded
    running, head, expected = chip.seen[position]
    result = replay_here(path, stop=position, salt=SALT)
    assert result["verdict"] == "match"
    assert (result["running"], result["head"]) == (running.hex(), head.hex())
    live = [(size, bytes.fromhex(digest)) for size, digest in result["live"]]
    for leaf in expected:
        live.remove(leaf)  # as multisets: equal contents are as many here as there
    record = Transcript.open(path).step(position[0])
    assert (UEID, list(chip.seen).index(position) + 1, position[1]) in record.snapshots


def test_a_stop_after_the_last_operation_and_beyond(run: Path) -> None:
    transcript = Transcript.open(run)
    count = len(Tape.decode(transcript.tape(transcript.step(2).tape)).nodes)
    assert replay_here(run, stop=(2, count))["verdict"] == "match"
    assert "tape.malformed" in violations(replay_here(run, stop=(2, count + 1)))
    after = replay_here(run, stop=(STEPS + 1, 0))
    assert after["verdict"] == "match"
    assert after["state"] == transcript.step(STEPS).state.hex()
    with pytest.raises(WeighbridgeError, match="does not exist"):
        replay_here(run, stop=(STEPS + 2, 0))


# --- lies -----------------------------------------------------------------------------------------------------------


def _other_label(_: Tape, fields: Fields) -> None:
    fields["batch"]["y"] = (fields["batch"]["y"] + 1) % 4


def _other_symbol(_: Tape, fields: Fields) -> None:
    fields["batch"]["x"] = (fields["batch"]["x"] + 1) % 12


def _other_rate(tape: Tape, fields: Fields) -> None:
    rate = next(i for i, v in enumerate(fields["values"]) if isinstance(v, float) and abs(v) == 0.1 / 2)
    fields["values"] = [*fields["values"][:rate], fields["values"][rate] * 1.5, *fields["values"][rate + 1 :]]


def _other_loss(_: Tape, fields: Fields) -> None:
    fields["host"] = [*fields["host"][:-1], fields["host"][-1] + 1e-3]


def _loss_as_integer(_: Tape, fields: Fields) -> None:
    fields["host"] = [*fields["host"][:-1], 1]


def _checksum(place: int) -> Callable[[Tape, Fields], None]:
    def change(_: Tape, fields: Fields) -> None:
        sums = np.frombuffer(fields["checksums"], dtype="<u8").copy()
        sums[place] ^= np.uint64(1 << 17)
        fields["checksums"] = sums.tobytes()

    return change


def _fewer_checksums(_: Tape, fields: Fields) -> None:
    fields["checksums"] = fields["checksums"][:-8]


def _state(_: Tape, fields: Fields) -> None:
    fields["state"] = bytes(32)


def _one_operation_more(tape: Tape, fields: Fields) -> None:
    """The weights are doubled at the end, without a checksum for it."""
    weight = next(i for i in tape.inputs if i.name == "model.5.weight")
    tape.refs.append((weight.slot, "f32", (32,), (1,), 0))
    tape.nodes.append(Node("add_.Tensor", (("t", len(tape.refs) - 1),) * 2, {}, (len(tape.refs) - 1,)))


def _constant_over_the_weights(tape: Tape, fields: Fields) -> None:
    """A move needs no checksum; the state's digest finds it."""
    weight = next(i for i in tape.inputs if i.name == "model.5.weight")
    tape.refs.append((weight.slot, "f32", (32,), (1,), 0))
    tape.nodes.append(Node("zero_.default", (("t", len(tape.refs) - 1),), {}, (len(tape.refs) - 1,)))


def _one_operation_less(tape: Tape, _: Fields) -> None:
    """The loss's reading is left out, so a host value is over."""
    tape.nodes.pop(where(tape, "_local_scalar_dense.default"))


LIES: dict[str, tuple[Callable[[Tape, Fields], None], str, str]] = {
    "label": (_other_label, "replay.mismatch", "nll_loss_forward.default"),
    "symbol": (_other_symbol, "replay.mismatch", "addmm.default"),
    "learning rate": (_other_rate, "replay.mismatch", "add_.Tensor"),
    "host value": (_other_loss, "replay.mismatch", "_local_scalar_dense.default"),
    "host value of another type": (_loss_as_integer, "replay.mismatch", "_local_scalar_dense.default"),
    "first checksum": (_checksum(0), "replay.mismatch", "addmm.default"),
    "last checksum": (_checksum(-1), "replay.mismatch", "add_.Tensor"),
    "too few checksums": (_fewer_checksums, "replay.mismatch", "add_.Tensor"),
    "an arithmetic operation more": (_one_operation_more, "replay.mismatch", "add_.Tensor"),
    "a move over the weights": (_constant_over_the_weights, "replay.mismatch", "state"),
}


@pytest.mark.parametrize("lie", LIES)
def test_each_lie_is_named_with_its_step_and_operation(run: Path, tmp_path: Path, lie: str) -> None:
    change, code, operation = LIES[lie]
    result = replay_here(forge(run, tmp_path / "forged", at_step(2, change)))
    assert (result["verdict"], violations(result)) == ("mismatch", [code])
    assert (result["first_difference"]["step"], result["first_difference"]["operation"]) == (2, operation)
    assert result["first_difference"]["expected"] != result["first_difference"]["found"]
    tape = Tape.decode(Transcript.open(tmp_path / "forged").tape(Transcript.open(tmp_path / "forged").step(2).tape))
    op = result["first_difference"]["op"]
    assert operation == "state" or tape.nodes[op].op == operation


def test_another_state_digest_is_named_as_the_state(run: Path, tmp_path: Path) -> None:
    result = replay_here(forge(run, tmp_path / "forged", at_step(3, _state)))
    assert (result["verdict"], violations(result)) == ("mismatch", ["replay.mismatch"])
    assert (result["first_difference"]["step"], result["first_difference"]["operation"]) == (3, "state")
    assert result["first_difference"]["expected"] == "00" * 32


def test_an_operation_that_is_left_out_leaves_a_host_value(run: Path, tmp_path: Path) -> None:
    result = replay_here(forge(run, tmp_path / "forged", at_step(2, _one_operation_less)))
    assert (result["verdict"], violations(result)) == ("mismatch", ["tape.malformed"])


def test_another_seed_is_found_in_the_initialisation(run: Path, tmp_path: Path) -> None:
    result = replay_here(forge(run, tmp_path / "forged", lambda *_: None, seed=4))
    assert (result["verdict"], result["first_difference"]["step"]) == ("mismatch", 0)


def test_a_checkpoint_that_fits_its_record_but_not_its_step(run: Path, tmp_path: Path) -> None:
    """Weights of another origin are slipped in between two segments, and the record before says so too."""
    slipped: dict[int, Checkpoint] = {}

    def other(original: Checkpoint) -> Checkpoint:
        return slipped.get(original.step, original)

    original = Transcript.open(run).checkpoint(3)
    storages = {**original.storages, "model.5.bias": torch.zeros_like(original.storages["model.5.bias"])}
    slipped[3] = replace(original, storages=storages)

    def change(tape: Tape, fields: Fields) -> None:
        fields["state"] = checkpoint_digest(slipped[3])

    path = forge(run, tmp_path / "forged", at_step(2, change), other)
    result = replay_here(path)
    assert (result["first_difference"]["step"], result["first_difference"]["operation"]) == (2, "state")
    assert replay_here(path, steps=(0, 2))["verdict"] == "match"
    assert replay_here(path, steps=(3, 4))["verdict"] == "mismatch", "what follows was computed from the real state"


# --- the rounding log -----------------------------------------------------------------------------------------------


def rewritten(
    change: Callable[[list[rounding_log.OpEntries], Tape], list[rounding_log.OpEntries]],
) -> Callable[[Tape, Fields], None]:
    """A change of a step's rounding log."""

    def apply(tape: Tape, fields: Fields) -> None:
        entries = change(rounding_log.decode(fields["rounding"], max_entries=1 << 20), tape)
        fields["rounding"], fields["logged"] = rounding_log.encode(entries), sum(len(e.positions) for e in entries)

    return apply


def logged_step(run: Path) -> int:
    """A step with a contested element, which a run of this size has in some of its steps."""
    return next(r.step for r in Transcript.open(run).records() if r.logged)


def _flip(entries: list[rounding_log.OpEntries], _: Tape) -> list[rounding_log.OpEntries]:
    first = entries[0]
    bits = first.bits.copy()
    bits[0] ^= np.uint64(1)
    return [replace(first, bits=bits), *entries[1:]]


def test_a_flipped_bit_of_the_log_is_found_where_it_is(run: Path, tmp_path: Path) -> None:
    step = logged_step(run)
    (first, *_) = rounding_log.decode(Transcript.open(run).rounding(step), max_entries=1 << 20)
    result = replay_here(forge(run, tmp_path / "forged", at_step(step, rewritten(_flip))))
    assert (result["verdict"], violations(result)) == ("mismatch", ["replay.mismatch"])
    assert (result["first_difference"]["step"], result["first_difference"]["op"]) == (step, first.op)


def extra(op: int, position: int, width: int, bits: int) -> rounding_log.OpEntries:
    return rounding_log.OpEntries(
        op, 0, np.array([position]), np.array([width], dtype=np.uint8), np.array([bits], dtype=np.uint64)
    )


def added(op: str, position: int, width: int, bits: int) -> Callable[[Tape, Fields], None]:
    """Puts one entry on the first operation of a name, in place of those that are there."""

    def change(entries: list[rounding_log.OpEntries], tape: Tape) -> list[rounding_log.OpEntries]:
        at = where(tape, op)
        return sorted(
            [*(e for e in entries if e.op != at), extra(at, position, width, bits)], key=lambda e: (e.op, e.output)
        )

    return rewritten(change)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (added("addmm.default", 5, 3, 0b101), "replay.rounding.inadmissible"),
        (added("addmm.default", 5, 0, 0x3F800000), "replay.rounding.inadmissible"),
        (added("addmm.default", 1 << 30, 1, 0), "replay.rounding.malformed"),
        (added("view.default", 0, 1, 0), "replay.rounding.malformed"),
        (added("embedding.default", 0, 1, 0), "replay.rounding.malformed"),
    ],
    ids=["other bits", "whole value", "past the end", "for a view", "for a move"],
)
def test_entries_that_no_device_could_have_made(
    run: Path, tmp_path: Path, change: Callable[[Tape, Fields], None], code: str
) -> None:
    result = replay_here(forge(run, tmp_path / "forged", at_step(2, change)))
    assert (result["verdict"], violations(result)) == ("mismatch", [code])
