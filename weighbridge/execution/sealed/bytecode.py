"""Compiles Python's bytecode for an image, so that the same sources give the same bytes. Imports the standard library.

Run as a script: `python bytecode.py ROOT SHARD SHARDS` compiles every so manieth file below a root. The files of an
installation will not do: they have the time and the place of their source in them, and which constants Python's own
writer marks as shared depends on what else the process holds. Format 2 of `marshal` marks none.
"""

from __future__ import annotations

import importlib.util
import marshal
import os
import sys
import warnings
from pathlib import Path

_FORMAT = 2
_UNCHECKED = (1).to_bytes(4, "little")
"""Code that is found by the digest of its source, and used without asking for it: the list of the image names both."""


def main(root: Path, shard: int, shards: int) -> None:
    """Compiles what falls to one of several processes."""
    warnings.simplefilter("ignore")
    names = sorted(
        os.path.relpath(os.path.join(at, name), root)
        for at, _, files in os.walk(root)
        for name in files
        if name.endswith(".py")
    )
    for name in names[shard::shards]:
        source = (root / name).read_bytes()
        if (code := compiled(source, f"/{name}")) is not None:
            target = root / importlib.util.cache_from_source(name, optimization="")
            target.parent.mkdir(exist_ok=True)
            target.write_bytes(code)


def compiled(source: bytes, path: str) -> bytes | None:
    """Returns the content of the file of bytecode; None if the source is none for this Python.

    Args:
        source: The module's source.
        path: Where a worker has it.
    """
    try:
        code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError):  # templates, and files for other versions
        return None
    digest = importlib.util.source_hash(source)
    return importlib.util.MAGIC_NUMBER + _UNCHECKED + digest + marshal.dumps(code, _FORMAT)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
