"""What the commands about the chip registry share: how it is opened, and how keys and chips are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weighbridge.cli._inputs import read_file, require_database
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from verifier.registry import Registry
    from weighbridge.attest.custody_statements import PrivateKey, PublicKey
    from weighbridge.attest.tlog import NoteKey

Db = Annotated[
    str, typer.Option("--db", envvar="WEIGHBRIDGE_DB", help="The Verifier's database: an SQLite file or a URL.")
]
Key = Annotated[
    Path | None,
    typer.Option("--key", help="The registry's key, made if there is none; by default beside an SQLite file."),
]
Vkey = Annotated[Path, typer.Option("--public-key", help="File with the registry's public key (.pub).")]


def open_registry(db: str, key: Path | None = None, *, signing: bool = False, create: bool = False) -> Registry:
    """Opens the registry.

    Args:
        db: Its database.
        key: File of its key; by default `<db>.registry-key`.
        signing: Whether the key is needed; it is made if there is none.
        create: Whether a new registry may be made; a mistyped path must not become an empty one.

    Raises:
        UsageError: It cannot be opened, or nothing says where the key is.
    """
    from verifier.registry import Registry, load_key

    if not create:
        require_database(db)
    if not signing:
        return Registry(db)
    if key is None and "://" in db:
        raise UsageError("behind a URL, the registry's key has to be named; add --key")
    return Registry(db, load_key(key or Path(db + ".registry-key")))


def write_new(path: Path, data: bytes) -> None:
    """Writes a new file.

    Raises:
        UsageError: There is one already, or it cannot be written.
    """
    try:
        with path.open("xb") as file:
            file.write(data)
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}); name a new file") from error


def ueid_of(text: str) -> bytes:
    """Reads a UEID in hexadecimal.

    Raises:
        UsageError: It is none.
    """
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise UsageError(f"a UEID must be hexadecimal, not {text[:80]!r}") from None


def chip_of(registry: Registry, given: str) -> bytes:
    """Returns the UEID of the one chip of a registry that has a name, or whose UEID begins so.

    Raises:
        UsageError: There is none, or there are several; the message lists some of them.
    """
    from weighbridge.cli._shortened import resolve_chip

    found = {chip.ueid.hex(): chip.name for chip in registry.find(given)}
    return bytes.fromhex(resolve_chip(given, found, "`weighbridge registry export -` lists all"))


def ueids_in(path: Path) -> list[bytes]:
    """Reads UEIDs in hexadecimal, one a line.

    Raises:
        UsageError: A line is none; the message names it.
    """
    out = []
    for number, line in enumerate(read_file(path).decode("utf-8", "replace").splitlines(), 1):
        if line.strip():
            try:
                out.append(bytes.fromhex(line.strip()))
            except ValueError:
                raise UsageError(f"line {number} of {path} is no UEID in hexadecimal; correct the file") from None
    return out


def public_key(path: Path) -> PublicKey:
    """Reads a party's public key from a PEM certificate or a PEM public key.

    Raises:
        WeighbridgeError: It is neither, or a key of another kind than parties have.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    from weighbridge.attest.certificates import load_certificate
    from weighbridge.attest.custody_statements import decode_key

    pem = read_file(path)
    spki = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    try:
        if b"BEGIN CERTIFICATE" in pem:
            return decode_key(load_certificate(pem).public_key().public_bytes(*spki))
        return decode_key(serialization.load_pem_public_key(pem).public_bytes(*spki))
    except (ValueError, UnsupportedAlgorithm):
        raise UsageError(f"{path} is neither a PEM certificate nor a PEM public key; name the right file") from None


def private_key(path: Path) -> PrivateKey:
    """Reads a party's private key: PEM, not encrypted, P-384 or Ed25519.

    Raises:
        UsageError: It is none.
    """
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519

    try:
        key = serialization.load_pem_private_key(read_file(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP384R1):
        return key
    raise UsageError(f"{path} is no private key on P-384 or of Ed25519 (PEM, not encrypted); name the right file")


def note_key(path: Path) -> NoteKey:
    """Reads the registry's public key from the file that lies beside its private one.

    Raises:
        WeighbridgeError: It is none.
    """
    from weighbridge.attest.tlog import parse_key

    return parse_key(read_file(path).decode("utf-8", "replace").strip())
