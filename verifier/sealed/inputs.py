"""The Prover's files of a sealed session, as they lie in the worker once all are what was committed to.

    salt                                32 bytes, under which the full report is sealed
    tokens/UEID/ENTRY.cbor              what opens a token of a confidential boot (`weighbridge.attest.hidden_fields`)
    openings/UEID/ENTRY.cbor            a chip's opening of a snapshot: salt, leaves, and those of the weights
    transcripts/IDENTIFIER/...          the files of a transcript

What a chip opened to this worker itself comes beside them (`place`). A snapshot or a token without an opening was
withheld. A transcript that is none explains nothing. Neither ends the
session.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from verifier.contact.uploads import Whole
from verifier.model import fact_codec
from verifier.model.facts import LogFacts, Opening, SnapshotFacts
from verifier.store.cache import Cache
from weighbridge.attest.hidden_fields import OPENING_LIMIT as TOKEN_LIMIT
from weighbridge.attest.sealed_report import SALT_SIZE
from weighbridge.attest.worker_openings import Kind
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import DIGEST_SIZE
from weighbridge.core.errors import ChipError, FormatError, WeighbridgeError
from weighbridge.execution.transcript_facts import open_confined

SALT, TOKENS, OPENINGS, TRANSCRIPTS = "salt", "tokens", "openings", "transcripts"
OPENING_LIMIT = 256 << 20
"""So many bytes the opening of one snapshot may have."""
_IDENTIFIER = re.compile(r"[0-9a-f]{64}")


def salt(root: Path) -> bytes:
    """Returns the salt of the sealed report.

    Raises:
        FormatError: There is none.
    """
    path = root / SALT
    if not path.is_file() or path.stat().st_size != SALT_SIZE:
        raise FormatError(f"the inputs have no file {SALT!r} of {SALT_SIZE} bytes")
    return path.read_bytes()


def opening(root: Path, snapshot: SnapshotFacts) -> Opening | WeighbridgeError:
    """Returns the opening of a snapshot; if there is none that can be read, what an inspection has of a silent chip."""
    path = root / OPENINGS / snapshot.chip.ueid.hex() / f"{snapshot.index}.cbor"
    try:
        if not path.is_file() or path.stat().st_size > OPENING_LIMIT:
            raise FormatError("no opening of this snapshot came")
        return _opening(path.read_bytes())
    except FormatError as error:
        return ChipError(f"{error.message}; the Prover withholds it")


def place(root: Path, opened: Mapping[tuple[bytes, Kind, int], bytes]) -> None:
    """Puts what chips opened to this worker beside the Prover's files, and before them where both are there.

    What cannot be put there, as a file of the Prover's is in the way, counts as withheld.
    """
    for (ueid, kind, index), content in opened.items():
        path = root / (OPENINGS if kind == "snapshot" else TOKENS) / ueid.hex() / f"{index}.cbor"
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def token_openings(root: Path, log: LogFacts) -> dict[int, bytes]:
    """Returns what the Prover says opens the tokens of a log, by their places."""
    found = {}
    for index in range(len(log.entries)):
        path = root / TOKENS / log.chip.ueid.hex() / f"{index}.cbor"
        if path.is_file():
            with path.open("rb") as file:
                found[index] = file.read(TOKEN_LIMIT + 1)
    return found


class Handed:
    """The transcripts of a session, in its cache, for what explains snapshots by uploads."""

    def __init__(self, root: Path, cache: Cache) -> None:
        """Moves every transcript that can be read into the cache; what is none is left where it is."""
        self._whole = list(_adopted(root / TRANSCRIPTS, cache))

    def whole(self) -> list[Whole]:
        """See `verifier.contact.uploads.Uploads.whole`."""
        return list(self._whole)


def _adopted(directory: Path, cache: Cache) -> Iterator[Whole]:
    for path in sorted(directory.iterdir() if directory.is_dir() else ()):
        if not _IDENTIFIER.fullmatch(path.name) or not path.is_dir():
            continue
        try:
            opened = open_confined(path, opening=cache.opening)
            coordinate = opened.coordinate()
        except WeighbridgeError:
            continue
        if opened.digest != path.name:
            continue
        yield Whole(
            id=opened.digest, certificate="prover", draft=opened.draft_digest, steps=opened.steps, coordinate=coordinate
        )
        cache.adopt(path, opened.digest)


def _opening(data: bytes) -> Opening:
    match decode_cbor(data, max_depth=4, max_items=1 << 23):
        case {"salt": bytes(), "leaves": [list(), bytes()], "weights": [list(), bytes()], **rest} as raw if not rest:
            pass
        case _:
            raise FormatError("an opening is no map of salt, leaves and weights")
    for name in ("leaves", "weights"):
        sizes, digests = raw[name]
        if not all(type(each) is int and 0 <= each < 1 << 63 for each in sizes):
            raise FormatError("an opening has a leaf without a size")
        if len(digests) != DIGEST_SIZE * len(sizes):
            raise FormatError("an opening has not one digest for each leaf")
    found = fact_codec.opening_of(raw)
    assert isinstance(found, Opening)
    return found
