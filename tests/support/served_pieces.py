"""The pieces in which a Prover's service hands out a transcript."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Piece:
    """One piece, as in `FetchTranscriptResponse`."""

    path: str
    offset: int
    data: bytes
    last: bool


def pieces(root: Path, *, size: int = 100) -> list[Piece]:
    """Returns the files below a directory in pieces of so many bytes."""
    found = []
    for path in sorted(root.rglob("*")):
        if path.is_file():
            data, name = path.read_bytes(), path.relative_to(root).as_posix()
            cuts = range(0, max(1, len(data)), size)
            found += [Piece(name, at, data[at : at + size], at == cuts[-1]) for at in cuts]
    return found
