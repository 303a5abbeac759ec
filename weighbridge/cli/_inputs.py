"""What many commands take: `--json`, the directory of a transcript, and files, with one message for each fault."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weighbridge.core import secret_files
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from weighbridge.attest.manifest import SigningKey

MAX_FILE_BYTES = 64 << 20

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Run = Annotated[Path, typer.Argument(help="Transcript directory.")]


def read_file(path: Path, advice: str = "name the right file", *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """Reads a file that a user named, whole; also a pipe.

    Raises:
        UsageError: It cannot be read, or is too large.
    """
    try:
        with path.open("rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror}); {advice}") from None
    if len(data) > max_bytes:
        raise UsageError(f"{path} has more than {max_bytes} bytes; {advice}")
    return data


def write_file(path: Path, data: bytes) -> None:
    """Writes a file so that a reader sees all of it or nothing, and a failure leaves the old one.

    Raises:
        UsageError: It cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}); choose another place") from None


def require_different(*paths: Path) -> None:
    """Checks that no file is named twice: what a command writes must not take the place of what it reads or keeps.

    Raises:
        UsageError: One is.
    """
    places = [os.path.realpath(path) for path in paths]
    for path, place in zip(paths, places, strict=True):
        if places.count(place) > 1:
            raise UsageError(f"{path} is named twice; choose another file for one of the two")


def require_transcript(run: Path) -> None:
    """Checks that a directory holds a transcript.

    Raises:
        UsageError: It does not.
    """
    if not (run / "manifest.json").is_file():
        lacks = "it has no manifest.json" if run.is_dir() else "there is no such directory"
        raise UsageError(
            f"{run} is no transcript: {lacks}; give the directory of a transcript (`weighbridge transcript recover` "
            "one whose recording crashed)"
        )


def signing_key(path: Path) -> SigningKey:
    """Returns a party's private key out of a file, which has to be there.

    Raises:
        UsageError: There is no such file, it is no Ed25519 key, or others may read it.
    """
    from weighbridge.attest.manifest import load_or_create_key

    if not path.exists():
        raise UsageError(f"there is no key {path}; make it with `weighbridge rules key {path}`")
    return load_or_create_key(path)


def require_database(where: str) -> None:
    """Checks that a Verifier's database exists, if it is a file: a mistyped path must not become an empty one.

    Raises:
        UsageError: There is no such file.
    """
    if "://" not in where and not Path(where).is_file():
        raise UsageError(f"there is no database {where}; name the one that the Verifier was started with")


def gib(amount: float, option: str) -> int:
    """Returns GiB in bytes.

    Raises:
        UsageError: It is no number of bytes; the message names the option.
    """
    if not 0 < amount < 1 << 20:  # also what is no number
        raise UsageError(f"{option} is a number of GiB above 0")
    return int(amount * (1 << 30))


def in_hex(text: str, option: str) -> bytes:
    """Returns bytes that are given in hex.

    Raises:
        UsageError: They are not; the message names the option.
    """
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise UsageError(f"{option} is given in hex") from None


def list_beside(path: Path) -> Path:
    """Returns where the list of the files lies that an order or a seat commits to."""
    return path.with_name(path.name + ".list")


def read_private(path: Path) -> bytes:
    """Reads a file of the user's own.

    Raises:
        UsageError: Others may read it, or it cannot be read.
    """
    secret_files.require_private(path)
    return read_file(path)


def write_private(path: Path, data: bytes) -> None:
    """Writes a file that only its owner may read, in place of the one that is there.

    Raises:
        UsageError: It cannot be written.
    """
    try:
        secret_files.write(path, data)
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}); choose another place") from None
