"""A text corpus that every machine with Python has: the sources of Python's own library, as bytes."""

from __future__ import annotations

import sysconfig
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weighbridge.core.errors import UsageError


@lru_cache(maxsize=2)
def library_records(length: int, limit: int) -> NDArray[np.uint8]:
    """Returns records of `length` bytes from the library's top-level modules, in the order of their names.

    The records lie in host memory (NumPy), as a data loader's would. They differ between Python versions; within one
    they are the same on every machine.

    Args:
        length: Bytes in a record.
        limit: Most records to return.

    Returns:
        Array of shape (records, length).

    Raises:
        UsageError: The library has no sources here, or too few for one record.
    """
    library = Path(sysconfig.get_paths()["stdlib"])
    text = bytearray()
    for path in sorted(library.glob("*.py"), key=lambda path: path.name):
        text += path.read_bytes()
        if len(text) >= length * limit:
            break
    count = min(len(text) // length, limit)
    if not count:
        raise UsageError(f"no library sources in {library}; install Python with its standard library as files")
    return np.frombuffer(bytes(text[: count * length]), dtype=np.uint8).reshape(count, length)
