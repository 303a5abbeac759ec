"""A log as a directory of files that any web server can offer (c2sp.org/tlog-tiles).

    checkpoint                       the signed checkpoint
    tile/<level>/<number>[.p/<n>]    up to 256 hashes of 32 bytes; level 0 holds leaf hashes, level l + 1 the roots of
                                     the full tiles of level l
    tile/entries/<number>[.p/<n>]    up to 256 entries, each behind its length (2 bytes, big endian)

`<number>` is written in groups of three digits, all but the last behind an x: 1234067 is `x001/x234/067`. `.p/<n>`
names a tile that is not full yet, and how many hashes or entries it has. Our directories hold one thing more, which
tells whose log it is: `head`, the chip's head token over the checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from weighbridge.core import merkle
from weighbridge.core.bounded import open_regular
from weighbridge.core.errors import FormatError, TranscriptError, UsageError

WIDTH = 256
MAX_ENTRY_BYTES = (1 << 16) - 1
"""What the two bytes of an entry's length can say."""

_LENGTH = 2


class TilesError(FormatError):
    """A directory of tiles is malformed, or its parts contradict each other."""

    code = "chip.tiles"


def tile_path(level: int | None, number: int, width: int = WIDTH) -> str:
    """Returns where a tile lies, relative to the log's directory.

    Args:
        level: 0 to 63; None for entries.
        number: Its index in its level, from 0.
        width: Hashes or entries in it, 1 to 256.
    """
    digits = f"{number % 1000:03}"
    while number := number // 1000:
        digits = f"x{number % 1000:03}/{digits}"
    return f"tile/{'entries' if level is None else level}/{digits}" + (f".p/{width}" if width < WIDTH else "")


def tiles_of(size: int) -> Iterator[tuple[int, int, int]]:
    """Yields (level, number, width) of every tile of hashes of a tree with `size` leaves, from the leaves upwards."""
    level = 0
    while size:
        for number in range(size // WIDTH):
            yield level, number, WIDTH
        if size % WIDTH:
            yield level, size // WIDTH, size % WIDTH
        level, size = level + 1, size // WIDTH


def encode_bundle(entries: Sequence[bytes]) -> bytes:
    """Returns entries as one file; `decode_bundle` reads them back.

    Raises:
        UsageError: An entry is longer than its length can say.
    """
    if any(len(each) > MAX_ENTRY_BYTES for each in entries):
        raise UsageError(f"An entry of a log has at most {MAX_ENTRY_BYTES} bytes.")
    return b"".join(len(each).to_bytes(_LENGTH) + each for each in entries)


def decode_bundle(data: bytes) -> list[bytes]:
    """Reads a bundle of entries, so that encoding them again gives the same bytes.

    Raises:
        TilesError: It is cut off.
    """
    entries, place = [], 0
    while place < len(data):
        end = place + _LENGTH + int.from_bytes(data[place : place + _LENGTH])
        if place + _LENGTH > len(data) or end > len(data):
            raise TilesError("A bundle of entries is cut off.")
        entries.append(data[place + _LENGTH : end])
        place = end
    return entries


def files(entries: Sequence[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yields (path, content) of every tile and bundle of a log with these entries."""
    for number in range(0, -(-len(entries) // WIDTH)):
        part = entries[number * WIDTH : (number + 1) * WIDTH]
        yield tile_path(None, number, len(part)), encode_bundle(part)
    hashes = [merkle.leaf_hash(each) for each in entries]
    for level, number, width in tiles_of(len(entries)):
        if level and number == 0:
            hashes = [merkle.root(hashes[at : at + WIDTH]) for at in range(0, len(hashes) // WIDTH * WIDTH, WIDTH)]
        yield tile_path(level, number, width), b"".join(hashes[number * WIDTH : number * WIDTH + width])


def write(directory: Path, entries: Sequence[bytes], checkpoint: bytes, head: bytes) -> None:
    """Writes a log as a directory.

    Args:
        directory: Must not exist.
        entries: All entries.
        checkpoint: The signed checkpoint over them.
        head: The chip's head token over the checkpoint.

    Raises:
        UsageError: There is something already, or it cannot be written.
    """
    try:
        directory.mkdir(parents=True)
        for path, content in [*files(entries), ("head", head), ("checkpoint", checkpoint)]:
            (directory / path).parent.mkdir(parents=True, exist_ok=True)
            (directory / path).write_bytes(content)
    except OSError as error:
        raise UsageError(f"{directory} cannot be written ({error.strerror}); name a new directory.") from error


def read(directory: Path, size: int) -> tuple[list[bytes], list[str]]:
    """Reads the entries of a log from its directory and compares all tiles with them.

    Args:
        directory: With `checkpoint` and `tile`; a tile may be there in full and in part.
        size: Entries, as the checkpoint says.

    Returns:
        The entries, and the paths of tiles that are missing, or contradict the entries.

    Raises:
        TilesError: Entries are missing or unreadable, or there are more than a file's name says.
    """
    entries: list[bytes] = []
    while len(entries) < size:
        width = min(WIDTH, size - len(entries))
        number = len(entries) // WIDTH
        data, most = _content(directory, tile_path(None, number, width)), width
        if data is None and width < WIDTH:
            data, most = _content(directory, tile_path(None, number)), WIDTH
        part = decode_bundle(data) if data is not None else []
        if len(part) > most:
            raise TilesError(f"A bundle of {directory} has more entries than its name says; fetch the log again.")
        if len(part) < width:
            raise TilesError(f"Entries from {len(entries)} on are missing in {directory}; fetch the log again.")
        entries += part[:width]
    wrong = []
    for path, content in files(entries):
        if path.startswith("tile/entries/"):
            continue
        found = _content(directory, path)
        if found is None:
            found = (_content(directory, path.partition(".p/")[0]) or b"")[: len(content)]
        if found != content:
            wrong.append(path)
    return entries, wrong


def _content(directory: Path, path: str) -> bytes | None:
    """Returns what is in a file; None if it is not there, or is a link, a pipe or a device."""
    try:
        with open_regular(directory / path) as file:
            return file.read(WIDTH * (MAX_ENTRY_BYTES + _LENGTH) + 1)
    except (OSError, TranscriptError):
        return None
