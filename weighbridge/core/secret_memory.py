"""Memory for keys that the kernel itself has no map of: `memfd_secret`, where the kernel has it.

Pages of such memory are taken out of the kernel's own map, so neither another process, nor a debugger, nor a core dump,
nor `/proc/kcore` reads them, and they are never swapped. The root of the machine can still load a module, or read the
processor's registers while the key is used. Where the kernel has no such memory, it is a page like any other, and
`protected` says so.

Children do not inherit it, and its content is overwritten when it is given up.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Sequence
from functools import cache

NAME = "secret-memory"
"""How a sealed worker names it in what it says to be confined by."""
_MEMFD_SECRET = 447
"""The same on all architectures that have it."""
_CLOSE_ON_EXEC = 0o2000000
_DONT_FORK, _DONT_DUMP = 10, 16
_FAILED = ctypes.c_void_p(-1).value


class SecretMemory:
    """One page for a secret.

    Attributes:
        protected: Whether the kernel keeps it out of its own map.
    """

    def __init__(self, *, plain: bool = False) -> None:
        """Takes a page; before a process gives up the system calls for it.

        Args:
            plain: Do not ask the kernel for secret memory.
        """
        address = 0 if plain else _secret_page()
        self.protected = address != 0
        self._address = address or _mapped(-1, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if not self._address:
            raise MemoryError("no page for a secret")
        for advice in (_DONT_FORK, _DONT_DUMP) if sys.platform == "linux" else ():
            _libc().madvise(ctypes.c_void_p(self._address), ctypes.c_size_t(mmap.PAGESIZE), advice)

    @property
    def address(self) -> int:
        """Where it is: for libraries that read and write a secret in place.

        Raises:
            ValueError: It was given up.
        """
        if not self._address:
            raise ValueError("this memory was given up")
        return self._address

    def erase(self) -> None:
        """Overwrites the content and gives the page up; doing it twice does no harm."""
        if self._address:
            ctypes.memset(self._address, 0, mmap.PAGESIZE)
            _libc().munmap(ctypes.c_void_p(self._address), ctypes.c_size_t(mmap.PAGESIZE))
            self._address = 0


def secret(memories: Sequence[SecretMemory]) -> list[str]:
    """Returns `NAME` if all of these are protected, and nothing else."""
    return [NAME] if all(each.protected for each in memories) else []


def _secret_page() -> int:
    """Returns where a page of secret memory is; 0 if there is none to be had."""
    if sys.platform != "linux":
        return 0
    descriptor = _libc().syscall(_MEMFD_SECRET, _CLOSE_ON_EXEC)
    if descriptor < 0:
        return 0
    try:
        os.ftruncate(descriptor, mmap.PAGESIZE)
        return _mapped(descriptor, mmap.MAP_SHARED)
    except OSError:
        return 0
    finally:
        os.close(descriptor)  # or a child could map it


def _mapped(descriptor: int, flags: int) -> int:
    """Maps a page, and returns where it is; 0 if that is not permitted (secret memory counts as locked)."""
    call = _libc().mmap
    call.restype = ctypes.c_void_p
    access = mmap.PROT_READ | mmap.PROT_WRITE
    found = call(None, ctypes.c_size_t(mmap.PAGESIZE), access, flags, descriptor, ctypes.c_long(0))
    return 0 if found is None or found == _FAILED else int(found)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
