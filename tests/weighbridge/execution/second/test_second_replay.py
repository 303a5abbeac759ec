"""Replays with the second Executor: honest runs match, and lies are found at the operation that the first one names."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.command_line import weighbridge
from support.float_strategies import any_values
from support.forging import Change, at_step, forge, node, where
from support.recordings import replay_here
from support.second_executor import NEEDED, replay

from prover import Recorder
from prover.recipes.gpt2 import Gpt2
from prover.recipes.recipe import train
from weighbridge.core.errors import ReplayWorkerError
from weighbridge.execution.second.rounding import Entry, checksum, number, ordered
from weighbridge.execution.second_replay import SecondResult, parse
from weighbridge.numerics.rounding import contested, rounding_log
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

pytestmark = NEEDED

GOLDEN = Path(__file__).parents[3] / "golden"
RUN = GOLDEN / "on-chip"
"""A perceptron: four steps, one entry in its logs."""


@pytest.mark.parametrize("name", ["on-chip", "resumed", "digits", pytest.param("arm", marks=pytest.mark.soak)])
def test_honest_runs_match(name: str) -> None:
    """Perceptrons, a net with convolutions and batch norm, and an LSTM that was recorded on another processor."""
    transcript = Transcript.open(GOLDEN / name)
    result = replay(GOLDEN / name)
    assert (result.verdict, result.first_difference, result.lacks) == ("match", None, "")
    assert result.steps == (0, transcript.steps)
    assert result.state == transcript.step(transcript.steps - 1).state.hex()
    assert result.rounded == sum(record.rounded for record in transcript.records())
    assert result.contested == sum(record.logged for record in transcript.records())


@pytest.mark.soak
def test_a_small_gpt2_matches(tmp_path: Path) -> None:
    """Attention, dropout, layer norms, clipped gradients and AdamW, of the demonstration's recipe."""
    recipe = Gpt2(layers=1, width=16, heads=2, context=8, batch_size=2, records=64)
    with Recorder(tmp_path / "run", seed=7, formulas=recipe.formulas()) as recorder:
        train(recipe, recorder, steps=2, seed=7)
    result = replay(tmp_path / "run")
    assert (result.verdict, result.steps) == ("match", (0, 3))


def test_steps_from_a_checkpoint_match() -> None:
    (_, last) = Transcript.open(RUN).checkpoint_steps[0], Transcript.open(RUN).steps
    result = replay(RUN, steps=(last - 1, last))
    assert (result.verdict, result.steps[1]) == ("match", last)


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("chance", "randperm.default"), ("bfloat16", "the policy calibrated"), ("job/rank-0000", "a rank of a job"),
        ("on-demand", "logs that are made on demand"),
    ],
)  # fmt: skip
def test_what_is_not_covered_is_no_match(name: str, lacks: str) -> None:
    result = replay(GOLDEN / name)
    assert (result.verdict, result.lacks, result.first_difference) == ("not covered", lacks, None)


# --- lies: what the first Executor names, the second one names ------------------------------------------------------


def same(run: Path) -> dict[str, Any]:
    """Replays with both; returns where they differ from the transcript, which is the same."""
    first, second = replay_here(run), replay(run)
    assert (first["verdict"], second.verdict) in {("mismatch", "differs"), ("inconclusive", "differs")}
    expected, found = first["first_difference"], second.first_difference
    assert found is not None
    if expected is None:  # of a tape or record that is out of order, the first one says a code only
        assert found["code"] in {finding["id"] for finding in first["findings"]}
        return found
    for name in ("step", "op", "operation", "expected", "found"):
        assert found.get(name, "") == expected[name], name
    return found


def checksum_changed(at: int) -> Change:
    def change(tape: Tape, fields: dict[str, Any]) -> None:
        sums = bytearray(fields["checksums"])
        sums[8 * at] ^= 1
        fields["checksums"] = bytes(sums)

    return at_step(2, change)


def value_changed(tape: Tape, fields: dict[str, Any]) -> None:
    """The learning rate, or what is made of it."""
    at = next(i for i, value in enumerate(fields["values"]) if isinstance(value, float) and 0 < abs(value) < 1)
    fields["values"] = [value * 2 if i == at else value for i, value in enumerate(fields["values"])]


def batch_changed(tape: Tape, fields: dict[str, Any]) -> None:
    fields["batch"] = {
        name: t + 1 if t.is_floating_point() else t for name, t in fields["batch"].items()
    }  # fmt: skip


def host_changed(tape: Tape, fields: dict[str, Any]) -> None:
    fields["host"] = [value + 1 for value in fields["host"]]


def counters_changed(tape: Tape, fields: dict[str, Any]) -> None:
    fields["rng"] = {name: (start + 1, after + 1) for name, (start, after) in fields["rng"].items()}


def state_changed(tape: Tape, fields: dict[str, Any]) -> None:
    fields["state"] = bytes(32)


def operation_changed(tape: Tape, fields: dict[str, Any]) -> None:
    node(tape, where(tape, "relu.default"), op="neg.default")


def freed_early(tape: Tape, fields: dict[str, Any]) -> None:
    fields["checksums"] += bytes(8)


@pytest.mark.parametrize(
    "change",
    [
        checksum_changed(0), checksum_changed(7), checksum_changed(-1), at_step(1, value_changed),
        at_step(2, batch_changed), at_step(1, host_changed), at_step(0, counters_changed), at_step(3, state_changed),
        at_step(2, operation_changed), at_step(1, freed_early),
    ],
    ids=["checksum", "a later one", "the last", "value", "batch", "host", "counters", "state", "operation", "more"],
)  # fmt: skip
def test_both_name_the_same_operation(change: Change, tmp_path: Path) -> None:
    same(forge(RUN, tmp_path / "forged", change))


def entry(op: int, position: int, width: int, bits: int) -> rounding_log.OpEntries:
    return rounding_log.OpEntries(
        op, 0, np.array([position]), np.array([width], dtype=np.uint8), np.array([bits], dtype=np.uint64)
    )


def logged(make: Callable[[Tape, list[rounding_log.OpEntries]], list[rounding_log.OpEntries]]) -> Change:
    """Another rounding log for step 2."""

    def change(tape: Tape, fields: dict[str, Any]) -> None:
        entries = make(tape, rounding_log.decode(fields["rounding"], max_entries=1 << 20))
        fields["rounding"], fields["logged"] = rounding_log.encode(entries), sum(len(e.positions) for e in entries)

    return at_step(2, change)


def flipped(tape: Tape, entries: list[rounding_log.OpEntries]) -> list[rounding_log.OpEntries]:
    return [changed(entries[0], bits=entries[0].bits ^ np.uint64(1)), *entries[1:]]


def on(operation: str, position: int, width: int, bits: int) -> Change:
    return logged(lambda tape, entries: [entry(where(tape, operation), position, width, bits)])


@pytest.mark.parametrize(
    "change",
    [
        logged(flipped), on("addmm.default", 3, 3, 0b101), on("addmm.default", 3, 0, 0x3F800000),
        on("addmm.default", 1 << 20, 1, 0), on("t.default", 0, 1, 0), on("relu.default", 0, 1, 0),
        logged(lambda tape, entries: []),
    ],
    ids=["flipped", "made up", "whole", "past the end", "view", "exact", "none"],
)  # fmt: skip
def test_a_log_made_to_order_is_refused_by_both(change: Change, tmp_path: Path) -> None:
    found = replay(forge(RUN, tmp_path / "forged", change))
    if found.verdict == "differs":
        same(tmp_path / "forged")
    else:  # where the entry was not needed here, as its outcome is that of this machine
        assert (replay_here(tmp_path / "forged")["verdict"], found.verdict) == ("match", "match")


def test_an_operation_without_a_rule_ends_it(tmp_path: Path) -> None:
    """Whatever comes after: a Prover cannot have its lie covered by an operation that nothing here checks."""

    def change(tape: Tape, fields: dict[str, Any]) -> None:
        node(tape, where(tape, "relu.default"), op="celu.default")
        fields["state"] = bytes(32)

    result = replay(forge(RUN, tmp_path / "forged", at_step(1, change)))
    assert (result.verdict, result.lacks, result.steps) == ("not covered", "celu.default", (0, 1))


def asked(operation: str, **fields: Any) -> Change:
    return at_step(2, lambda tape, _: node(tape, where(tape, operation), **fields))


def half(tape: Tape, fields: dict[str, Any]) -> None:
    at = where(tape, "_log_softmax.default")
    node(tape, at, args=(*tape.nodes[at].args[:2], True))


def of_doubles(tape: Tape, fields: dict[str, Any]) -> None:
    at = where(tape, "_log_softmax_backward_data.default")
    node(tape, at, args=(*tape.nodes[at].args[:3], ("d", "f64")))


@pytest.mark.parametrize(
    "change",
    [
        asked("ones_like.default", kwargs={"dtype": ("d", "f64")}),
        asked("ones_like.default", kwargs={"dtype": ("t", 0)}),
        asked("relu.default", kwargs={"dtype": ("d", "i64")}), asked("addmm.default", kwargs={"generator": ("t", 0)}),
        at_step(2, half), at_step(2, of_doubles),
    ],
    ids=["another type", "a tensor", "of what has none", "a generator", "half", "doubles"],
)  # fmt: skip
def test_a_call_that_asks_for_another_type_than_its_result_has_is_no_match(change: Change, tmp_path: Path) -> None:
    """The first Executor names a mismatch; the computation is the same in both."""
    forge(RUN, tmp_path / "forged", change)
    assert replay_here(tmp_path / "forged")["verdict"] == "mismatch"
    assert replay(tmp_path / "forged").verdict != "match"


def called(operation: str, *more: Any, **kwargs: Any) -> Change:
    """Further operands of the first such operation in step 2."""

    def change(tape: Tape, fields: dict[str, Any]) -> None:
        at = where(tape, operation)
        node(tape, at, args=(*tape.nodes[at].args, *more), kwargs={**tape.nodes[at].kwargs, **kwargs})

    return at_step(2, change)


def shortened(operation: str) -> Change:
    """The first such operation in step 2 without its last operand."""

    def change(tape: Tape, fields: dict[str, Any]) -> None:
        at = where(tape, operation)
        node(tape, at, args=tape.nodes[at].args[:-1])

    return at_step(2, change)


@pytest.mark.parametrize(
    ("operation", "change"),
    [
        ("t.default", called("t.default", 0)),
        ("t.default", called("t.default", memo=1)),
        ("t.default", called("t.default", self=("t", 0))),
        ("t.default", called("t.default", dtype=("d", "f32"))),
        ("view.default", called("view.default", ("l", (4,)))),
        ("view.default", called("view.default", implicit=True)),
        ("view.default", shortened("view.default")),
        ("relu.default", shortened("relu.default")),
        ("t.default", asked("t.default", args=())),
        ("detach.default", called("detach.default", ("l", (1,)))),
        ("relu.default", called("relu.default", layout=("lay",))),
        ("ones_like.default", called("ones_like.default", non_blocking=False)),
        ("relu.default", called("relu.default", self=("t", 0))),
        ("view_.default", asked("view.default", op="view_.default")),
        ("mse_loss_.default", asked("relu.default", op="mse_loss_.default")),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_a_call_that_no_schema_has_is_refused_by_both(operation: str, change: Change, tmp_path: Path) -> None:
    """Views compute nothing, so nothing but their schemas says what may stand on a tape."""
    forge(RUN, tmp_path / "forged", change)
    first, second = replay_here(tmp_path / "forged"), replay(tmp_path / "forged")
    assert first["verdict"] in ("mismatch", "inconclusive")
    assert operation in json.dumps(first["findings"])
    assert (second.verdict, second.steps) == ("differs", (0, 2))
    assert second.first_difference is not None
    assert operation in second.first_difference["message"]
    assert second.first_difference["code"] in {finding["id"] for finding in first["findings"]}


def endless_operand(tape: Tape, fields: dict[str, Any]) -> None:
    at = where(tape, "relu.default")
    slot, kind, *_ = tape.refs[tape.nodes[at].args[0][1]]
    tape.refs.append((slot, kind, (1 << 40,), (0,), 0))
    node(tape, at, args=(("t", len(tape.refs) - 1),))


def endless_result(tape: Tape, fields: dict[str, Any]) -> None:
    at = where(tape, "ones_like.default")
    slot, kind, *_ = tape.refs[tape.nodes[at].outputs[0]]
    tape.refs[tape.nodes[at].outputs[0]] = (slot, kind, (1 << 40,), (0,), 0)


def endless_range(tape: Tape, fields: dict[str, Any]) -> None:
    tape.values += 1
    fields["values"] = [*fields["values"], 10**13]
    node(tape, where(tape, "ones_like.default"), op="arange.default", args=(("v", tape.values - 1),), kwargs={})


@pytest.mark.parametrize("change", [endless_operand, endless_result, endless_range])
def test_a_tape_that_asks_for_terabytes_gets_an_answer(
    change: Callable[[Tape, dict[str, Any]], None], tmp_path: Path
) -> None:
    """One number that a stride of 0 makes 2^40: its storage is small, and its copies are not."""
    result = replay(forge(RUN, tmp_path / "forged", at_step(2, change)))
    assert (result.verdict, result.steps) == ("not covered", (0, 2))


# --- the log's entries and the checksum -----------------------------------------------------------------------------


@given(
    y=any_values, e=st.one_of(st.floats(0, 1e30), st.sampled_from([0.0, 1e-30, float("inf")])),
    width=st.integers(0, 35), bits=st.integers(0, (1 << 40) - 1),
)  # fmt: skip
def test_entries_choose_what_they_choose_for_the_first(y: float, e: float, width: int, bits: int) -> None:
    """Two readings of one page of the format: the same value, and the same refusals."""
    values, admissible, _ = contested.decode_entries(
        np.array([y]), np.array([e]), np.array([width], dtype=np.uint8), np.array([bits], dtype=np.uint64)
    )
    chosen = Entry(width, bits).choose(y, e)
    assert (chosen is not None) == bool(admissible[0])
    if chosen is not None:
        assert chosen.view(np.uint32) == values[0].view(np.uint32)


@given(st.integers(0, 0xFFFFFFFF).filter(lambda bits: bits != 0x80000000))
def test_places_in_the_order_of_numbers(bits: int) -> None:
    """`number(ordered(x)) == x` for every pattern but that of -0."""
    x = np.uint32(bits).view(np.float32)
    assert int(number(ordered(x)).view(np.uint32)) == bits


@given(st.lists(st.integers(0, 0xFFFFFFFF), min_size=1, max_size=70))
def test_checksums_are_those_of_the_first(patterns: list[int]) -> None:
    """Of numbers whose NaN are canonical."""
    x = torch.from_numpy(np.array(patterns, dtype=np.uint32).view(np.float32).copy())
    wanted = contested.canonicalise(x)
    assert checksum(x.numpy()) == wanted


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_replays_in_a_confined_process() -> None:
    code, out, _ = weighbridge("replay", RUN, "--executor", "jax", "--json")
    result = json.loads(out)
    assert (code, result["verdict"], result["lacks"]) == (0, "match", "")
    assert "no-network" in result["confinement"] or not result["confinement"]


@pytest.mark.parametrize(
    "options",
    [["--executor", "abacus"], ["--executor", "jax", "--recognise", "1"], ["--executor", "jax", "--rank", "0"]],
)
def test_other_options_are_refused(options: tuple[str, ...]) -> None:
    assert weighbridge("replay", RUN, *options)[0] == 2


def answered(**fields: Any) -> dict[str, Any]:
    return {"result": SecondResult("match", (0, 4), "00" * 32, 9, 1, 0).to_json() | fields}


def test_an_answer_is_read_as_it_was_sent() -> None:
    """`parse({"result": r.to_json()}) == r` but for tuples, which JSON lacks."""
    assert parse(answered()) == SecondResult("match", (0, 4), "00" * 32, 9, 1, 0, confinement=[])


@pytest.mark.parametrize(
    "fields",
    [
        {"verdict": "match given"}, {"state": "00"}, {"rounded": -1}, {"steps": [0]}, {"verdict": "differs"},
        {"first_difference": {"step": 1, "op": 2}}, {"contested": True}, {"steps": "ab"},
        {"verdict": "differs", "first_difference": {"step": -1, "op": 0}},
    ],
)  # fmt: skip
def test_malformed_answers_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ReplayWorkerError):
        parse(answered(**fields))
