"""Memory is read by its address, and weak references to storages do not take it from those who hold them."""

from __future__ import annotations

import subprocess
import sys
import weakref

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from weighbridge.core.host_memory import alive, array_of, bytes_of, octets

FAULTS = """
import resource, sys, torch
from weighbridge.core.host_memory import keep_freed
kept = keep_freed() if sys.argv[1] == "keep" else None
counts = []
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(40_000_000)
    counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(kept, min(counts))
"""


def test_the_bytes_are_those_of_the_tensor_and_keep_it_alive() -> None:
    found = octets(torch.tensor([1, 2, 258], dtype=torch.int32))
    assert bytes(found) == bytes([1, 0, 0, 0, 2, 0, 0, 0, 2, 1, 0, 0])


def test_nothing_has_no_bytes() -> None:
    assert bytes(octets(torch.empty(0))) == b""
    assert array_of(torch.empty(0)).shape == (0,)
    assert bytes_of(torch.empty(0).untyped_storage()).shape == (0,)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
     torch.bool],
)  # fmt: skip
def test_an_array_is_a_tensors_memory_and_keeps_it_alive(dtype: torch.dtype) -> None:
    tensor = torch.tensor([0, 1, 1, 0, 1]).to(dtype)[1:]
    array = array_of(tensor)
    assert array.tolist() == tensor.tolist()
    assert array_of(tensor, 2).tolist() == tensor.tolist()[:2]
    array[0] = 0
    assert tensor[0] == 0
    tensor.untyped_storage().resize_(5 * tensor.itemsize)  # `numpy()` would have forbidden that
    reference = weakref.ref(tensor)
    del tensor
    assert reference() is not None
    del array
    assert reference() is None


def test_an_array_of_a_storage_has_all_of_its_bytes() -> None:
    tensor = torch.arange(6, dtype=torch.uint8)[2:4]
    assert bytes_of(tensor.untyped_storage()).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_storage_that_was_looked_at_is_whole_until_nobody_holds_it() -> None:
    tensor = torch.full((5,), 7.0)
    died: list[object] = []
    reference = weakref.ref(tensor.untyped_storage(), died.append)
    for _ in range(3):
        assert alive(reference) is not None
    held = alive(reference)
    del tensor
    assert held is not None
    assert torch.empty(0).set_(held).tolist() == [7.0] * 5
    assert not died
    del held
    assert alive(reference) is None
    assert len(died) == 1


def test_a_storage_is_dead_however_many_caches_remember_it() -> None:
    """Loaders that share memory with their workers remember it so; many times, because what goes wrong is memory."""
    for number in range(300):
        tensor = torch.ones(3)
        storage = tensor.untyped_storage()
        cached, reference = StorageWeakRef(storage), weakref.ref(storage)
        del storage
        if number % 2:
            assert alive(reference) is not None
        del tensor
        assert alive(reference) is None
        assert alive(reference) is None
        assert cached.expired()


def test_freed_memory_serves_the_next_one() -> None:
    """160 MB are 39,000 pages of 4 kB, each of which the system would clear anew.

    A system that is short of memory takes some away by itself, from a process at a time.
    """

    def faults(way: str) -> tuple[str, int]:
        done = subprocess.run([sys.executable, "-c", FAULTS, way], capture_output=True, text=True, check=True)
        said, count = done.stdout.split()
        return said, int(count)

    said, kept = faults("keep")
    if said == "False":
        pytest.skip("another C library than glibc")
    left = faults("leave")[1]
    assert any(count * 10 < left for count in (kept, faults("keep")[1], faults("keep")[1]))
