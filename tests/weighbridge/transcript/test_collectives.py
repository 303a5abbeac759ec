"""Collectives on tapes, virtual ranks, and the formats of jobs, layouts and openings."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.core import merkle
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, TapeError, UsageError, WeighbridgeError
from weighbridge.execution import collective_openings
from weighbridge.execution.collective_openings import Opening, Piece, Target
from weighbridge.execution.virtual_ranks import AbandonedError, Rendezvous
from weighbridge.transcript import collectives, layout
from weighbridge.transcript.collectives import CHUNK, Call, calls, commit
from weighbridge.transcript.job_record import JobRecord, MeshCoordinate
from weighbridge.transcript.layout import Shard
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import RESIZE, Input, Node, Tape

REF = (0, "f32", (4,), (1,), 0)


def tape_with(*nodes: Node) -> Tape:
    """A tape of a rank whose state is one storage of 16 bytes."""
    return Tape(inputs=[Input(0, 16, "state", "w")], refs=[REF, (0, "f32", (2,), (1,), 0)], nodes=list(nodes))


def node(name: str, outs: int = 1, ins: int = 1, **changes: Any) -> Node:
    values = {"reduction": "", "group": (0, 1), "root": 0, "tag": 0, **changes}
    side: Callable[[int], Any] = lambda count: ("l", tuple(("t", 0) for _ in range(count)))  # noqa: E731
    return Node(
        f"weighbridge::{name}.default",
        (side(outs), side(ins), ("s", values["reduction"]), ("l", values["group"]), values["root"], values["tag"]),
        {}, (), (), None, None,
    )  # fmt: skip


SUM = node("all_reduce", reduction="sum")


def test_calls_are_numbered_for_each_group() -> None:
    tape = tape_with(
        SUM, node("all_gather", 2), node("all_reduce", reduction="sum", group=(1, 0)), SUM,
        node("send", 0, tag=7), node("send", 0, tag=8), node("send", 0, tag=7), node("recv", 1, 0, group=(1, 0), tag=7),
    )  # fmt: skip
    found = calls(Tape.decode(tape.encode()), 0)
    assert [(c.op, c.group, c.ordinal) for c in found[:4]] == [
        (0, (0, 1), 0), (1, (0, 1), 1), (2, (1, 0), 0), (3, (0, 1), 2)
    ]  # fmt: skip
    assert [c.pairing(5) for c in found[4:]] == [
        (5, (0, 1), 7, 0), (5, (0, 1), 8, 0), (5, (0, 1), 7, 1), (5, (1, 0), 7, 0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "bad",
    [
        node("all_reduce"), node("all_reduce", reduction="mean"), node("all_gather", 1), node("all_gather", 2, 2),
        node("broadcast", 1, 0), node("broadcast", root=2), node("all_reduce", reduction="sum", root=1),
        node("all_reduce", reduction="sum", group=(0, 0)), node("all_reduce", reduction="sum", group=(1, 2)),
        node("all_reduce", reduction="sum", group=()), node("all_reduce", reduction="sum", group=(0, -1)),
        node("send", 0, group=(1, 0)), node("recv", 1, 0, group=(0, 1)), node("send", 0, group=(0, 1, 2)),
        node("frobnicate"), SUM._replace(outputs=(0,)), SUM._replace(kwargs={"a": 1}), SUM._replace(args=SUM.args[:5]),
        SUM._replace(args=(("t", 0), *SUM.args[1:])), SUM._replace(op="weighbridge::all_reduce.out"),
        node("all_reduce", reduction="sum", group=(0, True)),
    ],
)  # fmt: skip
def test_collectives_that_no_recorder_makes_are_refused(bad: Node) -> None:
    with pytest.raises(TapeError):
        calls(tape_with(bad), 0)


@pytest.mark.parametrize(
    "args",
    [(("t", 0), 8), (("t", 2), -1), (("t", 2), 1 << 63), (("t", 2),), (8, 8), (("t", 9), 8), (("t", 2), ("v", 0))],
)
def test_resizing_takes_a_tensor_without_elements_and_a_size(args: tuple[Any, ...]) -> None:
    tape = tape_with(Node(RESIZE, args, {}, (), (), None, None))
    tape.refs.append((0, "u8", (0,), (1,), 0))
    with pytest.raises(TapeError):
        Tape.decode(tape.encode())


def test_a_reference_past_the_new_end_of_a_resized_storage_is_refused() -> None:
    use = Node("neg.default", (("t", 0),), {}, (2,), ((1, 16),), None, None)
    for size, fits in ((16, True), (64, True), (15, False), (0, False)):
        tape = tape_with(Node(RESIZE, (("t", 3), size), {}, (), (), None, None), use)
        tape.refs += [(1, "f32", (4,), (1,), 0), (0, "u8", (0,), (1,), 0)]
        if fits:
            assert Tape.decode(tape.encode()).largest_footprint() == size + 16 if size > 16 else True
        else:
            with pytest.raises(TapeError, match=r"tape\.out_of_bounds"):
                Tape.decode(tape.encode())


def test_a_contribution_is_committed_to_by_chunks_of_each_tensor() -> None:
    a, b = torch.arange(CHUNK // 4 + 1, dtype=torch.float32), torch.ones(3, dtype=torch.int64)
    data = [a.numpy().tobytes(), b.numpy().tobytes()]
    expected = [data[0][:CHUNK], data[0][CHUNK:], data[1]]
    assert commit([a, b]) == merkle.root([collectives.leaf(chunk) for chunk in expected])
    assert commit([]) == commit([torch.empty(0)]) == merkle.EMPTY_ROOT
    assert commit([a.view(1, -1).t()]) == commit([a])


# -- virtual ranks -----------------------------------------------------------------------------------------------------


def call(name: str = "all_reduce", group: tuple[int, ...] = (0, 1), **changes: Any) -> Call:
    refs = {"all_reduce": (1, 1), "all_gather": (len(group), 1), "reduce_scatter": (1, len(group))}[name]
    found = Call(3, name, (REF,) * refs[0], (REF,) * refs[1], "sum" if "reduce" in name else "", group, 0, 0, 0)
    return replace(found, **changes)


def meet(*ranks: Callable[[Rendezvous], Any]) -> list[Any]:
    """Runs virtual ranks; returns what each returned or raised."""
    rendezvous, found = Rendezvous(len(ranks)), [None] * len(ranks)

    def run(number: int) -> None:
        try:
            rendezvous.turns.begin(number)
            found[number] = ranks[number](rendezvous)
        except (WeighbridgeError, AbandonedError) as error:
            found[number] = error  # type: ignore[call-overload]
            rendezvous.turns.end()
        finally:
            rendezvous.turns.leave(number)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(ranks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
        assert not thread.is_alive()
    return found


def gives(rank: int, with_call: Call, *tensors: torch.Tensor, outs: int = 1) -> Callable[[Rendezvous], Any]:
    return lambda rendezvous: rendezvous.exchange(rank, 1, with_call, tensors, [torch.empty(4)] * outs)


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_ranks_that_meet_get_the_sum_in_the_order_of_the_group(ranks: int) -> None:
    group = tuple(reversed(range(ranks)))
    values = [torch.tensor([1e8, 1.0, -1e8, 0.1]) * (r + 1) for r in range(ranks)]
    found = meet(*(gives(r, call(group=group), values[r]) for r in range(ranks)))
    total = sum((values[r].double() for r in group[1:]), values[group[0]].double()).float()
    assert all(torch.equal(result[0], total) for result in found)


def test_a_rank_that_never_comes_is_noticed() -> None:
    found = meet(gives(0, call(), torch.ones(4)), lambda rendezvous: "done")
    assert isinstance(found[0], TapeError)
    assert found[0].reason == "job.collective.mismatch"
    assert "never come" in found[0].message
    assert found[1] == "done"


@pytest.mark.parametrize(
    "other",
    [
        call(reduction="avg"), call("all_gather"), call(ordinal=1), replace(call(), name="reduce"),
    ],
)  # fmt: skip
def test_calls_that_do_not_fit_together_are_noticed(other: Call) -> None:
    found = meet(gives(0, call(), torch.ones(4)), gives(1, other, torch.ones(4), outs=len(other.outs)))
    reasons = {each.reason for each in found if isinstance(each, TapeError)}
    assert reasons == {"job.collective.mismatch"}
    assert all(isinstance(each, (TapeError, AbandonedError)) for each in found)


def test_contributions_of_other_sizes_or_types_are_noticed() -> None:
    for odd in (torch.ones(5), torch.ones(4, dtype=torch.float64)):
        found = meet(gives(0, call(), torch.ones(4)), gives(1, call(), odd))
        assert any(isinstance(each, TapeError) and each.reason == "job.collective.mismatch" for each in found)


# -- formats -----------------------------------------------------------------------------------------------------------

MESHES = st.lists(
    st.tuples(st.sampled_from(["pipeline", "data", "tensor"]), st.integers(1, 12)), min_size=1, max_size=3,
    unique_by=lambda axis: axis[0],
)  # fmt: skip


@given(st.binary(min_size=16, max_size=16), MESHES)
def test_a_job_record_is_read_as_it_was_written(identity: bytes, mesh: list[tuple[str, int]]) -> None:
    """decode(encode(record)) == record, and every rank has its own coordinates."""
    record = JobRecord(identity, tuple(mesh))
    assert JobRecord.decode(record.encode()) == record
    places = [MeshCoordinate(record, rank) for rank in range(record.ranks)]
    coordinates = {tuple(place.along(name) for name, _ in mesh) for place in places}
    assert len(coordinates) == record.ranks
    assert [MeshCoordinate.of({"job": place.to_map()}) for place in places] == places
    assert all(place.stream(kind) < 4096 for place in places for kind in ("init", "step"))


def test_the_last_axis_varies_fastest_and_replicas_begin_alike() -> None:
    record = JobRecord(bytes(16), (("pipeline", 2), ("data", 2), ("tensor", 2)))
    places = [MeshCoordinate(record, rank) for rank in range(8)]
    assert [p.along("tensor") for p in places] == [0, 1] * 4
    assert [p.along("pipeline") for p in places] == [0] * 4 + [1] * 4
    assert [p.stream("init") for p in places] == [0] * 4 + [2] * 4
    assert [p.stream("step") for p in places] == [0, 0, 1, 1, 2, 2, 3, 3]


PIECES = st.builds(Piece, st.binary(max_size=64), st.lists(st.binary(min_size=32, max_size=32), max_size=3).map(tuple))
TARGETS = st.builds(Target, *[st.integers(0, 1000)] * 4)
OPENINGS = st.builds(Opening, TARGETS, PIECES, st.lists(PIECES, max_size=3).map(tuple))


@given(st.lists(OPENINGS, max_size=4))
def test_openings_are_read_as_they_were_written(opened: list[Opening]) -> None:
    """decode(encode(openings)) == openings; the same for the chunks that are asked for."""
    assert collective_openings.decode(collective_openings.encode(opened)) == opened
    targets = [opening.target for opening in opened]
    assert collective_openings.decode_targets(collective_openings.encode_targets(targets)) == targets


@st.composite
def shards(draw: st.DrawFn) -> Shard:
    shape = draw(st.lists(st.integers(0, 9), max_size=3))
    offsets = [draw(st.integers(0, n)) for n in shape]
    sizes = [draw(st.integers(0, n - o)) for n, o in zip(shape, offsets, strict=True)]
    return Shard(draw(st.text(max_size=8)), "f32", tuple(shape), tuple(offsets), tuple(sizes))


@given(st.lists(shards(), max_size=4, unique_by=lambda s: s.name))
def test_a_layout_is_read_as_it_was_written(found: list[Shard]) -> None:
    """decode(encode(layout)) == layout, in ascending order of names."""
    assert layout.decode(layout.encode(found)) == sorted(found, key=lambda s: s.name)


STRUCTURES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 1 << 63) | st.binary(max_size=33) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


@given(st.binary(max_size=80) | STRUCTURES.map(cbor))
def test_hostile_bytes_raise_only_our_errors(data: bytes) -> None:
    """Hostile bytes raise only WeighbridgeError, from every decoder of this part."""
    for decoder in (JobRecord.decode, layout.decode, collective_openings.decode, collective_openings.decode_targets):
        try:
            decoder(data)
        except WeighbridgeError as error:
            assert isinstance(error, FormatError)  # noqa: PT017


@given(STRUCTURES)
def test_hostile_drafts_raise_only_our_errors(value: Any) -> None:
    """Whatever stands in a draft's `job`, only WeighbridgeError is raised."""
    for job in (value, {"id": bytes(16), "mesh": [["data", 2]], "rank": value}):
        try:
            MeshCoordinate.of({"job": job})
        except WeighbridgeError as error:
            assert isinstance(error, FormatError)  # noqa: PT017


ROOT = bytes(range(32))
RECORD: dict[str, Any] = {
    "step": 1, "kind": "step", "tape": ROOT, "values": [], "host": [], "rng": {}, "state": ROOT, "checksums": b"",
    "rounding": ROOT, "batch": ROOT, "records": [], "record_digests": [], "free": [], "snapshots": [], "rounded": 0,
    "logged": 0,
}  # fmt: skip


def test_a_record_names_collectives_only_where_there_are_some() -> None:
    plain = StepRecord.from_map(RECORD)
    assert "collectives" not in plain.to_map()
    record = StepRecord.from_map({**RECORD, "collectives": [[3, ROOT, ROOT], [9, ROOT, ROOT]]})
    assert record.collectives == [(3, ROOT, ROOT), (9, ROOT, ROOT)]
    assert StepRecord.from_cbor(record.to_cbor()) == record
    assert record.digest() != plain.digest()


@pytest.mark.parametrize(
    "bad",
    [
        [],
        [[3, ROOT]],
        [[3, ROOT, b""]],
        [[3, ROOT, ROOT], [3, ROOT, ROOT]],
        [[-1, ROOT, ROOT]],
        [[True, ROOT, ROOT]],
        {},
        0,
    ],
)
def test_malformed_collectives_in_a_record_are_refused(bad: Any) -> None:
    with pytest.raises(FormatError):
        StepRecord.from_map({**RECORD, "collectives": bad})


# -- layouts -----------------------------------------------------------------------------------------------------------


def test_shards_are_put_together_and_missing_or_unequal_ones_are_noticed() -> None:
    whole = torch.arange(12, dtype=torch.float32).view(4, 3)
    top, bottom = Shard("w", "f32", (4, 3), (0, 0), (2, 3)), Shard("w", "f32", (4, 3), (2, 0), (2, 3))
    parts = [([shard], {"w": shard.cut(whole).clone()}) for shard in (top, bottom)]
    assert torch.equal(layout.assemble(parts)["w"], whole)
    assert layout.check([top], parts[0][1], {"w": whole}) == []
    with pytest.raises(UsageError, match="held by no rank"):
        layout.assemble(parts[:1])
    with pytest.raises(UsageError, match="different content"):
        layout.assemble([*parts, ([top], {"w": parts[0][1]["w"] + 1})])
    for held, full in (
        (parts[1][1], {"w": whole}),
        ({}, {"w": whole}),
        (parts[0][1], {}),
        (parts[0][1], {"w": whole.t()}),
    ):
        assert [f.id for f in layout.check([top], held, full)] == ["layout.differs"]
