"""Bounded decoding: reading bytes from outside without running out of memory, time or exceptions.

Everything that a transcript contains passes through here first. Each function takes an explicit cap and raises only
`FormatError` or `TranscriptError`, whatever the bytes are. What decoded bytes may take is in proportion to the bytes
that were sent: a few kilobytes of zstd can state gigabytes, and a byte of CBOR can become a hundred bytes of Python.
"""

from __future__ import annotations

import io
import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import cbor2
import numpy as np
import zstandard
from blake3 import blake3

from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError, TranscriptError

_MIB = 1 << 20
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a reader is willing to take from a transcript; all sizes in bytes.

    The defaults fit runs of a few hundred million parameters; raise them for larger ones. Decoded CBOR and JSON can
    take many times the room of their bytes, so those limits are the tight ones.

    Attributes:
        manifest: Size of `manifest.json`.
        files: Number of files in the directory.
        file: Size of one file as it lies on disk.
        steps: Number of steps.
        records: Step records of one segment, decompressed.
        rounding: Rounding logs of one segment, decompressed.
        tape: One tape, decompressed.
        header: JSON header of a tensor file.
        tensors: Number of tensors in one tensor file.
        items: CBOR items in one tape, or in the step records of one segment; decoded, one takes about 100 bytes.
    """

    manifest: int = 32 * _MIB
    files: int = 200_000
    file: int = 64 << 30
    steps: int = 10_000_000
    records: int = 128 * _MIB
    rounding: int = 1 << 30
    tape: int = 256 * _MIB
    header: int = 32 * _MIB
    tensors: int = 200_000
    items: int = 32 << 20


DEFAULT_LIMITS = Limits()

MAX_ITEMS = 1 << 20
"""Items of CBOR or JSON that are decoded without a further reason: a draft, notes, a manifest, a token."""

_WORDS = 200
"""Most characters of a decoder's own words in a message."""

_FREE_BYTES, _EXPANSION = 1 << 20, 1024
"""What a zstd frame may expand to: so many bytes, and so many times its own size. Step records that repeat the values
of an optimizer's many parameters reach a few hundred times."""
_FREE_ITEMS, _ITEMS_PER_BYTE = 1 << 18, 128
"""What compressed CBOR may decode to: so many items, and so many for each byte of the frame."""


def _refuse_tag(*_: Any) -> NoReturn:
    raise ValueError("tags are not allowed here")


# Tags that cbor2 decodes by itself; some of them (5: bigfloat, 36: regular expression) cost unbounded time.
_TAGS: dict[int, Callable[[Any, bool], Any]] = dict.fromkeys(
    (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 100, 256, 258, 260, 261, 1004, 43000, 55799), _refuse_tag
)


def decode_cbor(data: bytes, *, max_depth: int = 16, max_items: int = MAX_ITEMS) -> Any:
    """Decodes one deterministic CBOR item (RFC 8949, section 4.2.1) without tags.

    Args:
        data: Exactly one item; its own deterministic re-encoding must give the same bytes.
        max_depth: Deepest nesting of arrays and maps.
        max_items: Most items in it, itself included.

    Raises:
        FormatError: The bytes are not CBOR, not deterministic, tagged, too deep, too many items or followed by more
            bytes.
    """
    (value,) = decode_cbor_sequence(data, max_length=1, max_depth=max_depth, max_items=max_items)
    return value


def decode_cbor_sequence(
    data: bytes, *, max_length: int, max_depth: int = 16, max_items: int = MAX_ITEMS
) -> Iterator[Any]:
    """Decodes a CBOR sequence (RFC 8742) of deterministic items without tags, one after the other as they are wanted.

    Args:
        data: The items, one after the other.
        max_length: Most items of the sequence to accept.
        max_depth: Deepest nesting of arrays and maps.
        max_items: Most items in all of them, themselves included.

    Raises:
        FormatError: As for `decode_cbor`, or the sequence is too long or empty.
    """
    check_items(data, max_items)
    decoder = cbor2.CBORDecoder(
        io.BytesIO(data),
        tag_hook=_refuse_tag,
        semantic_decoders=_TAGS,
        max_depth=max_depth,
        allow_indefinite=False,
        allow_duplicate_keys=False,
        strict_hashable_types=True,
    )
    position = length = 0
    while position < len(data) or not length:
        if length == max_length:
            raise FormatError(
                f"more CBOR than the {max_length} items expected here; the bytes are damaged or foreign",
                position=position,
            )
        try:
            value = decoder.decode()
            encoded = cbor(value)
        except (cbor2.CBORError, ValueError, TypeError, OverflowError, RecursionError, MemoryError) as error:
            why = str(error)[:_WORDS]  # it may quote a key of any length
            raise FormatError(f"not acceptable CBOR ({why}); fetch the bytes again", position=position) from None
        if data[position : position + len(encoded)] != encoded:
            raise FormatError("CBOR is not in its deterministic encoding; re-encode it", position=position)
        position += len(encoded)
        length += 1
        yield value


def check_items(data: bytes, most: int) -> None:
    """Refuses CBOR of more than `most` items, at the price of one pass over its bytes.

    Raises:
        FormatError: There are more, or lengths lead past the end.
    """
    if len(data) <= most:
        return  # an item has a byte at least
    from weighbridge.core import cbor_items  # noqa: PLC0415 (loads Numba, and little is so large)

    found = cbor_items.count(np.frombuffer(data, dtype=np.uint8), most)
    if found == cbor_items.MALFORMED:
        raise FormatError("not acceptable CBOR (a length is indefinite or leads past the end); fetch the bytes again")
    if found > most:
        raise FormatError(
            f"CBOR of more than {most} items, in {len(data)} bytes; the bytes are damaged or foreign", items=most
        )


def expand_cbor(packed: bytes, *, max_bytes: int, max_items: int) -> bytes:
    """Expands a zstd frame of CBOR, if that is no more than the frame's own size justifies.

    Args:
        packed: One zstd frame.
        max_bytes: As for `decompress`.
        max_items: Most CBOR items in any case; a frame of n bytes may have 2^18 + 128 n.

    Raises:
        FormatError: As for `decompress`, or there are too many items.
    """
    data = decompress(packed, max_bytes=max_bytes)
    check_items(data, min(max_items, _FREE_ITEMS + _ITEMS_PER_BYTE * len(packed)))
    return data


def decode_json(text: bytes, *, max_items: int = MAX_ITEMS, unique_keys: bool = False) -> Any:
    """Decodes JSON in UTF-8.

    Args:
        text: The document.
        max_items: Most values and keys in it, counted generously: every comma, colon and bracket, in texts too.
        unique_keys: Whether to refuse an object that has a key twice.

    Raises:
        FormatError: It is not JSON, or has too many items.
    """
    if len(text) > max_items and sum(map(text.count, (b",", b":", b"[", b"{"))) > max_items:
        raise FormatError(f"JSON of more than {max_items} items; the bytes are damaged or foreign")
    try:
        return json.loads(text.decode(), object_pairs_hook=_unique if unique_keys else None)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON ({error}); fetch the bytes again") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key occurs twice")
    return result


def compress(data: bytes) -> bytes:
    """Returns one zstd frame (RFC 8878) that states its content size."""
    return zstandard.ZstdCompressor(level=3).compress(data)


def decompress(data: bytes, *, max_bytes: int) -> bytes:
    """Expands exactly one zstd frame whose header states a content size from 1 to `max_bytes`.

    Beyond a mebibyte, the content may be at most 1,024 times the frame.

    Raises:
        FormatError: The frame is damaged, is followed by more bytes, hides its size or is larger than allowed.
    """
    try:
        size = zstandard.get_frame_parameters(data).content_size
        if size in (0, zstandard.CONTENTSIZE_UNKNOWN):
            raise FormatError("zstd frame is empty or does not state its size; compress it with a content size")
        if size > min(max_bytes, _FREE_BYTES + _EXPANSION * len(data)):
            raise FormatError(
                f"zstd frame of {len(data)} bytes expands to {size}, above the limit of {max_bytes}, and of "
                f"{_EXPANSION} times itself; the bytes are damaged or foreign",
                size=size,
            )
        plain = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompress(
            data, max_output_size=size, allow_extra_data=False
        )
    except (zstandard.ZstdError, MemoryError, ValueError) as error:
        raise FormatError(f"not a whole zstd frame ({error}); fetch the bytes again") from None
    if len(plain) != size:
        raise FormatError(f"zstd frame states {size} bytes and holds {len(plain)}; fetch the bytes again")
    return plain


def walk_files(root: Path, *, max_files: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yields (POSIX path relative to `root`, lstat) of everything below `root` that is not a directory.

    Symbolic links are yielded, never followed.

    Raises:
        TranscriptError: `root` is not a readable directory, or holds more than `max_files` entries.
    """
    pending, seen = [root], 0
    while pending:
        here = pending.pop()
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError as error:
            raise TranscriptError(
                f"cannot list {here} ({error.strerror}); give the directory of a transcript"
            ) from None
        for entry in entries:
            seen += 1
            if seen > max_files:
                raise TranscriptError(
                    f"more than {max_files} entries below {root}; remove what does not belong to the transcript",
                    code="transcript.file.unlisted",
                )
            if entry.is_dir(follow_symlinks=False):
                pending.append(Path(entry.path))
            else:
                yield Path(entry.path).relative_to(root).as_posix(), entry.stat(follow_symlinks=False)


def read_file(path: Path, *, max_bytes: int) -> bytes:
    """Reads a regular file of at most `max_bytes` bytes, without following a symbolic link.

    Raises:
        TranscriptError: `transcript.file.missing`, `.oversized`, or `.altered` when it is not a regular file.
    """
    with open_regular(path) as file:
        # `read` allocates what it is asked for, so it is asked for no more than there is.
        data = file.read(min(os.fstat(file.fileno()).st_size, max_bytes) + 1)
    if len(data) > max_bytes:
        raise TranscriptError(
            f"{path.name} is larger than {max_bytes} bytes; raise the limit if you trust its origin",
            code="transcript.file.oversized",
            path=path.name,
        )
    return data


def open_regular(path: Path) -> io.BufferedReader:
    """Opens a regular file for reading, refusing symbolic links, pipes and devices.

    Raises:
        TranscriptError: `transcript.file.missing`, or `.altered` when it is not a regular file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise TranscriptError(
            f"{path.name} is missing; fetch it again", code="transcript.file.missing", path=path.name
        ) from None
    except (OSError, ValueError) as error:
        raise TranscriptError(
            f"{path.name} cannot be opened ({error}); a transcript holds regular files only",
            code="transcript.file.altered",
            path=path.name,
        ) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise TranscriptError(
            f"{path.name} is not a regular file; a transcript holds regular files only",
            code="transcript.file.altered",
            path=path.name,
        )
    return os.fdopen(descriptor, "rb")


def file_digest(path: Path) -> tuple[int, bytes]:
    """Returns (bytes, 32-byte BLAKE3 digest) of a regular file.

    Raises:
        TranscriptError: As for `open_regular`.
    """
    hasher, size = blake3(), 0
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
            size += len(chunk)
    return size, hasher.digest()
