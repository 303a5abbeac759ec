"""Supplements: rounding logs that were made after a recording which has its logs on demand.

A supplement is the log of one step, and a statement that binds it to the run, the step and the states around it, signed
by the key of the transcript. It lies beside the transcript, in `RUN.supplements/`. See docs/formats/supplement.md.

A false one can do no harm: a replay that follows it must arrive at the digest of all rounded outputs that the step's
record commits to.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weighbridge.attest.dsse import DocumentError, canonical, open_envelope, seal
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.bounded import Limits, compress, decode_cbor, decode_json, decompress, read_file, walk_files
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import Finding, FormatError, TranscriptError, WeighbridgeError
from weighbridge.numerics.rounding.rounding_log import LogReader
from weighbridge.transcript.job_record import KEY, SUPPLEMENTS
from weighbridge.transcript.resumption_notes import MAX_DEVICE
from weighbridge.transcript.steps import MAX_STEPS, StepRecord

KIND = "application/vnd.weighbridge.supplement+json"
SUFFIX = ".wsup"
FORMATS = 1, 2
"""Of a statement without a tree, and of one with a tree."""
_MALFORMED = "transcript.supplement.malformed"
_OURS = frozenset({_MALFORMED, "transcript.supplement.signature", "transcript.supplement.foreign"})
_HEX = re.compile(r"[0-9a-f]{64}")
_MAX_STATEMENT = 64 << 10
_MOST_FILES = 4
"""Files for each step of the transcript, beyond which a directory is not looked through."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Statement:
    """What a supplement says of its log.

    Attributes:
        draft: Hex digest of the run's `draft.cbor`.
        step: Number of the step.
        before: Hex state digest before it; empty for step 0.
        state: Hex state digest after it.
        outputs: Hex digest of its rounded outputs.
        rounding: Hex digest of the encoded log.
        logged: Entries of the log.
        device: The kind of device that made the log.
        tree: Hex root of the step's tree (`weighbridge.execution.dispute.leaves.tree_root`); empty if none was made.
    """

    draft: str
    step: int
    before: str
    state: str
    outputs: str
    rounding: str
    logged: int
    device: str
    tree: str = ""


@dataclass(frozen=True, slots=True)
class Supplement:
    """A supplement whose signature verifies.

    Attributes:
        statement: What it says.
        signer: Raw public key that signed it (32 bytes).
        packed: The log as the file holds it, a zstd frame.
    """

    statement: Statement
    signer: bytes
    packed: bytes

    def log(self, limits: Limits) -> bytes:
        """Returns the encoded rounding log.

        Raises:
            FormatError: It is too large, or not the one that the statement names (`transcript.supplement.malformed`).
        """
        try:
            log = decompress(self.packed, max_bytes=limits.rounding)
        except FormatError as error:
            raise _malformed(error.message) from None
        if bytes_digest(log).hex() != self.statement.rounding:
            raise _malformed("its log is not the one that it names")
        return log


def folder_of(run: Path) -> Path:
    """Returns where the supplements of a transcript lie."""
    return run.with_name(run.name + SUPPLEMENTS)


def key_path(run: Path) -> Path:
    """Returns where the key of a recording with logs on demand is kept, unless the user keeps one."""
    return run.with_name(run.name + KEY)


def supplement_name(step: int) -> str:
    """Returns the name of the file with the supplement of a step."""
    return f"{step:08d}{SUFFIX}"


def statement_of(draft: bytes, record: StepRecord, before: StepRecord | None) -> dict[str, Any]:
    """Returns the fields of a statement that follow from the transcript.

    Args:
        draft: Digest of the draft (32 bytes).
        record: The record of the step.
        before: That of the step before; None for step 0.
    """
    return {
        "draft": draft.hex(),
        "step": record.step,
        "before": "" if before is None else before.state.hex(),
        "state": record.state.hex(),
        "outputs": record.outputs.hex(),
    }


def encode(statement: Statement, log: bytes, key: SigningKey) -> bytes:
    """Returns the bytes of a supplement.

    Law: of a statement that names the digest of `log`, `decode` gives the statement, the public key of `key`, and a
    supplement whose `log` is `log`.

    Args:
        statement: What to sign.
        log: The encoded rounding log that it names; no such log is shorter than six bytes.
        key: The key that signs the transcript.
    """
    said = {name: value for name, value in asdict(statement).items() if name != "tree" or value}
    payload = canonical({"format": FORMATS["tree" in said], **said})
    _read(payload)
    return cbor({"log": compress(log), "statement": seal(payload, KIND, [key])})


def decode(data: bytes) -> Supplement:
    """Reads what `encode` wrote, except the log itself, and verifies the signature.

    Raises:
        FormatError: The bytes do not follow the format (`transcript.supplement.malformed`), or the signature does not
            verify (`transcript.supplement.signature`).
    """
    try:
        raw = decode_cbor(data, max_items=8)
    except FormatError as error:
        raise _malformed(error.message) from None
    match raw:
        case {"log": bytes(packed), "statement": bytes(signed), **rest} if not rest and len(signed) <= _MAX_STATEMENT:
            pass
        case _:
            raise _malformed("it does not hold exactly a log and a statement")
    return Supplement(*read_signed(signed), packed)


def read_signed(envelope: bytes) -> tuple[Statement, bytes]:
    """Reads a signed statement alone, without its log; returns it and who signed it (32 bytes).

    Raises:
        FormatError: As `decode`.
    """
    if len(envelope) > _MAX_STATEMENT:
        raise _malformed("its statement is too large")
    try:
        opened = open_envelope(envelope, KIND)
    except DocumentError as error:
        if error.reason != "document.signature":
            raise _malformed(error.message) from None
        raise FormatError(
            "the signature of the supplement does not verify; have the Prover regenerate it",
            code="transcript.supplement.signature",
        ) from None
    if len(opened.signers) != 1:
        raise _malformed("it has more signatures than one")
    return _read(opened.payload), opened.signers[0]


def read_statement(path: Path) -> tuple[Statement, bytes, bytes]:
    """Reads what a supplement says, who signed it, and the signed envelope; passes over the log, however large it is.

    Law: of a file that `decode` takes these are the same, and it takes no other.

    Raises:
        FormatError: As `decode`.
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(len(_BEFORE) + 1)
        width = {0x58: 1, 0x59: 2, 0x5A: 4, 0x5B: 8}.get(head[-1] if head else 0, 0)
        size = int.from_bytes(file.read(width), "big") if width else max(0, head[-1] - 0x40 if head else 0)
        if head[:-1] != _BEFORE or not 0x40 <= head[-1] <= 0x5B or size > _MOST_LOG:
            raise _malformed("it does not hold exactly a log and a statement")
        file.seek(size, 1)
        rest = file.read(_MAX_STATEMENT + _AROUND + 1)
    if len(rest) > _MAX_STATEMENT + _AROUND:
        raise _malformed("it does not hold exactly a log and a statement")
    without = _BEFORE + b"\x40" + rest
    read = decode(without)
    return read.statement, read.signer, bytes(decode_cbor(without, max_items=8)["statement"])


_BEFORE = b"\xa2\x63log"
"""A map of two, and its first key: keys are sorted by length."""
_MOST_LOG = 1 << 40
"""Bytes of a log, beyond which no file system need be asked to look: some refuse to."""
_AROUND = 16
"""Bytes of CBOR around a statement: its key and its length."""


def _read(payload: bytes) -> Statement:
    try:
        said = decode_json(payload, max_items=64)
    except FormatError as error:
        raise _malformed(error.message) from None
    if not isinstance(said, dict) or canonical(said) != payload:
        raise _malformed("its statement is not in canonical form")
    form = said.pop("format", None)
    if type(form) is not int or form not in FORMATS:
        raise _malformed(f"its statement has none of the formats {', '.join(map(str, FORMATS))}")
    fields = _GOOD if form == FORMATS[0] else _GOOD | {"tree": _hex}
    if set(said) != set(fields) or not all(good(said[name]) for name, good in fields.items()):
        raise _malformed(f"its statement does not have exactly the fields {', '.join(fields)}, each of its kind")
    if (said["step"] == 0) != (said["before"] == ""):
        raise _malformed("it names no state before its step, or one before step 0")
    return Statement(**said)


def _hex(value: Any) -> bool:
    return isinstance(value, str) and _HEX.fullmatch(value) is not None


_GOOD: dict[str, Callable[[Any], bool]] = {
    "draft": _hex,
    "step": lambda value: type(value) is int and 0 <= value < MAX_STEPS,
    "before": lambda value: value == "" or _hex(value),
    "state": _hex,
    "outputs": _hex,
    "rounding": _hex,
    "logged": lambda value: type(value) is int and 0 <= value < 1 << 62,
    "device": lambda value: isinstance(value, str) and 0 < len(value) <= MAX_DEVICE and value.isprintable(),
}


def _malformed(why: str) -> FormatError:
    return FormatError(f"the supplement is malformed: {why}; have the Prover regenerate it", code=_MALFORMED)


class Supplements:
    """The supplements of one transcript that lie in a directory.

    Attributes:
        findings: What is to be said of files that were refused, and of steps that have several.
    """

    def __init__(
        self, folder: Path, draft: bytes, signer: bytes, records: Callable[[int], StepRecord], steps: int,
        limits: Limits,
    ) -> None:  # fmt: skip
        """Reads the statements of all files; logs are read again when they are asked for.

        Args:
            folder: The directory.
            draft: Digest of the transcript's draft (32 bytes).
            signer: Raw public key that signed the transcript.
            records: Gives the record of a step.
            steps: Steps of the transcript.
            limits: On what a file may hold.

        Raises:
            TranscriptError: The directory cannot be read, or holds far more files than the transcript has steps.
        """
        self._draft, self._signer, self._records, self._steps, self._limits = draft, signer, records, steps, limits
        self._places: dict[int, tuple[Path, str]] = {}
        self._trees: dict[int, str] = {}
        self.findings: list[Finding] = []
        for name, status in walk_files(folder, max_files=_MOST_FILES * steps + 64):
            try:
                if status.st_size > limits.rounding:
                    raise _malformed(f"it has {status.st_size} bytes, more than {limits.rounding}")
                self._take(folder / name, self._owned(folder / name).statement)
            except (FormatError, TranscriptError) as error:
                self._refuse(name, error.reason if error.reason in _OURS else _MALFORMED, error.message)

    def reader(self, record: StepRecord) -> LogReader | None:
        """Returns the log of a step from its beginning, or None if there is no supplement for it.

        Raises:
            WeighbridgeError: The file cannot be used; it was changed, or its log is not what it says.
        """
        encoded = self.encoded(record)
        return None if encoded is None else LogReader(encoded, max_entries=record.rounded)

    def encoded(self, record: StepRecord) -> bytes | None:
        """Returns the encoded log of a step, whose headers were read, or None; as `reader`."""
        if record.step not in self._places:
            return None
        path, rounding = self._places[record.step]
        try:
            supplement = self._owned(path)
            encoded = supplement.log(self._limits)
            log = LogReader(encoded, max_entries=min(supplement.statement.logged, record.rounded))
            if supplement.statement.rounding != rounding or log.entries != supplement.statement.logged:
                raise _malformed("its log does not have the entries that it says")
        except WeighbridgeError as error:
            del self._places[record.step]
            self._refuse(path.name, _MALFORMED, error.message)
            return None
        return encoded

    def rounding(self, step: int) -> str | None:
        """Returns the hex digest of the log of a step, or None if there is no supplement for it."""
        return self._places[step][1] if step in self._places else None

    def tree(self, step: int) -> str:
        """Returns the hex root of the tree of a step, as a supplement states it; empty if none does."""
        return self._trees.get(step, "")

    def signed(self, step: int) -> bytes:
        """Returns the signed statement of a step, without the log; nothing if there is none that states a tree.

        Raises:
            FormatError: The file was changed since.
            OSError: It cannot be read.
        """
        if not self.tree(step):
            return b""
        said, _, envelope = read_statement(self._places[step][0])
        return envelope if said.tree else b""

    def _owned(self, path: Path) -> Supplement:
        """Reads a file, which must belong to the transcript."""
        supplement = decode(read_file(path, max_bytes=self._limits.rounding))
        said = supplement.statement
        if said.draft != self._draft.hex():
            raise _foreign("another run: its draft is not that of the transcript")
        if said.step >= self._steps:
            raise _foreign(f"step {said.step}, which the transcript does not have")
        before = self._records(said.step - 1) if said.step else None
        for name, value in statement_of(self._draft, self._records(said.step), before).items():
            if getattr(said, name) != value:
                raise _foreign(f"step {said.step} with another digest of {_NAMES[name]} than its record has")
        if supplement.signer != self._signer:
            raise FormatError(
                "the supplement is not signed by the key that signed the transcript; have the Prover sign it",
                code="transcript.supplement.signature",
            )
        return supplement

    def _take(self, path: Path, said: Statement) -> None:
        known = self._places.setdefault(said.step, (path, said.rounding))
        tree = self._trees.setdefault(said.step, said.tree) if said.tree else ""
        for what, one, other in (("rounding logs", known[1], said.rounding), ("trees", tree, said.tree)):
            if one != other:
                self.findings.append(
                    Finding(
                        id="transcript.supplement.equivocation",
                        message=f"the Prover signed two {what} for step {said.step}, in {known[0].name[:80]} and "
                        f"{path.name[:80]}; one of them was made up: the Prover must explain this",
                        expected=one,
                        found=other,
                        subject=f"step {said.step}",
                    )
                )
        if said.tree and known[1] == said.rounding:  # the file that states most is the one that is shown
            self._places[said.step] = path, said.rounding

    def _refuse(self, name: str, code: str, message: str) -> None:
        shown = name[:80] if name.isprintable() else "a file"
        self.findings.append(
            Finding(id=code, message=f"{shown} is not used: {message}", subject=shown, severity="warning")
        )


_NAMES = {"before": "the state before it", "state": "the state after it", "outputs": "the rounded outputs"}


def _foreign(what: str) -> TranscriptError:
    return TranscriptError(
        f"the supplement is of {what}; ask for the supplement of this step of this run",
        code="transcript.supplement.foreign",
    )
