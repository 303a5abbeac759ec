"""The tree of a step: each leaf follows from the one before it, and what changes shows where it acts first."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.disputed import STEP, Party, cheat, judge_here, record
from support.recording_store import RecordingStore

from weighbridge.core.digests import bytes_digest
from weighbridge.core.errors import FormatError
from weighbridge.core.memory_map import Held
from weighbridge.execution.dispute.asking import Claim, trace
from weighbridge.execution.dispute.leaves import Counters, Leaf, first_difference
from weighbridge.execution.dispute.openings import Contents, Opening
from weighbridge.execution.worker_process import Limits
from weighbridge.numerics.rounding import rounding_log
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape


@pytest.fixture(scope="module")
def run(recordings: RecordingStore) -> Path:
    return recordings.get("disputed", record)


def _operations(run: Path) -> int:
    transcript = Transcript.open(run)
    return len(Tape.decode(transcript.tape(transcript.step(STEP).tape)).nodes)


def test_every_leaf_follows_from_the_one_before(run: Path) -> None:
    told, leaves, made = Party(run).tree()
    assert told.parted == ""
    assert len(told.leaves) == _operations(run) + 2
    assert (leaves[0].memory, leaves[-1].left) == (told.state, Transcript.open(run).step(STEP).state)
    assert made == Transcript.open(run).step(STEP)
    for before, after in itertools.pairwise(leaves):
        assert (before.left, before.after) == (after.memory, after.before)
        assert after.index == before.index + 1
    assert leaves[-1].after.flops > 0
    assert any(leaf.after.rng for leaf in leaves), "dropout draws"
    assert any(leaf.host for leaf in leaves), "the loss is read"


def test_the_referee_finds_every_leaf_of_an_honest_party_admissible(run: Path) -> None:
    told, _, _ = Party(run).tree()
    count = len(told.leaves)
    for place in range(0, count, 4) if count % 4 == 1 else [*range(0, count, 4), count - 1]:
        opening = Party(run).tree(place)[0].opening
        assert opening is not None
        found = judge_here(
            Claim(
                terms=told.terms, tape=told.tape, state=told.state, record=told.record, log=told.log, own=True,
                count=count, index=place, leaf=told.leaves[place], previous=told.leaves[place - 1] if place else b"",
                first=told.leaves[0] if place else b"",
            ),
            opening,
        )  # fmt: skip
        assert found.verdict == "admissible", (place, found)


def test_a_changed_element_changes_first_the_leaf_of_its_operation(run: Path) -> None:
    honest = Party(run).tree()[0]
    for op in (21, 51):
        assert first_difference(honest.leaves, cheat(run, op).tree()[0].leaves) == op + 1


def test_a_record_that_says_something_else_ends_the_tree_before_that_operation(run: Path) -> None:
    said = Transcript.open(run).step(STEP)
    honest, leaves, _ = Party(run).tree()
    sums = bytearray(said.checksums)
    sums[-3] ^= 1
    told = Party(run, record=replace(said, checksums=bytes(sums))).tree()[0]
    last = max(leaf.index for leaf in leaves if leaf.results)
    assert told.leaves == honest.leaves[:last]
    assert "other results" in told.parted
    told = Party(run, record=replace(said, host=[*said.host[:-1], 0.5])).tree()[0]
    assert told.leaves == honest.leaves[: max(leaf.index for leaf in leaves if leaf.host)]
    values = [value + 1 if isinstance(value, float) else value for value in said.values]
    assert Party(run, record=replace(said, values=values)).tree()[0].leaves[0] != honest.leaves[0]


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="there is one instruction set only")
def test_another_instruction_set_gives_the_same_tree(run: Path) -> None:
    here = Party(run).tree(7)[0]
    there = trace(run, STEP, place=7, limits=Limits(2 << 30, 120), env={"ATEN_CPU_CAPABILITY": "default"})
    assert replace(there, seconds=0.0) == here


def test_an_entry_that_no_device_could_have_made_refutes_the_claim_about_its_operation_alone(run: Path) -> None:
    said = Transcript.open(run).step(STEP)
    told = Party(run).tree()[0]
    entry = OpEntries(8, 0, np.array([0]), np.array([0], dtype=np.uint8), np.array([1], dtype=np.uint64))
    log = rounding_log.encode([entry])
    forged = replace(said, rounding=bytes_digest(log), logged=1)
    for op, verdict in ((8, "false"), (5, "admissible")):
        opening = Party(run).tree(op + 1)[0].opening
        assert opening is not None
        found = judge_here(
            Claim(
                terms=told.terms, tape=told.tape, state=told.state, record=forged.to_cbor(), log=bytes_digest(log),
                own=True, count=len(told.leaves), index=op + 1, leaf=told.leaves[op + 1], previous=told.leaves[op],
                first=told.leaves[0],
            ),
            replace(Opening.from_cbor(opening), log=log).to_cbor(),
        )  # fmt: skip
        assert found.verdict == verdict, found
        assert (found.code == "replay.rounding.inadmissible") == (verdict == "false")


# --- encodings ------------------------------------------------------------------------------------------------------

DIGEST = st.binary(min_size=32, max_size=32)
SCALAR = st.integers(-(1 << 63), (1 << 63) - 1) | st.booleans() | st.floats(allow_nan=False)
COUNT = st.integers(0, (1 << 64) - 1)
COUNTERS = st.builds(
    Counters, rng=st.dictionaries(st.integers(0, 9), COUNT), entries=COUNT, chosen=COUNT,
    flops=COUNT, checked=COUNT, hosts=COUNT, rounded=COUNT,
)  # fmt: skip
LEAF = st.builds(
    Leaf, index=COUNT, node=st.just(["aten.add"]), values=st.lists(SCALAR), host=st.lists(SCALAR),
    results=st.lists(st.tuples(DIGEST, COUNT)), before=COUNTERS, after=COUNTERS, memory=DIGEST, left=DIGEST,
)  # fmt: skip
HELD = st.builds(Held, st.integers(0, 1 << 61), DIGEST)
OPENING = st.builds(
    Opening, log=st.binary(), previous=st.binary(),
    slots=st.lists(st.tuples(st.integers(0, 9), st.none() | st.binary(), st.none() | HELD, st.lists(DIGEST))),
    state=st.builds(
        Contents, st.dictionaries(st.text(), HELD, max_size=3),
        st.dictionaries(st.text(), st.integers(0, 9), max_size=3),
    ),
    memory=st.dictionaries(st.integers(0, 9), HELD, max_size=3),
)  # fmt: skip


@given(LEAF)
def test_a_leaf_comes_back(leaf: Leaf) -> None:
    assert Leaf.from_cbor(leaf.to_cbor()) == leaf


@given(OPENING)
def test_an_opening_comes_back(opening: Opening) -> None:
    assert Opening.from_cbor(opening.to_cbor()) == opening


def test_tensors_of_an_opening_come_back() -> None:
    batch = {"x": torch.randn(2, 3), "y": torch.tensor([1, 2]), "none": torch.empty(0, 4), "one": torch.tensor(True)}
    found = Opening.from_cbor(Opening(log=b"", batch=batch).to_cbor()).batch
    assert found.keys() == batch.keys()
    for name, tensor in batch.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)


@given(st.binary(max_size=80), st.integers(0, 1 << 12), st.binary(min_size=1, max_size=1))
def test_garbage_is_neither_a_leaf_nor_an_opening(garbage: bytes, at: int, byte: bytes) -> None:
    leaf = Leaf(
        index=1, node=[], values=[1.5], host=[], results=[], before=Counters(), after=Counters(), memory=bytes(32),
        left=bytes(32),
    ).to_cbor()  # fmt: skip
    opening = Opening(log=b"a", slots=[(1, b"b", Held(1, bytes(32)), [bytes(32)])], memory={2: Held(1, bytes(32))})
    data = opening.to_cbor()
    for read, good in ((Leaf.from_cbor, leaf), (Opening.from_cbor, data)):
        at %= len(good)
        for hostile in (garbage, good[:at], good[:at] + byte + good[at + 1 :]):
            try:
                found = read(hostile)
            except FormatError:
                continue
            assert found.to_cbor() == hostile
