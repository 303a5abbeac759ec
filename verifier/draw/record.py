"""The record of a draw: one JSON file with everything that is needed to recompute it, and two files of lines.

`population.tsv` and `heads.tsv` lie beside the JSON, which has their digests inside the logged entries; small ones are
in the JSON itself. Log entries are in it byte for byte, in hexadecimal, each with its proof (c2sp.org/tlog-proof).
If the whole log of the Verifier lies beside it (`log/`, c2sp.org/tlog-tiles), it is searched for missing openings.
docs/formats/draw.md has an example.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verifier.draw.log_entries import MAX_ENTRY_BYTES, Abandonment, Closing, Commitment, Opening, parse_as, parse_entry
from verifier.model.strata import DrawFormatError
from weighbridge.attest import tiles, tlog
from weighbridge.attest.beacon import BeaconInfo, Round, parse_info, parse_round
from weighbridge.attest.tlog import NoteKey, Proof
from weighbridge.core.bounded import decode_json, open_regular
from weighbridge.core.errors import FormatError, TranscriptError, UsageError

SCHEMA = "weighbridge-draw/1"
RECORD, POPULATION, HEADS, LOG = "draw.json", "population.tsv", "heads.tsv", "log"
INLINE_BYTES = 1 << 16
"""Lines up to this size are in the JSON."""
MAX_RECORD_BYTES = 256 << 20
MAX_LINES_BYTES = 4 << 30
MAX_LOG_ENTRIES = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Logged:
    """A log entry with its proof, not verified.

    Attributes:
        data: The entry.
        proof: That it is in the Verifier's log, under the checkpoint that was signed when it was added.
    """

    data: bytes
    proof: Proof

    def to_json(self) -> dict[str, str]:
        """Returns entry and proof as text."""
        return {"entry": self.data.hex(), "proof": self.proof.encode().decode()}


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawRecord:
    """A draw as it is handed to others; nothing in it is verified.

    Attributes:
        log: Key of the Verifier's log.
        witnesses: Keys of those who cosigned its checkpoints.
        commitment: The logged commitment.
        closing: The logged closing; None if there is none yet.
        opening: The logged opening or abandonment; None if there is none yet.
        beacon: The beacon.
        value: Its value of the round; None if it was not opened.
        population: The population's lines.
        heads: The heads' lines; empty if it was not closed.
        certain: UEIDs of the chips drawn with certainty, as `Draw.certain`.
        drawn: UEIDs of the random sample, as `Draw.random`.
    """

    log: NoteKey
    witnesses: tuple[NoteKey, ...]
    commitment: Logged
    closing: Logged | None
    opening: Logged | None
    beacon: BeaconInfo
    value: Round | None
    population: bytes
    heads: bytes
    certain: tuple[bytes, ...]
    drawn: tuple[bytes, ...]

    def committed(self) -> Commitment:
        """Returns what was committed to.

        Raises:
            DrawFormatError: The entry is no commitment.
        """
        return parse_as(self.commitment.data, Commitment)

    def closed(self) -> Closing | None:
        """Returns what was closed, if it was.

        Raises:
            DrawFormatError: The entry is no closing.
        """
        return None if self.closing is None else parse_as(self.closing.data, Closing)

    def opened(self) -> Opening | Abandonment | None:
        """Returns what was opened or abandoned, if anything was.

        Raises:
            DrawFormatError: The entry is neither.
        """
        if self.opening is None:
            return None
        entry = parse_entry(self.opening.data)
        if not isinstance(entry, Opening | Abandonment):
            raise DrawFormatError("The entry is neither an opening nor an abandonment.")
        return entry

    def files(self) -> list[tuple[str, bytes]]:
        """Returns (name, content) of the record's files; `read_record` reads them back."""
        lines: list[tuple[str, bytes]] = []
        value: dict[str, Any] = {
            "schema": SCHEMA,
            "log": str(self.log),
            "witnesses": [str(key) for key in self.witnesses],
            "commitment": self.commitment.to_json(),
            "closing": None if self.closing is None else self.closing.to_json(),
            "opening": None if self.opening is None else self.opening.to_json(),
            "beacon": self.beacon.to_json(),
            "value": None if self.value is None else self.value.to_json(),
        }
        for name, file, data in (("population", POPULATION, self.population), ("heads", HEADS, self.heads)):
            if len(data) <= INLINE_BYTES:
                value[name] = {"lines": data.decode()}
            else:
                value[name] = {"file": file}
                lines.append((file, data))
        value["certain"] = [ueid.hex() for ueid in self.certain]
        value["drawn"] = [ueid.hex() for ueid in self.drawn]
        return [(RECORD, (json.dumps(value, indent=1, ensure_ascii=True) + "\n").encode()), *lines]


def read_record(path: Path) -> DrawRecord:
    """Reads a record from its JSON file, and the files of lines beside it.

    Raises:
        UsageError: A file cannot be read.
        DrawFormatError: The record is malformed.
    """
    path = path / RECORD if path.is_dir() else path
    return parse_record(_read(path, MAX_RECORD_BYTES), path.parent)


def parse_record(data: bytes, directory: Path | None = None) -> DrawRecord:
    """Reads a record; `DrawRecord.files` gives back what was read, for records as they are written there.

    Args:
        data: The JSON.
        directory: Where the files of lines are; without one, they must be in the JSON.

    Raises:
        UsageError: A file cannot be read.
        DrawFormatError: The record is malformed.
    """
    try:
        value = decode_json(data, max_items=MAX_RECORD_BYTES, unique_keys=True)
    except FormatError:
        raise DrawFormatError("The record of the draw is no JSON; fetch it again.") from None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise DrawFormatError(f"This is no record of a draw; its schema must be {SCHEMA}.")
    missing = _FIELDS - set(value)
    if missing or set(value) - _FIELDS:
        raise DrawFormatError(f"A record of a draw has exactly the fields {', '.join(sorted(_FIELDS))}.")
    try:
        record = DrawRecord(
            log=tlog.parse_key(_text(value["log"])),
            witnesses=_keys(value["witnesses"]),
            commitment=_logged(value["commitment"]),
            closing=None if value["closing"] is None else _logged(value["closing"]),
            opening=None if value["opening"] is None else _logged(value["opening"]),
            beacon=parse_info(value["beacon"]),
            value=None if value["value"] is None else parse_round(value["value"]),
            population=_lines(value["population"], POPULATION, directory),
            heads=_lines(value["heads"], HEADS, directory),
            certain=_ueids(value["certain"]),
            drawn=_ueids(value["drawn"]),
        )
        record.committed(), record.closed(), record.opened()
    except DrawFormatError:
        raise
    except FormatError as error:
        raise DrawFormatError(error.message, code=error.reason, **error.details) from None
    if record.log.type != tlog.LOG:
        raise DrawFormatError("The key of the Verifier's log is none that signs logs.")
    return record


_FIELDS = {
    "schema", "log", "witnesses", "commitment", "closing", "opening", "beacon", "value", "population", "heads",
    "certain", "drawn",
}  # fmt: skip


def read_log(directory: Path) -> tuple[bytes, list[bytes]]:
    """Reads the Verifier's log as a directory of tiles.

    Returns:
        Its checkpoint, which is not verified, and its entries.

    Raises:
        UsageError: A file cannot be read.
        WeighbridgeError: The tiles are malformed, or contradict each other.
    """
    checkpoint = _read(directory / "checkpoint", tlog.MAX_NOTE_BYTES)
    size = tlog.parse_checkpoint(tlog.parse_note(checkpoint).text).size
    if size > MAX_LOG_ENTRIES:
        raise DrawFormatError(f"The Verifier's log has {size} entries; at most {MAX_LOG_ENTRIES} are read.")
    entries, wrong = tiles.read(directory, size)
    if wrong:
        raise DrawFormatError(f"The tiles {', '.join(wrong[:3])} of the log contradict its entries; fetch it again.")
    return checkpoint, entries


def write_files(directory: Path, files: Sequence[tuple[str, bytes]]) -> None:
    """Writes a record's files, and its log's, into a directory.

    Raises:
        UsageError: They cannot be written.
    """
    try:
        for name, content in files:
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"{directory} cannot be written ({error.strerror}); name another directory") from None


def _read(path: Path, most: int) -> bytes:
    try:
        with open_regular(path) as file:
            data = file.read(most + 1)
    except (OSError, TranscriptError) as error:
        raise UsageError(f"cannot read {path} ({error}); name the right file") from None
    if len(data) > most:
        raise DrawFormatError(f"{path.name} has more than {most} bytes; it is no part of a draw.")
    return data


def _logged(value: Any) -> Logged:
    if not isinstance(value, dict) or set(value) != {"entry", "proof"}:
        raise DrawFormatError("A logged entry is its bytes and its proof.")
    return Logged(data=_hex(value["entry"], MAX_ENTRY_BYTES), proof=tlog.parse_proof(_text(value["proof"]).encode()))


def _lines(value: Any, name: str, directory: Path | None) -> bytes:
    if not isinstance(value, dict) or len(value) != 1 or set(value) - {"lines", "file"}:
        raise DrawFormatError("Lines are either in the record or in a file beside it.")
    if "lines" in value:
        return _text(value["lines"]).encode()
    if value["file"] != name or directory is None:  # no other name, so that a record cannot make its reader open others
        raise DrawFormatError(f"The lines lie in {name} beside the record, and nowhere else.")
    return _read(directory / name, MAX_LINES_BYTES)


def _keys(value: Any) -> tuple[NoteKey, ...]:
    if not isinstance(value, list) or len(value) > tlog.MAX_SIGNATURES:
        raise DrawFormatError("Witnesses are a list of keys.")
    keys = tuple(tlog.parse_key(_text(each)) for each in value)
    if any(key.type != tlog.WITNESS for key in keys):
        raise DrawFormatError("A witness's key is none that signs times.")
    return keys


def _ueids(value: Any) -> tuple[bytes, ...]:
    if not isinstance(value, list):
        raise DrawFormatError("Drawn chips are a list of UEIDs.")
    return tuple(_hex(each, 33) for each in value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise DrawFormatError("A part of the record should be text and is not.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DrawFormatError("A text in the record is not Unicode.") from None
    return value


def _hex(value: Any, most: int) -> bytes:
    text = _text(value)
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if data.hex() != text or len(data) > most:
        raise DrawFormatError(f"A part of the record should be lower-case hexadecimal of at most {most} bytes.")
    return data
