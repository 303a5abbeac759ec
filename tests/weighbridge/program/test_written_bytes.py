"""What references cover, against storages that are really marked byte by byte."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from weighbridge.program import written_bytes
from weighbridge.program.written_bytes import Coverage, whole
from weighbridge.transcript.tape import Ref, extent

SIZE = 96

references = st.builds(
    lambda dims, offset: (0, "f32", tuple(n for n, _ in dims), tuple(s for _, s in dims), offset),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=3),
    st.integers(0, 8),
).filter(lambda ref: extent(ref) <= SIZE)


def mark(done: NDArray[np.bool_], ref: Ref) -> None:
    """Marks every byte, one by one."""
    _, _, shape, stride, offset = ref
    for index in np.ndindex(*shape):
        at = 4 * (offset + sum(i * s for i, s in zip(index, stride, strict=True)))
        done[at : at + 4] = True


@given(st.lists(references, max_size=12))
def test_together_they_cover_what_they_mark(refs: list[Ref]) -> None:
    done, covered = np.zeros(SIZE, dtype=np.bool_), Coverage(SIZE)
    for ref in refs:
        mark(done, ref)
        assert covered.add(ref) == bool(done.all()) or ref in refs[: refs.index(ref)]
        if done.all():
            return


@given(references)
def test_whole_is_every_byte(ref: Ref) -> None:
    size = max(extent(ref), 4)
    done = np.zeros(size, dtype=np.bool_)
    mark(done, ref)
    if whole(ref, size):
        assert done.all()
    else:
        assert not done.all() or not Coverage(size).add(ref) or len(written_bytes.contiguous(ref)[1])


@pytest.mark.parametrize("shape", [(1 << 40,), (1 << 61, 1 << 61), (4,) * 32])
def test_what_is_claimed_costs_nothing(shape: tuple[int, ...]) -> None:
    begun = time.process_time()
    covered = Coverage(1 << 50)
    for stride in (0, 2, 1 << 40):
        covered.add((0, "f32", shape, (stride,) * len(shape), 0))
    assert time.process_time() - begun < 10  # next to nothing; a walk over what is claimed never ends


def test_beyond_the_limit_bytes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written_bytes, "MOST_RUNS", 4)
    covered = Coverage(64)
    assert not covered.add((0, "f32", (8,), (2,), 0))
    assert covered.add((0, "f32", (8,), (2,), 1))
