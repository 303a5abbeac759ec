"""The bundle: a ZIP file of parts and a signed statement that lists them. docs/formats/evidence.md has the bytes.

A bundle has exactly one form: parts in the order of their names, stored and not compressed, without dates and comments.
Reading writes the form anew and compares, so no byte of a file can change without notice, also outside of the parts.
Nothing can expand, and nothing leaves the directory that it is read into.
"""

from __future__ import annotations

import filecmp
import json
import re
import struct
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weighbridge.attest.dsse import DocumentError, canonical, open_envelope, seal
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.bounded import file_digest, open_regular
from weighbridge.core.digests import DIGEST_SIZE
from weighbridge.core.errors import FormatError, TranscriptError, UsageError

SCHEMA = "weighbridge-evidence/1"
MEDIA_TYPE = "application/vnd.weighbridge.evidence.v1+json"
STATEMENT = "evidence.dsse"
"""The part that lists the others."""

MAX_BUNDLE_BYTES = (1 << 32) - 1
"""A ZIP file with 32-bit sizes has fewer than 4 GiB; larger transcripts are named by digest and handed over apart."""
MAX_PARTS = 60_000
MAX_STATEMENT_BYTES = 32 << 20
_MAX_NAMES_BYTES = 64 << 20
_PIECE = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}"
_NAME = re.compile(rf"{_PIECE}(/{_PIECE}){{0,6}}")
_END = struct.Struct("<4s4H2LH")
_EPOCH = (1980, 1, 1, 0, 0, 0)


class EvidenceError(FormatError):
    """A file is no bundle of evidence, or its parts are not those that its statement lists."""

    code = "evidence.malformed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """What the statement says of a part: its size, and its BLAKE3 digest in hexadecimal."""

    bytes: int
    blake3: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LeftOut:
    """Something that is not in the bundle.

    Attributes:
        what: Its name for people.
        bytes: Its size; 0 if that is not known.
        digest: Its identifier, by which it can be asked for; empty if it has none.
        why: Why it is not there.
    """

    what: str
    bytes: int = 0
    digest: str = ""
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """What a bundle is about.

    Attributes:
        finding: Its number in the report's `findings`, from 0; None for a snapshot against which nothing was found.
        chip: UEID in hexadecimal; empty if the finding is about no chip.
        entry: Index of the snapshot in the chip's log; None if it is about no snapshot.
        transcript: Identifier of the transcript that explains the snapshot, or that the finding is about; empty: none.
    """

    finding: int | None
    chip: str
    entry: int | None
    transcript: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What the Verifier signs about a bundle.

    Attributes:
        inspection: Identifier of the inspection.
        made_at: UTC time, RFC 3339.
        subject: What it is about.
        software: Versions of the software that made the bundle, and the digest of its rule table.
        parts: The parts by name, without the statement itself.
        left_out: What is not in it.
    """

    inspection: str
    made_at: str
    subject: Subject
    software: Mapping[str, str]
    parts: Mapping[str, Part] = field(default_factory=dict)
    left_out: tuple[LeftOut, ...] = ()

    def sign(self, key: SigningKey) -> bytes:
        """Returns the signed statement."""
        return seal(canonical({"schema": SCHEMA, **asdict(self)}), MEDIA_TYPE, [key])


def open_statement(data: bytes) -> tuple[Statement, tuple[bytes, ...]]:
    """Reads a signed statement; returns it and the keys that signed it.

    Raises:
        DocumentError: It is malformed, or a signature does not verify.
    """
    envelope = open_envelope(data, MEDIA_TYPE)
    try:
        raw = json.loads(envelope.payload)
        if canonical(raw) != envelope.payload or raw.pop("schema") != SCHEMA:
            raise ValueError
        statement = Statement(
            **{
                **raw,
                "subject": _subject(raw["subject"]),
                "parts": {name: _part(name, each) for name, each in raw["parts"].items()},
                "left_out": tuple(LeftOut(**each) for each in raw["left_out"]),
                "software": {str(name): str(each) for name, each in raw["software"].items()},
            }
        )
        texts = [raw["inspection"], raw["made_at"]]
        texts += [text for each in statement.left_out for text in (each.what, each.digest, each.why)]
        if any(type(text) is not str for text in texts):
            raise ValueError
        if any(type(each.bytes) is not int for each in statement.left_out):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DocumentError("this is no statement about evidence that this version can read") from None
    return statement, envelope.signers


def _subject(raw: Any) -> Subject:
    subject = Subject(**raw)
    for number in (subject.finding, subject.entry):
        if number is not None and (type(number) is not int or number < 0):
            raise ValueError
    for name, size in ((subject.chip, None), (subject.transcript, DIGEST_SIZE)):
        if bytes.fromhex(name).hex() != name or (name and size and len(name) != 2 * size):
            raise ValueError
    return subject


def _part(name: str, raw: Any) -> Part:
    part = Part(**raw)
    if not _NAME.fullmatch(name) or type(part.bytes) is not int or len(bytes.fromhex(part.blake3)) != DIGEST_SIZE:
        raise ValueError
    return part


def describe(parts: Mapping[str, Path]) -> dict[str, Part]:
    """Returns size and digest of files, as a statement lists them."""
    measured = {name: file_digest(path) for name, path in parts.items()}
    return {name: Part(bytes=size, blake3=digest.hex()) for name, (size, digest) in measured.items()}


def write(out: Path, parts: Mapping[str, Path]) -> None:
    """Writes a bundle.

    Args:
        out: The file; it must not exist.
        parts: Files by the names of the parts, the statement among them.

    Raises:
        UsageError: The file exists or cannot be written, or the parts are too many or too large.
    """
    if len(parts) > MAX_PARTS or sum(path.stat().st_size for path in parts.values()) > MAX_BUNDLE_BYTES - (128 << 20):
        raise UsageError("the evidence is too large for one file; leave the transcript out with --max-transcript 0")
    try:
        with zipfile.ZipFile(out, "x", zipfile.ZIP_STORED, allowZip64=False) as archive:
            for name in sorted(parts):
                info = zipfile.ZipInfo(name, _EPOCH)
                info.create_system, info.external_attr = 3, 0o100644 << 16
                info.file_size = parts[name].stat().st_size
                with archive.open(info, "w") as part, parts[name].open("rb") as source:
                    while data := source.read(1 << 20):
                        part.write(data)
    except OSError as error:
        raise UsageError(f"cannot write {out} ({error.strerror}); choose another file") from None


def read(file: Path, directory: Path) -> dict[str, Path]:
    """Reads a bundle into an empty directory; returns its parts by name.

    Raises:
        UsageError: The file cannot be read.
        EvidenceError: It is no bundle in the one form, or is too large.
    """
    try:
        with open_regular(file) as source:
            size = _check_end(source)
            parts = _extract(source, size, directory)
    except TranscriptError as error:
        raise UsageError(f"cannot read {file} ({error.message}); name the file with the evidence") from None
    except (zipfile.BadZipFile, struct.error, EOFError, UnicodeError, NotImplementedError, RuntimeError) as error:
        raise EvidenceError(f"this is no bundle of evidence ({error}); get it again from who made it") from None
    except OSError as error:
        raise UsageError(f"cannot read {file} ({error.strerror}); name the file with the evidence") from None
    with tempfile.TemporaryDirectory(prefix="weighbridge-evidence-") as name:
        again = Path(name) / "again"
        write(again, parts)
        if not filecmp.cmp(file, again, shallow=False):
            raise EvidenceError(
                "the file is not in the one form that a bundle has: it was altered; get it again from who made it",
                code="evidence.altered",
            )
    return parts


def _check_end(source: Any) -> int:
    """Reads the last record of a ZIP file before anything else of it: how many parts it claims to have."""
    size: int = source.seek(0, 2)
    if not _END.size <= size <= MAX_BUNDLE_BYTES:
        raise EvidenceError(f"a bundle of evidence has {_END.size} to {MAX_BUNDLE_BYTES} bytes, and this has {size}")
    source.seek(size - _END.size)
    signature, *disks, names, count, listed, _, comment = _END.unpack(source.read(_END.size))
    if signature != b"PK\x05\x06" or comment or any(disks) or names != count:
        raise EvidenceError("this is no bundle of evidence: it does not end as one; get it again from who made it")
    if count > MAX_PARTS or listed > _MAX_NAMES_BYTES:
        raise EvidenceError(f"a bundle has at most {MAX_PARTS} parts; do not use this one")
    return size


def _extract(source: Any, size: int, directory: Path) -> dict[str, Path]:
    parts: dict[str, Path] = {}
    left = size
    with zipfile.ZipFile(source) as archive:
        for info in archive.infolist():
            plain = info.compress_type == zipfile.ZIP_STORED and info.file_size == info.compress_size
            if not _NAME.fullmatch(info.filename) or not plain or info.flag_bits:
                raise EvidenceError(f"{info.filename[:80]!r} is no part of a bundle of evidence; do not use it")
            left -= info.file_size
            if info.filename in parts or left < 0:
                raise EvidenceError("parts of this bundle lie over each other; do not use it", code="evidence.altered")
            path = directory / info.filename
            path.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(info) as part, path.open("xb") as out:
                while data := part.read(1 << 20):
                    out.write(data)
            parts[info.filename] = path
    return parts
