"""What a Prover commits to before a worker starts: which files one job gets, and nothing that tells what is in them.

A list names every file with its size and digest, after 32 random bytes. Its commitment is a digest of its one encoding.
Without the random bytes no guess about the files can be confirmed, and each list has others: two commitments to the
same files differ. `sealed_channel` sends the list and then the files to a worker.

Reading is strict: a list has one encoding, and everything else is a `FormatError`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from blake3 import blake3

from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import DIGEST_SIZE, cbor
from weighbridge.core.errors import FormatError, UsageError

BLIND_SIZE = 32
LIST_LIMIT = 1 << 20
"""So many bytes the encoding of a list may have."""

SIZE_LIMIT = 1 << 44
DIRECTORIES = 1 << 10
"""So many directories the names of a list may need: each takes a block of a disk that no size in the list counts."""
_DOMAIN = b"weighbridge/sealed-list/1\x00"
_PART = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"
_NAME = re.compile(rf"{_PART}(?:/{_PART}){{0,7}}")
_NAME_LIMIT = 255
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True)
class SealedFile:
    """One file of a list.

    Attributes:
        name: Its path: up to eight parts out of letters, digits, `_`, `-` and `.`, none of which begins with a dot.
        size: Its size in bytes.
        digest: The BLAKE3 digest of its content (32 bytes).
    """

    name: str
    size: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class SealedList:
    """The files of one job, in the order in which they are sent.

    Attributes:
        blind: 32 random bytes, used for this list only.
        files: Ascending by name; no name is a directory of another.
    """

    blind: bytes
    files: tuple[SealedFile, ...]

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            FormatError: A field is none of its kind, or names are out of order.
        """
        if type(self.blind) is not bytes or len(self.blind) != BLIND_SIZE:
            raise FormatError("a list of sealed files begins with 32 random bytes")
        if not self.files:
            raise FormatError("a list of sealed files names at least one")
        for each in self.files:
            _check(each)
        names = [each.name for each in self.files]
        if any(one >= two for one, two in pairwise(names)):
            raise FormatError("the names of a list of sealed files do not ascend")
        directories = {str(parent) for name in names for parent in Path(name).parents}
        if not directories.isdisjoint(names):
            raise FormatError("a name in a list of sealed files is a directory of another")
        if len(directories) > DIRECTORIES:
            raise FormatError(f"a list of sealed files needs more than {DIRECTORIES} directories")

    def to_cbor(self) -> bytes:
        """Returns the one encoding of this list."""
        return cbor([self.blind, [[each.name, each.size, each.digest] for each in self.files]])

    @classmethod
    def from_cbor(cls, data: bytes) -> SealedList:
        """Reads a list.

        Law: `from_cbor(l.to_cbor()) == l`; and where `from_cbor(data)` returns, its `to_cbor()` is `data`.

        Raises:
            FormatError: The bytes are not the encoding of a list.
        """
        if len(data) > LIST_LIMIT:
            raise FormatError("a list of sealed files is too large")
        match decode_cbor(data, max_depth=4):
            case [bytes(blind), [*files]]:
                found = cls(blind, tuple(map(_file_of, files)))
            case _:
                raise FormatError("a list of sealed files is not random bytes and an array")
        if found.to_cbor() != data:
            raise FormatError("a list of sealed files is not in its one encoding")
        return found


def commitment(encoded: bytes) -> bytes:
    """Returns what an encoded list is committed to by (32 bytes), whether or not it can be read."""
    return blake3(_DOMAIN + encoded).digest()


def list_files(root: Path, names: Iterable[str]) -> SealedList:
    """Lists files of a directory under fresh random bytes.

    Args:
        root: The directory.
        names: Their paths within it.

    Raises:
        UsageError: A file cannot be read.
        FormatError: The names cannot be those of a list.
    """
    files = []
    for name in sorted(set(names)):
        try:
            files.append(SealedFile(name, *_measured(root / name)))
        except OSError as error:
            raise UsageError(f"cannot read {root / name} ({error.strerror}); name a file that is there") from None
    found = SealedList(secrets.token_bytes(BLIND_SIZE), tuple(files))
    if len(found.to_cbor()) > LIST_LIMIT:
        raise FormatError("a list of sealed files is too large")
    return found


def _measured(path: Path) -> tuple[int, bytes]:
    size, digest = 0, blake3()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            size += len(block)
            digest.update(block)
    return size, digest.digest()


def _file_of(value: Any) -> SealedFile:
    match value:
        case [str(name), int(size), bytes(digest)]:
            return SealedFile(name, size, digest)
        case _:
            raise FormatError("a sealed file is not named by a name, a size and a digest")


def _check(file: SealedFile) -> None:
    if len(file.name) > _NAME_LIMIT or not _NAME.fullmatch(file.name):
        raise FormatError("a sealed file has a name that files of a list may not have")
    if type(file.size) is not int or not 0 <= file.size <= SIZE_LIMIT:
        raise FormatError("a sealed file has no size that a file may have")
    if len(file.digest) != DIGEST_SIZE:
        raise FormatError("a sealed file has a digest that is not 32 bytes")
