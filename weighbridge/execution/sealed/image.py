"""The image of a sealed worker: every file that it has, listed with its digest, and nothing beside them.

The list is the whole closure: interpreter, its library, packages, this code with the loops that were compiled of it,
and the system's libraries. The *measurement* is a digest of the list. A worker gets copies, made in memory and compared
with the list on the way, so what runs is what was measured, also if the originals change meanwhile.

Times, owners and modes are not in the list: all files of a worker get the same ones. `building` makes an image so that
two parties with the same releases installed get the same list, wherever and whenever they do it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from weighbridge.attest.sealed_order import SealedWorkerError
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, UsageError

INTERPRETER = "usr/bin/python"
PROCESSOR = "code/processor"
"""The file that names the kind of processor that the image's loops were compiled for."""
LIBRARIES = ("usr", "site", "code", "lib", "lib64")
"""Directories of an image."""
MANIFEST, FILES, EMPTY = "image.cbor", "root", "empty"
"""What a directory of an image has: the list, the files, and a directory in whose place a worker has its own memory."""
CHANGED_NS = 315532800 * 10**9
"""When every file of a worker was last changed: 1980-01-01. Compiled loops are only used for source of one time."""
_DOMAIN = b"weighbridge/sealed-image/2\x00"
_ITEMS = 1 << 20
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One file of an image.

    Attributes:
        name: Its path below the worker's root.
        size: Its size in bytes.
        digest: The BLAKE3 digest of its content (32 bytes).
    """

    name: str
    size: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Image:
    """All files of a sealed worker, ascending by name."""

    files: tuple[ImageFile, ...]

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            FormatError: A field is none of its kind, or names are out of order or lead out of the image.
        """
        for each in self.files:
            parts = each.name.split("/")
            if parts[0] not in LIBRARIES or any(part in ("", ".", "..") for part in parts) or "\x00" in each.name:
                raise FormatError("a file of an image has a name that leads elsewhere")
            if each.size < 0 or len(each.digest) != 32:
                raise FormatError("a file of an image has no size or no digest")
        if any(one.name >= two.name for one, two in pairwise(self.files)):
            raise FormatError("the names of an image's files do not ascend")

    @property
    def measurement(self) -> bytes:
        """SHA-384 of the list (48 bytes): another one for any other byte of any file."""
        return hashlib.sha384(_DOMAIN + self.to_cbor()).digest()

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(each.size for each in self.files)

    def to_cbor(self) -> bytes:
        """Returns the one encoding of this list."""
        return cbor([[each.name, each.size, each.digest] for each in self.files])

    @classmethod
    def from_cbor(cls, data: bytes) -> Image:
        """Reads a list.

        Raises:
            FormatError: The bytes are not the encoding of one.
        """
        files, listed = [], decode_cbor(data, max_depth=3, max_items=_ITEMS)
        for each in listed if isinstance(listed, list) else [listed]:
            match each:
                case [str(name), int(size), bytes(digest)]:
                    files.append(ImageFile(name, size, digest))
                case _:
                    raise FormatError("a file of an image is not a name, a size and a digest")
        found = cls(tuple(files))
        if found.to_cbor() != data:
            raise FormatError("the list of an image is not in its one encoding")
        return found


def measure(root: Path) -> Image:
    """Lists the files below a directory, in one order whatever the directory's is."""
    paths = {str(path.relative_to(root)): path for path in root.rglob("*") if not path.is_dir()}
    return Image(tuple(_measured(name, paths[name]) for name in sorted(paths)))


def load(directory: Path) -> Image:
    """Reads the list of an image.

    Raises:
        UsageError: There is none.
        FormatError: It is malformed.
    """
    try:
        return Image.from_cbor((directory / MANIFEST).read_bytes())
    except OSError as error:
        raise UsageError(f"cannot read {error.filename}; make an image by `weighbridge site image`") from None


@dataclass(frozen=True, slots=True)
class Difference:
    """One file that two images do not share.

    Attributes:
        name: Its path below the worker's root.
        one: As the first image has it; None if it has none of that name.
        two: As the second has it.
    """

    name: str
    one: ImageFile | None
    two: ImageFile | None


def differences(one: Image, two: Image) -> Sequence[Difference]:
    """Returns all files that two images do not share, ascending by name: none exactly if their measurements agree."""
    first, second = ({each.name: each for each in image.files} for image in (one, two))
    pairs = ((name, first.get(name), second.get(name)) for name in sorted(first.keys() | second.keys()))
    return [Difference(*each) for each in pairs if each[1] != each[2]]


def copy(image: Image, source: Path, root: Path) -> None:
    """Copies an image below a root; each byte that is written was measured.

    Raises:
        SealedWorkerError: A file is not there, or not the one of the list (`sealed.image`).
    """
    for each in image.files:
        target = root / each.name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with (source / each.name).open("rb") as original, target.open("xb") as copied:
                size, digest = _read(original, copied)
        except OSError:
            size, digest = -1, b""
        if (size, digest) != (each.size, each.digest):
            raise SealedWorkerError(
                f"{each.name} is not the file of the image; install what was agreed on, or agree on a new image",
                code="sealed.image",
            )
        os.utime(target, ns=(CHANGED_NS, CHANGED_NS))
        # An interpreter that cannot be read cannot be attached to either, from its first instruction on.
        target.chmod(0o111 if each.name == INTERPRETER else 0o555)


def _measured(name: str, path: Path) -> ImageFile:
    with path.open("rb") as source:
        return ImageFile(name, *_read(source, None))


def _read(source: BinaryIO, copied: BinaryIO | None) -> tuple[int, bytes]:
    size, digest = 0, blake3()
    while chunk := source.read(_CHUNK):
        size += len(chunk)
        digest.update(chunk)
        if copied is not None:
            copied.write(chunk)
    return size, digest.digest()
