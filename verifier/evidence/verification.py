"""Checks a bundle of evidence with nothing but the bundle and two keys that the reader trusts.

Nothing here opens a network connection or a database. What a Prover wrote is decoded in confined workers only. Each
claim stands alone, so that one that fails hides no other. The parts must belong together: a bundle in which parts of
two inspections were mixed fails even if the Verifier itself signed the mixture.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from cryptography.x509 import Certificate

from verifier.draw.recomputation import Trusted, verify_draw
from verifier.draw.record import DrawRecord, read_record
from verifier.evidence import page, snapshot_replay
from verifier.evidence.bundle import STATEMENT, EvidenceError, Statement, describe, open_statement
from verifier.model.seeded_draw import draw as seeded_draw
from verifier.model.strata import parse_heads, parse_population
from verifier.registry.entries import decode
from verifier.report import consistency
from verifier.report.signing import open_report
from weighbridge.attest import chip_log, tlog, tokens
from weighbridge.attest.certificates import load_certificate
from weighbridge.attest.chip_log import Directory
from weighbridge.attest.dsse import DocumentError
from weighbridge.attest.tlog import NoteKey
from weighbridge.attest.tokens import HiddenBody
from weighbridge.core import merkle
from weighbridge.core.bounded import decode_json
from weighbridge.core.errors import Finding, WeighbridgeError
from weighbridge.execution.worker_process import Limits

Outcome = Literal["verified", "not contained", "failed"]
_MAX_SMALL = 256 << 20
_CALLED = {"transcript": "transcript ", "chip": "log of chip", "draw": "record of the draw", "registry": "custody"}
"""What the statement calls what is left out, by the folder that it would be in."""
_BAD = (KeyError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, RecursionError, OSError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reader:
    """Whom the reader of a bundle trusts, and what it may use.

    Attributes:
        key: The Verifier's public key for reports (32 bytes).
        manufacturer: Root certificate of device identities.
        log_key: Key of the Verifier's own log; None to take the one in the draw's record.
        limits: Of the replay.
        transcript: Directory of the transcript, if it is not in the bundle and the reader has it.
        replay: Whether to replay.
        progress: Told how many steps of how many were replayed.
    """

    key: bytes
    manufacturer: Certificate
    log_key: NoteKey | None = None
    limits: Limits = field(default_factory=Limits)
    transcript: Path | None = None
    replay: bool = True
    progress: Callable[[int, int], None] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """One thing that a bundle claims, and what came of checking it.

    Attributes:
        name: Its stable name.
        outcome: `verified`; `not contained`: the bundle does not have what it takes; `failed`.
        says: The claim in words, or what is wrong with it.
        findings: What is wrong with it.
    """

    name: str
    outcome: Outcome
    says: str
    findings: Sequence[Finding] = ()


class _NotContainedError(Exception):
    """The bundle lacks what a claim needs; the text says what."""


class _WrongError(Exception):
    """Something does not follow; the findings say what, and there is at least one."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__()
        self.findings = findings


@dataclass(slots=True)
class _Bundle:
    """A bundle whose parts are those of its statement.

    Attributes:
        log: The chip's log, once it was verified.
    """

    root: Path
    statement: Statement
    signers: tuple[bytes, ...]
    report: dict[str, Any] = field(default_factory=dict)
    log: Directory | None = None

    def path(self, name: str) -> Path:
        if name not in self.statement.parts:
            raise _NotContainedError(self._why(name))
        return self.root / name

    def read(self, name: str) -> bytes:
        path = self.path(name)
        if path.stat().st_size > _MAX_SMALL:
            raise EvidenceError(f"{name} is larger than any such part; do not use this bundle")
        return path.read_bytes()

    def _why(self, name: str) -> str:
        wanted = {
            "transcript": "transcript ",
            "chip": "log of chip",
            "draw": "record of the draw",
            "registry": "custody",
        }
        word = wanted.get(name.partition("/")[0], name)
        return next((f"{each.what}: {each.why}" for each in self.statement.left_out if word in each.what), f"no {name}")

    def chip(self) -> Mapping[str, Any]:
        """Returns the report's row of the chip that the bundle is about."""
        ueid = self.statement.subject.chip
        if not ueid:
            raise _NotContainedError("the finding is about no single chip")
        return _only([each for each in self.report["chips"] if each["ueid"] == ueid], f"chip {ueid} in the report")

    def snapshot(self) -> Mapping[str, Any]:
        """Returns the report's row of the snapshot that the bundle is about."""
        index = self.statement.subject.entry
        if index is None:
            raise _NotContainedError("the finding is about no single snapshot")
        rows = [each for each in self.chip()["snapshots"] if each["index"] == index]
        return _only(rows, f"entry {index} of the chip in the report")

    def finding(self) -> Mapping[str, Any] | None:
        """Returns the finding that the bundle is about; None if it is about a snapshot without one."""
        number = self.statement.subject.finding
        if number is None:
            return None
        found: Mapping[str, Any] = self.report["findings"][number]
        return found


def _only(rows: Sequence[Mapping[str, Any]], what: str) -> Mapping[str, Any]:
    if len(rows) != 1:
        raise _swapped(f"one {what}", len(rows))
    return rows[0]


def _swapped(expected: object, found: object) -> _WrongError:
    """Returns what to say of parts that do not belong together."""
    finding = Finding(
        id="evidence.mismatch",
        message="parts of this bundle do not belong together; ask who made it, and do not rely on it",
        expected=str(expected)[:300],
        found=str(found)[:300],
    )
    return _WrongError([finding])


def _same(expected: object, found: object) -> None:
    if expected != found:
        raise _swapped(expected, found)


def verify(parts: Mapping[str, Path], root: Path, reader: Reader) -> list[Claim]:
    """Checks everything that a bundle claims.

    Args:
        parts: As `verifier.evidence.bundle.read` returned them.
        root: The directory that they were read into.
        reader: Whom to trust.

    Raises:
        DocumentError: The bundle has no statement, or it is malformed or does not verify.
        EvidenceError: The parts are not those that the statement lists (`evidence.altered`).
    """
    if STATEMENT not in parts or parts[STATEMENT].stat().st_size > _MAX_SMALL:
        raise EvidenceError(f"this is no bundle of evidence: it has no {STATEMENT}; get it again from who made it")
    statement, signers = open_statement(parts[STATEMENT].read_bytes())
    found = describe({name: path for name, path in parts.items() if name != STATEMENT})
    differing = sorted(name for name in {*found, *statement.parts} if found.get(name) != statement.parts.get(name))
    if differing:
        raise EvidenceError(
            f"{differing[0]} is not the part that the statement lists; get the bundle again from who made it",
            code="evidence.altered",
        )
    opened = _Bundle(root, statement, signers)
    checks: tuple[tuple[str, Callable[[_Bundle, Reader], str]], ...] = (
        ("statement", _statement),
        ("report", _report),
        ("subject", _subject),
        ("draw", _draw),
        ("custody", _custody),
        ("log", _log),
        ("snapshot", _snapshot),
        ("replay", _replay),
        ("page", _page),
    )
    return [_claim(name, check, opened, reader) for name, check in checks]


def _claim(name: str, check: Callable[[_Bundle, Reader], str], opened: _Bundle, reader: Reader) -> Claim:
    try:
        return Claim(name=name, outcome="verified", says=check(opened, reader))
    except _NotContainedError as error:
        return Claim(name=name, outcome="not contained", says=str(error))
    except _WrongError as error:
        return Claim(name=name, outcome="failed", says=error.findings[0].message, findings=error.findings)
    except WeighbridgeError as error:
        return Claim(name=name, outcome="failed", says=error.message, findings=[error.finding(subject=name)])
    except _BAD as error:
        wrong = EvidenceError(f"a part of the bundle has not the form that it must have ({type(error).__name__})")
        return Claim(name=name, outcome="failed", says=wrong.message, findings=[wrong.finding(subject=name)])


def _statement(opened: _Bundle, reader: Reader) -> str:
    if reader.key not in opened.signers:
        raise EvidenceError(
            "the bundle is not signed with this Verifier's key; do not rely on it",
            code="evidence.signer",
            expected=reader.key.hex(),
            found=", ".join(each.hex() for each in opened.signers),
        )
    return f"the Verifier signed the list of all {len(opened.statement.parts)} parts on {opened.statement.made_at}"


def _report(opened: _Bundle, reader: Reader) -> str:
    signed = open_report(opened.read("report.dsse"))
    if reader.key not in signed.signers:
        raise DocumentError("the report is not signed with this Verifier's key", code="report.signer")
    opened.report = signed.report
    _same(opened.statement.inspection, signed.report.get("inspection"))
    if wrong := consistency.check(signed.report):
        raise _WrongError(wrong)
    whose = f"the report of inspection {opened.statement.inspection}"
    return f"the Verifier signed {whose}, and its figures follow from each other"


def _subject(opened: _Bundle, reader: Reader) -> str:
    _needs_report(opened)
    finding, subject = opened.finding(), opened.statement.subject
    if finding is not None:
        about = str(finding["subject"])
        if subject.entry is not None and subject.chip in about:
            _same(True, f"chip {subject.chip} entry {subject.entry}" in about)
        elif subject.entry is not None:  # a snapshot at which it shows what is wrong with a transcript
            _same(subject.transcript, opened.snapshot()["transcript"])
            _same(True, subject.transcript in about)
        else:
            _same(True, (subject.chip or subject.transcript) in about)
        return f"the report states the finding {finding['id']}: {finding['message']}"
    row = opened.snapshot()
    _same(subject.transcript, row["transcript"] or "")
    against = [each for each in opened.report["findings"] if _about(each, opened) and each["severity"] != "info"]
    if against:
        raise _swapped("a snapshot against which nothing was found", against[0]["id"])
    return f"the report calls the snapshot {row['status']}, and has nothing against it"


def _about(finding: Mapping[str, Any], opened: _Bundle) -> bool:
    name = f"chip {opened.statement.subject.chip} entry {opened.statement.subject.entry}"
    subject = str(finding["subject"])
    return subject == name or subject.startswith((f"{name}:", f"{name} "))


def _needs_report(opened: _Bundle) -> None:
    if not opened.report:
        raise _NotContainedError("the report did not verify, so there is nothing to compare with")


def _draw(opened: _Bundle, reader: Reader) -> str:
    _needs_report(opened)
    section, report = opened.report["draw"], opened.report
    drawn = [chip["ueid"] for chip in report["chips"]]
    if section["kind"] != "committed":
        ueids = decode_json(opened.read("draw/population.json"), max_items=1 << 22)
        plan = report["plan"]
        again = seeded_draw(map(bytes.fromhex, ueids), plan["samples"], bytes.fromhex(plan["seed"]))
        _same([each.hex() for each in again], drawn)
        return f"the report's seed draws these {len(drawn)} chips of {len(ueids)}; the Verifier chose the seed"
    record = _draw_record(opened)
    commitment, opening = record.committed(), record.opened()
    _same(report["inspection"], commitment.inspection)
    _same(report["plan"]["seed"], getattr(opening, "seed", b"").hex())
    _same(sorted(drawn), sorted(each.hex() for each in (*record.certain, *record.drawn)))
    found = verify_draw(record, Trusted(now_ms=int(time.time() * 1000), log=reader.log_key))
    if wrong := [each for each in found if each.severity != "info"]:
        raise _WrongError(wrong)
    whose = "" if reader.log_key else "; the key of the Verifier's log is the record's own"
    says = f"neither side could choose these {len(drawn)} of {commitment.chips} chips{whose}"
    if opened.statement.subject.chip:
        certain = bytes.fromhex(opened.statement.subject.chip) in record.certain
        says += ", and this chip was drawn " + ("with certainty" if certain else "at random")
    return says


def _draw_record(opened: _Bundle) -> DrawRecord:
    return read_record(opened.path("draw/draw.json"))


def _custody(opened: _Bundle, reader: Reader) -> str:
    _needs_report(opened)
    ueid = bytes.fromhex(opened.chip()["ueid"])
    raw = decode_json(opened.read("registry/custody.json"), max_items=1 << 22)
    commitment = _draw_record(opened).committed()
    _same(opened.report["draw"]["registry"]["size"], raw["size"])
    for each in raw["entries"]:
        data = bytes.fromhex(each["data"])
        proof = [bytes.fromhex(each_hash) for each_hash in each["proof"]]
        merkle.verify_inclusion(merkle.leaf_hash(data), each["place"], raw["size"], proof, commitment.registry)
        decode(data)
        if ueid not in data:
            raise _swapped(f"an entry about chip {ueid.hex()}", f"entry {each['place']} of the registry's log")
    if not raw["entries"]:
        raise _swapped("entries about the chip", "none")
    population = parse_population(_draw_record(opened).population)
    owner, site, kind = population.places[population.ueids.index(ueid)]
    row = opened.chip()
    _same((owner, site, kind), (row["owner"], row["site"], row["chip_type"]))
    return f"{len(raw['entries'])} entries of the registry's log, to which the draw was committed, speak of the chip"


def _log(opened: _Bundle, reader: Reader) -> str:
    _needs_report(opened)
    row = opened.chip()
    opened.path("chip/checkpoint")
    _same(load_certificate(opened.read("manufacturer.pem")), reader.manufacturer)
    log = chip_log.read_directory(opened.root / "chip", reader.manufacturer)
    if log.findings:
        raise _WrongError(log.findings)
    _same(tlog.origin(bytes.fromhex(row["ueid"])), log.checkpoint.origin)
    if "draw/draw.json" in opened.statement.parts:
        size, head = parse_heads(_draw_record(opened).heads).get(bytes.fromhex(row["ueid"]), (0, b""))
        if size:  # what the chip had shown before the draw
            _same(True, size <= len(log.entries))
            _same(head, merkle.root([merkle.leaf_hash(entry) for entry in log.entries[:size]]))
    opened.log = log
    return (
        f"the chip, whose certificate leads to the manufacturer, signed a log of {len(log.entries)} entries; all are "
        "here, in their order, and each verifies"
    )


def _snapshot(opened: _Bundle, reader: Reader) -> str:
    _needs_report(opened)
    row = opened.snapshot()
    if opened.log is None:
        raise _NotContainedError("the chip's log is not there, or did not verify")
    index = row["index"]
    _same(True, index < len(opened.log.entries))
    token = tokens.verify(opened.log.entries[index], reader.manufacturer).token
    _same("snapshot", token.kind)
    stated: dict[str, Any] = {
        "time_ms": token.time_ms,
        "uptime_ms": token.uptime_ms,
        "boot_count": token.boot_count,
    }
    claims = {name: name for name in ("bytes", "kernels", "flops", "unobserved")} | {"storages": "leaves"}
    hidden = isinstance(token.body, HiddenBody)
    stated |= {name: None if hidden else tokens.shown(token)[claim] for name, claim in claims.items()}
    _same(stated, {name: row[name] for name in stated})
    if hidden:
        return f"entry {index} is a snapshot that the chip signed; what it shows is hidden, as the report says"
    return f"entry {index} is a snapshot of {row['storages']} storages that the chip signed, as the report says"


def _replay(opened: _Bundle, reader: Reader) -> str:
    _needs_report(opened)
    row = opened.snapshot()
    if opened.log is None:
        raise _NotContainedError("the chip's log is not there, or did not verify, so there is nothing to replay to")
    transcript = None
    if row["transcript"]:
        if row["shard"] is not None:
            raise _NotContainedError(opened._why("transcript/"))
        if not reader.replay:
            raise _NotContainedError("a replay, because it was not asked for (--no-replay)")
        if "transcript/manifest.json" in opened.statement.parts:
            transcript = opened.root / "transcript"
        elif (transcript := reader.transcript) is None:
            raise _NotContainedError(opened._why("transcript/"))
    opening = None if "chip/opening.cbor" not in opened.statement.parts else opened.read("chip/opening.cbor")
    facts, judged, status = snapshot_replay.repeat(
        report=opened.report, chip=opened.chip(), row=row, log=opened.log, manufacturer=reader.manufacturer,
        opening=opening, transcript=transcript, limits=reader.limits, progress=reader.progress,
    )  # fmt: skip
    if wrong := snapshot_replay.differences(opened.report, row, facts, judged, status):
        raise _WrongError(wrong)
    finding = opened.finding()
    again = {(each.id, each.subject) for each in judged.findings}
    if finding is not None and (finding["id"], finding["subject"]) not in again:
        raise _NotContainedError(
            f"all that {finding['id']} rests on: it follows from more than this snapshot, which is {status} here too"
        )
    if isinstance(facts.verified.token.body, HiddenBody):
        return f"the snapshot is {status}: what it shows is hidden, so there was nothing to replay to"
    if transcript is None:
        return f"the snapshot is {status}: no transcript is claimed for what the chip had in memory"
    said = f"replayed here to step {row['step']}, operation {row['op']}, and compared with the chip's memory"
    return f"{said}: the snapshot is {status}" + (
        "" if finding is None else f", and the finding {finding['id']} comes about again"
    )


def _page(opened: _Bundle, reader: Reader) -> str:
    _needs_report(opened)
    if opened.statement.software.get("weighbridge") != version("weighbridge"):
        raise _NotContainedError("the software of another version made the page, so it cannot be made again here")
    made = replace(opened.statement, parts={n: p for n, p in opened.statement.parts.items() if n != page.NAME})
    _same(page.render(made, opened.report).encode(), opened.read(page.NAME))
    return f"{page.NAME} says what the report and the statement say"


def summary(claims: Sequence[Claim]) -> dict[str, int]:
    """Returns how many claims came to each outcome."""
    return {
        outcome: sum(each.outcome == outcome for each in claims) for outcome in ("verified", "not contained", "failed")
    }


def to_json(claims: Sequence[Claim]) -> list[dict[str, Any]]:
    """Returns claims as JSON-compatible data."""
    return [
        {
            "claim": each.name,
            "outcome": each.outcome,
            "says": each.says,
            "findings": [finding.to_json() for finding in each.findings],
        }
        for each in claims
    ]
