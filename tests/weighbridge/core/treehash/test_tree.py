"""BLAKE3 on devices: the same digest as the `blake3` package's, over all lengths, keys and layouts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from weighbridge.core.digests import region_digest
from weighbridge.core.treehash.tree import CHUNK, device_digest, storage_digest, torch_chunks

KEY = bytes(range(32))
EDGES = [0, 1, 3, 4, 63, 64, 65, 127, 128, 1023, 1024, 1025, 2047, 2048, 2049, 3072, 3073, 4096, 5 * 1024 + 1, 31744]


def reference(data: bytes, key: bytes | None) -> bytes:
    return blake3(data, key=key).digest() if key else blake3(data).digest()


def bytes_of(size: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8))


@pytest.mark.parametrize("size", EDGES)
def test_edges_of_blocks_chunks_and_levels(size: int) -> None:
    data = bytes_of(size)
    for key in (None, KEY):
        assert device_digest(data, key) == reference(data.numpy().tobytes(), key)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(0, 40 * CHUNK), seed=st.integers(0, 9), key=st.none() | st.binary(min_size=32, max_size=32))
def test_any_length_and_key(size: int, seed: int, key: bytes | None) -> None:
    """device_digest(d, k) == blake3(d, key=k).digest()."""
    data = bytes_of(size, seed)
    assert device_digest(data, key) == reference(data.numpy().tobytes(), key)


def test_many_chunks_at_once_are_numbered_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """And levels of many values are joined on the device, with and without an odd one."""
    monkeypatch.setattr("weighbridge.core.treehash.tree._AT_ONCE", 7)
    monkeypatch.setattr("weighbridge.core.treehash.tree._FEW", 5)
    for chunks in (48, 50, 51, 63, 64):
        data = bytes_of(chunks * CHUNK + 5)
        assert device_digest(data, KEY) == reference(data.numpy().tobytes(), KEY)


def test_chunk_numbers_beyond_32_bits() -> None:
    """The number enters in two words; neither loses its bits to the other."""
    words, start = torch.zeros(3, 256, dtype=torch.int32), torch.zeros(8, dtype=torch.int32)
    places = [0, (1 << 31) - 1, (1 << 32) - 1, 1 << 32, 5 << 32]
    values = [tuple(torch_chunks(words, start, place, 0)[:, 0].tolist()) for place in places]
    assert len(set(values)) == len(places)
    carried = torch_chunks(words, start, (1 << 32) - 1, 0)
    assert torch.equal(carried[:, 1], torch_chunks(words, start, 1 << 32, 0)[:, 0])


def test_bytes_that_are_not_aligned() -> None:
    data = bytes_of(4 * CHUNK + 3)[3:]
    assert device_digest(data) == reference(data.numpy().tobytes(), None)


def test_a_storage_is_its_bytes_whatever_lies_on_it() -> None:
    """Also under a mode that would count kernels."""
    t = bytes_of(5000).view(torch.int32)[3:].as_strided((10, 3), (7, 2))
    content = bytes(t.untyped_storage().tolist())
    assert storage_digest(t.untyped_storage()) == reference(content, None)
    assert storage_digest(t.untyped_storage(), KEY) == region_digest(content, KEY)


def test_the_number_of_threads_does_not_matter() -> None:
    data = bytes_of(3 << 20)
    found = set()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        found.add((storage_digest(data.untyped_storage()), device_digest(data)))
    torch.set_num_threads(1)
    assert found == {(reference(data.numpy().tobytes(), None),) * 2}
