"""Variates out of PyTorch operations, as a GPU makes them, against the published vectors and the compiled generator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_philox import VECTORS

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.random import device_philox, philox, variates
from weighbridge.numerics.random.variates import Draw

u64 = st.one_of(st.integers(0, 2**64 - 1), st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1]))
streams = st.integers(0, 0xFFFF)
META = torch.device("meta")


@pytest.mark.parametrize(("key", "counter", "result"), VECTORS)
def test_published_vectors(key: tuple[int, int], counter: tuple[int, int, int, int], result: tuple[int, ...]) -> None:
    a, b, c, d = (torch.tensor([word]) for word in counter)
    assert tuple(device_philox.blocks(key, (a, b, c, d))[0].tolist()) == result


@given(u64, streams, u64, st.integers(0, 70))
def test_words_are_those_of_the_compiled_generator(seed: int, stream: int, counter: int, count: int) -> None:
    assert (
        device_philox.words(seed, stream, counter, count).tolist()
        == philox.words(seed, stream, counter, count).tolist()
    )


@given(u64, streams, u64, st.integers(0, 40), st.integers(0, 40))
def test_words_from_the_middle_of_a_draw(seed: int, stream: int, counter: int, skipped: int, count: int) -> None:
    whole = philox.words(seed, stream, counter, 4 * skipped + count)
    assert (
        device_philox.words(seed, stream, counter, count, first=4 * skipped).tolist() == whole[4 * skipped :].tolist()
    )


@pytest.mark.parametrize("first", [2**32 - 4, 2**34 - 8, 2**34, 2**35 + 12])
def test_blocks_beyond_32_bits_carry_into_the_next_word(first: int) -> None:
    got = device_philox.words(5, 3, 9, 8, first=first).tolist()
    expected: list[int] = []
    for block in (first // 4, first // 4 + 1):
        expected += philox.block((5, 0), (block & 0xFFFFFFFF, block >> 32 | 3 << 16, 9, 0))
    assert got == expected


EDGES = np.array(
    [0, 1, 255, 256, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFF, 0x40000000, 0x3FFFFFFF], dtype=np.uint32
)


def test_variates_have_the_same_bits() -> None:
    """At the edges of all octaves, and for many words drawn at random."""
    ends = np.array([(1 << k) + d for k in range(31) for d in (-1, 0, 1)], dtype=np.uint32)
    w = np.concatenate([EDGES, ends, ends | np.uint32(1 << 31), philox.words(3, 0, 1, 100_000)])
    t = torch.from_numpy(w.astype(np.int64))
    for ours, theirs in (
        (device_philox.unit_float32(t), philox.unit_float32(w)),
        (device_philox.normal_float32(t), philox.normal_float32(w)),
    ):
        assert ours.dtype == torch.float32
        assert (ours.numpy().view(np.uint32) == theirs.view(np.uint32)).all()


@given(u64, st.integers(1, 1 << 31), st.integers(0, 30))
def test_integers_are_64_bit_words_modulo_the_span(seed: int, span: int, count: int) -> None:
    wide = philox.wide_words(seed, 0, 1, count)
    got = device_philox.integers(device_philox.words(seed, 0, 1, 2 * count), span)
    assert got.tolist() == (wide % np.uint64(span)).tolist()


def test_a_permutation_is_the_stable_order_of_words_without_a_sign() -> None:
    w = np.array([0, 2**63, 2**64 - 1, 1, 2**63 - 1, 1, 2**63, 0], dtype=np.uint64)
    halves = torch.from_numpy(w.view("<u4").astype(np.int64))
    assert device_philox.order(halves).tolist() == np.argsort(w, kind="stable").tolist()


KINDS = {
    "unit": lambda draw, count, device: variates.unit(draw, count, device),
    "normal": lambda draw, count, device: variates.normal(draw, count, device),
    "integers": lambda draw, count, device: variates.integers(draw, -5, 1000, count, device),
    "long": lambda draw, count, device: variates.integers(draw, -(1 << 40), 1 << 60, count, device),
    "permutation": lambda draw, count, device: variates.permutation(draw, count, device),
}


@pytest.mark.parametrize("kind", sorted(KINDS))
@given(seed=u64, counter=u64, count=st.integers(0, 50))
def test_a_draw_is_the_same_by_either_way(kind: str, seed: int, counter: int, count: int) -> None:
    """The way of a GPU is taken here by patching which devices have compiled code."""
    draw = Draw(seed, 0, counter)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_philox, "CHUNK", 16)
        expected = KINDS[kind](draw, count, torch.device("cpu"))
        patch.setattr(variates, "COMPILED", frozenset())
        got = KINDS[kind](draw, count, torch.device("cpu"))
    assert got.dtype == expected.dtype
    assert got.numpy().tobytes() == expected.numpy().tobytes()


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"long"}))
def test_nothing_is_made_on_the_cpu_and_moved(kind: str) -> None:
    """On the meta device, where nothing can be moved to but everything has a shape."""
    made = KINDS[kind](Draw(1, 0, 2), 10, META)
    assert made.device == META
    assert made.shape == (10,)


def test_ranges_that_are_empty_are_refused_on_every_device() -> None:
    for device in (torch.device("cpu"), META):
        with pytest.raises(RefusedOperationError, match="empty or too large"):
            variates.integers(Draw(0, 0, 0), 3, 3, 1, device)
