"""Keys in memory that the kernel has no map of: where it has such memory; elsewhere that is said."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
from pathlib import Path

import pytest

from weighbridge.core.secret_memory import NAME, SecretMemory, secret

SECRET = b"a secret that no other process reads"
AVAILABLE = SecretMemory().protected
needs_kernel = pytest.mark.skipif(
    not AVAILABLE, reason=f"NOT TESTED: the kernel {platform.release()} has no memfd_secret, or permits none"
)


def filled(memory: SecretMemory) -> SecretMemory:
    ctypes.memmove(memory.address, SECRET, len(SECRET))
    return memory


def content(memory: SecretMemory) -> bytes:
    return ctypes.string_at(memory.address, len(SECRET))


@pytest.mark.parametrize("plain", [True, False])
def test_it_holds_a_secret_until_it_is_given_up(plain: bool) -> None:
    memory = filled(SecretMemory(plain=plain))
    assert content(memory) == SECRET
    memory.erase()
    memory.erase()
    with pytest.raises(ValueError, match="given up"):
        _ = memory.address


def test_what_is_said_of_it_is_so() -> None:
    assert SecretMemory(plain=True).protected is False
    assert secret([SecretMemory(plain=True), SecretMemory()]) == []
    assert secret([SecretMemory(), SecretMemory()]) == ([NAME] if AVAILABLE else [])


@needs_kernel
def test_nothing_reads_it_through_the_kernel() -> None:
    """What root reads another process's memory by finds ordinary memory, and not this."""
    plain, memory = filled(SecretMemory(plain=True)), filled(SecretMemory())
    with Path("/proc/self/mem").open("rb", buffering=0) as file:
        file.seek(plain.address)
        assert file.read(len(SECRET)) == SECRET
        file.seek(memory.address)
        with pytest.raises(OSError, match=r"."):
            file.read(len(SECRET))
    assert content(memory) == SECRET


@needs_kernel
def test_its_page_is_given_up_and_has_no_descriptor() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    memory = SecretMemory()
    at = f"{memory.address:x}-"
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert any(line.startswith(at) and "secretmem" in line for line in Path("/proc/self/maps").read_text().splitlines())
    memory.erase()
    assert not any(line.startswith(at) for line in Path("/proc/self/maps").read_text().splitlines())


@pytest.mark.parametrize("plain", [True, False])
def test_children_do_not_inherit_it(plain: bool) -> None:
    """So a process that a Prover's file takes over, were it forked from here, would find nothing."""
    memory = filled(SecretMemory(plain=plain))
    address = memory.address
    child = os.fork()
    if not child:
        maps = Path("/proc/self/maps").read_text().splitlines()
        spans = [tuple(int(each, 16) for each in line.split()[0].split("-")) for line in maps]
        os._exit(int(any(begin <= address < end for begin, end in spans)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert address % mmap.PAGESIZE == 0
