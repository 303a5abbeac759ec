"""Memory maps: what changes one by one has the root of what is made at once, and proofs show nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.core.errors import ProofError, UsageError
from weighbridge.core.memory_map import MAX_SLOTS, Held, MemoryMap, changed_root, verify_held

HELD = st.none() | st.builds(Held, st.integers(0, 1 << 40), st.binary(min_size=32, max_size=32))
CHANGES = st.integers(1, 20).flatmap(
    lambda slots: st.tuples(st.just(slots), st.lists(st.tuples(st.integers(0, slots - 1), HELD), max_size=12))
)


def _made(slots: int, changes: list[tuple[int, Held | None]]) -> MemoryMap:
    made = MemoryMap(slots)
    for slot, held in changes:
        made.put(slot, held)
    return made


@given(CHANGES)
def test_the_root_depends_only_on_what_is_held_in_the_end(case: tuple[int, list[tuple[int, Held | None]]]) -> None:
    slots, changes = case
    final = dict(changes)
    grown, fresh = _made(slots, changes), _made(slots, sorted(final.items()))
    assert grown.root() == fresh.root()
    for slot in range(slots):
        verify_held(slots, slot, final.get(slot), grown.proof(slot), grown.root())


@given(CHANGES, st.data())
def test_another_content_slot_or_size_is_refused(
    case: tuple[int, list[tuple[int, Held | None]]], data: st.DataObject
) -> None:
    slots, changes = case
    made, final = _made(slots, changes), dict(changes)
    slot = data.draw(st.integers(0, slots - 1))
    other = data.draw(HELD.filter(lambda held: held != final.get(slot)))
    with pytest.raises(ProofError):
        verify_held(slots, slot, other, made.proof(slot), made.root())
    with pytest.raises(ProofError):
        verify_held(slots + 1, slot, final.get(slot), made.proof(slot), made.root())
    with pytest.raises(ProofError):
        verify_held(slots, (slot + 1) % (slots + 1), final.get(slot), made.proof(slot), made.root())


@given(st.lists(st.binary(max_size=40), max_size=6), st.integers(-2, 6))
def test_garbage_is_refused_as_a_proof(proof: list[bytes], slot: int) -> None:
    with pytest.raises(ProofError):
        verify_held(5, slot, None, proof, bytes(32))


def test_a_map_of_no_slots_or_too_many_is_refused() -> None:
    for slots in (0, -1, MAX_SLOTS + 1):
        with pytest.raises(UsageError):
            MemoryMap(slots)


def test_the_root_of_a_known_memory() -> None:
    made = _made(3, [(0, Held(4, bytes(32))), (2, Held(8, bytes([1]) * 32))])
    assert made.root().hex() == "0412565648e7c172f326afb090b7a91b4dc550aa5db40dfd7443637aec2ad020"


@given(CHANGES, st.data())
def test_opened_slots_give_the_root_after_their_change(
    case: tuple[int, list[tuple[int, Held | None]]], data: st.DataObject
) -> None:
    slots, changes = case
    made, final = _made(slots, changes), dict(changes)
    later = data.draw(st.dictionaries(st.integers(0, slots - 1), HELD, max_size=slots))
    others = data.draw(st.sets(st.integers(0, slots - 1)))
    opened = {slot: (final.get(slot), made.proof(slot)) for slot in others | later.keys()}
    root = made.root()
    for slot, held in later.items():
        made.put(slot, held)
    assert changed_root(slots, opened, later, root) == made.root()
    if later:
        with pytest.raises(ProofError):
            changed_root(slots, {}, later, root)
