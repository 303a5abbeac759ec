"""Transcripts with a file that was made to harm who decodes it, signed anew so that every digest is right."""

from __future__ import annotations

import shutil
from pathlib import Path

import zstandard
from support.uploading import resigned

from weighbridge.attest.manifest import open_manifest
from weighbridge.core.bounded import file_digest
from weighbridge.transcript.chip_notes import CHIPS
from weighbridge.transcript.steps import steps_path
from weighbridge.transcript.writer import DRAFT, MANIFEST

MIB = 1 << 20
TAPE = "tapes/"


def bomb(size: int, byte: bytes = b"\x80") -> bytes:
    """A zstd frame that expands to `size` items of CBOR."""
    return zstandard.ZstdCompressor(level=3).compress(byte * size)


HOSTILE = {
    "step records of 42 million items in 4 kB": (steps_path(0), bomb(42 * MIB)),
    "step records of 5 million items": (steps_path(0), bomb(5 * MIB)),
    "a tape of 42 million items in 4 kB": (TAPE, bomb(42 * MIB)),
    "rounding logs of 300 MiB": ("rounding/00000000.wlog.zst", bomb(300 * MIB, b"\x40")),
    "a draft of a million items": (DRAFT, b"\x9a\x00\x10\x00\x00" + b"\x80" * MIB),
    "notes of a million items": (CHIPS, b"\x9a\x00\x10\x00\x00" + b"\x80" * MIB),
}
"""By what it is: which file of a transcript, and what stands in it. `TAPE` is any tape."""


def hostile(honest: Path, target: Path, path: str, content: bytes) -> Path:
    """A copy of a transcript with another file in the place of one of its own, signed anew."""
    if path == TAPE:
        path = min(str(each.relative_to(honest)) for each in (honest / "tapes").iterdir())
    shutil.copytree(honest, target)
    (target / path).write_bytes(content)
    manifest = open_manifest((target / MANIFEST).read_bytes())
    listed = {name: (size, digest) for name, size, digest in manifest.files}
    size, digest = file_digest(target / path)
    listed[path] = size, digest.hex()
    _, text = resigned((target / MANIFEST).read_bytes(), [(name, *each) for name, each in listed.items()])
    (target / MANIFEST).write_bytes(text)
    return target
