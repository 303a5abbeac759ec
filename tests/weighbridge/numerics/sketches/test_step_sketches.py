"""The sketches of a step as bytes: they come back as they were, and hostile ones cost little."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weighbridge.core.errors import LogError
from weighbridge.numerics.sketches.capacity import BLOCK, MOST_SCALE, capacity, least
from weighbridge.numerics.sketches.codec import FailedError, make, recover
from weighbridge.numerics.sketches.step_sketches import MAGIC, SketchWriter, blocks, pack, packed_size, split, unpack

EXAMPLES = settings(max_examples=30, deadline=None)
SIZES = st.lists(st.integers(0, 3000), max_size=4)


def integers(seed: int, elements: int) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    return np.random.default_rng(seed).integers(-0x7F80, 0x7F81, elements).astype(np.int16)


@EXAMPLES
@given(st.integers(0, 1 << 32), st.integers(1, 3000), st.integers(0, MOST_SCALE))
def test_a_sketch_comes_back_as_it_was(seed: int, elements: int, scale: int) -> None:
    """Law: unpack(pack(s)) is s."""
    sketch = make(integers(seed, elements), capacity(elements, scale))
    data = pack(sketch)
    found = unpack(data, elements, sketch.capacity)
    assert len(data) == packed_size(elements, sketch.capacity)
    assert (found.degree, found.capacity) == (sketch.degree, sketch.capacity)
    assert np.array_equal(found.parities, sketch.parities)
    assert np.array_equal(found.values, sketch.values)


@EXAMPLES
@given(st.integers(0, 1 << 32), SIZES, st.integers(0, MOST_SCALE), st.binary(max_size=20))
def test_a_step_comes_back_as_it_was(seed: int, sizes: list[int], scale: int, log: bytes) -> None:
    """Law: split(finish(log)) gives the sketches of all outputs in order, nothing more, and the log."""
    outputs = [integers(seed + i, size) for i, size in enumerate(sizes)]
    writer = SketchWriter(scale)
    for output in outputs:
        writer.add(output)
    reader, rest = split(writer.finish(log))
    for output in outputs:
        whole = [pack(make(output, capacity(output.size, scale)))] if output.size else []
        assert reader.take(output.size) == whole
    assert (reader.left, rest) == (False, log)
    with pytest.raises(LogError, match="ends before the outputs"):
        reader.take(1)


@EXAMPLES
@given(st.binary(max_size=30).flatmap(lambda rest: st.sampled_from([rest, MAGIC + b"\x04\x05" + bytes(7) + rest])))
def test_other_bytes_are_refused_or_split(data: bytes) -> None:
    """Law: split refuses a header that breaks the rules; else it gives the bytes that the header says, and the rest."""
    size = int.from_bytes(data[6:14], "little")
    if len(data) < 14 or data[:5] != MAGIC or data[5] > MOST_SCALE or 14 + size > len(data):
        with pytest.raises(LogError) as caught:
            split(data)
        assert caught.value.reason == "replay.sketch.malformed"
    else:
        reader, rest = split(data)
        assert (reader.left, rest) == (size > 0, data[14 + size :])


def test_bits_beyond_the_end_are_refused() -> None:
    taken = capacity(1000, MOST_SCALE)
    data = bytearray(pack(make(integers(1, 1000), taken)))
    bits = 16 * (taken.parities + 2 * taken.values)
    if bits % 8:
        data[-1] |= 1
    else:
        data.append(0)
    with pytest.raises(LogError, match="belong to no sketch"):
        unpack(bytes(data), 1000, taken)


def test_a_large_output_has_a_sketch_for_each_block() -> None:
    assert blocks(2 * BLOCK + 5) == [(0, BLOCK), (BLOCK, 2 * BLOCK), (2 * BLOCK, 2 * BLOCK + 5)]
    assert blocks(0) == []


@pytest.mark.parametrize("mean", [0.001, 0.1, 3.0, 50.0, 400.0])
def test_capacities_are_exceeded_as_rarely_as_they_say(mean: float) -> None:
    from scipy import stats

    taken = least(mean)
    tail = stats.nbinom(1 / 0.03, 1 / (1 + 0.03 * mean)).sf
    assert tail(taken) <= 2e-9 < tail(taken - 1) * 1.001


def test_capacities_are_few_and_bounded() -> None:
    """Each has a table, which a process keeps."""
    sizes = [int(size) for size in np.unique(np.geomspace(100, BLOCK, 4000).astype(int))]
    found = {capacity(size, scale) for size in sizes for scale in range(MOST_SCALE + 1)}
    assert len(found) < 200
    assert max(each.parities for each in found) < 1024
    assert max(each.values for each in found) < 256


@pytest.mark.parametrize("contested", [BLOCK, 90_000], ids=["all", "as-many-as-are-tried"])
def test_garbage_over_a_whole_block_is_given_up_soon(contested: int) -> None:
    """The largest sketch there can be, and a replayer that finds very many elements contested."""
    taken, elements = capacity(BLOCK, MOST_SCALE), BLOCK
    noise = np.random.default_rng(5).integers(0, 256, packed_size(elements, taken), dtype=np.uint8)
    noise[-1] = 0
    sketch, own = unpack(noise.tobytes(), elements, taken), integers(2, elements)
    at, bounds = np.arange(contested), own[:contested].astype(np.int64)
    begin = time.thread_time()
    with pytest.raises(FailedError, match=r"too long|contested"):
        recover(sketch, own, at, bounds - 1, bounds + 1, bounds > 0)
    assert time.thread_time() - begin < 20
