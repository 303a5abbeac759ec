"""Makes a bundle of evidence from a Verifier's database and cache: what is there of one finding or one snapshot.

Only this part of the package reads the database. Whatever it cannot find, or is too large, is named in the statement
with its size and digest.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cbor2
import zstandard
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import Certificate

from verifier.draw.rolling_periods import Draws
from verifier.evidence import bundle, page
from verifier.evidence.bundle import LeftOut, Statement, Subject
from verifier.model.facts import CONTRADICTED
from verifier.registry import Registry
from verifier.report import signing
from verifier.store.cache import Cache
from verifier.units import Units
from weighbridge.attest import tiles, tlog
from weighbridge.attest.dsse import canonical
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import cbor
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.execution.transcript_facts import INSPECTED
from weighbridge.numerics.rule_table import table_digest
from weighbridge.transcript.files import read_manifest
from weighbridge.transcript.steps import checkpoint_path
from weighbridge.transcript.supplements import SUFFIX, folder_of
from weighbridge.transcript.writer import MANIFEST

MAX_TRANSCRIPT_BYTES = 1 << 30
"""A transcript of more bytes is named by its digest, unless the reader asks for more."""
_UEID = re.compile(r"\b[0-9a-f]{34}\b")
_ENTRY = re.compile(r"\bchip ([0-9a-f]{34}) entry (\d+)")
_TRANSCRIPT = re.compile(r"\b[0-9a-f]{64}\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What evidence is taken from.

    Attributes:
        registry: The Verifier's registry.
        cache: Its cache of transcripts.
        report_key: The key that signs its reports.
        manufacturer: Root certificate of device identities.
    """

    registry: Registry
    cache: Cache
    report_key: SigningKey
    manufacturer: Certificate


@dataclass(slots=True)
class _Collected:
    """Files for a bundle as they are gathered."""

    root: Path
    parts: dict[str, Path] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)

    def add(self, name: str, content: bytes) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self.parts[name] = path


def subject_of(
    report: Mapping[str, Any], *, finding: int | None = None, snapshot: tuple[str, int] | None = None
) -> Subject:
    """Returns what a bundle is to be about.

    Args:
        report: Of the inspection.
        finding: Number in its `findings`, from 0.
        snapshot: A chip's UEID, or the beginning of it, in hexadecimal, and the index in its log.

    Raises:
        UsageError: There is no such finding or snapshot, or both or neither were named.
    """
    if (finding is None) == (snapshot is None):
        raise UsageError("name either a finding (--finding N) or a snapshot (--snapshot CHIP:ENTRY)")
    if snapshot is not None:
        chips = [chip for chip in report["chips"] if snapshot[0] and _called(chip, snapshot[0])]
        if len(chips) != 1:
            raise UsageError(f"{snapshot[0]!r} names {len(chips)} of the drawn chips; give more of its UEID")
        row = _row(chips[0], snapshot[1])
        if row is None:
            entries = ", ".join(str(each["index"]) for each in chips[0]["snapshots"]) or "none"
            raise UsageError(f"that chip has no snapshot at entry {snapshot[1]}; it has {entries}")
        return Subject(finding=None, chip=chips[0]["ueid"], entry=snapshot[1], transcript=row["transcript"] or "")
    assert finding is not None
    if not 0 <= finding < len(report["findings"]):
        raise UsageError(f"the report has {len(report['findings'])} findings, numbered from 0; there is no {finding}")
    named = str(report["findings"][finding]["subject"])
    place, entry = _ENTRY.search(named), None
    ueid = next((each for each in _UEID.findall(named) if any(c["ueid"] == each for c in report["chips"])), "")
    known = {each["id"] for each in report["transcripts"]}
    transcript = next((each for each in _TRANSCRIPT.findall(named) if each in known), "")
    if place and ueid == place[1]:
        chip = next(each for each in report["chips"] if each["ueid"] == ueid)
        if (row := _row(chip, int(place[2]))) is not None:
            entry, transcript = int(place[2]), row["transcript"] or transcript
    elif transcript:  # what is wrong with a transcript shows at a snapshot that it was to explain
        places = [
            (chip["ueid"], each["index"])
            for chip in report["chips"]
            for each in chip["snapshots"]
            if each["transcript"] == transcript and each["status"] in CONTRADICTED
        ]
        ueid, entry = places[0] if places else ("", None)
    return Subject(finding=finding, chip=ueid, entry=entry, transcript=transcript)


def _called(chip: Mapping[str, Any], name: str) -> bool:
    start = name.lower()
    return name == chip.get("name") or chip["ueid"].startswith(start) or chip["ueid"][2:].startswith(start)


def _row(chip: Mapping[str, Any], index: int) -> Mapping[str, Any] | None:
    found: Mapping[str, Any] | None = next((each for each in chip["snapshots"] if each["index"] == index), None)
    return found


def export(
    source: Source,
    inspection: str,
    out: Path,
    *,
    finding: int | None = None,
    snapshot: tuple[str, int] | None = None,
    max_transcript: int = MAX_TRANSCRIPT_BYTES,
) -> Statement:
    """Writes the evidence for one finding or one snapshot of an inspection.

    Args:
        source: The Verifier's database, cache and keys.
        inspection: Its identifier.
        out: The file to write.
        finding: Number in the report's `findings`, from 0.
        snapshot: A chip's UEID, or the beginning of it, and the index in its log.
        max_transcript: Bytes of a transcript's files beyond which it is left out.

    Returns:
        What the bundle states.

    Raises:
        NotFoundError: There is no such inspection.
        UsageError: It has no report, or no such finding or snapshot; or the file exists or cannot be written.
    """
    report = source.registry.inspection(inspection).report
    if report is None:
        raise UsageError(f"inspection {inspection} has no report yet; wait for its end (weighbridge inspect watch)")
    subject = subject_of(report, finding=finding, snapshot=snapshot)
    with tempfile.TemporaryDirectory(prefix="weighbridge-evidence-") as name:
        found = _Collected(Path(name))
        found.add("report.dsse", signing.sign(report, source.report_key))
        found.add("manufacturer.pem", source.manufacturer.public_bytes(Encoding.PEM))
        units = Units(source.registry.session, source.cache, inspection)
        _draw(source, report, found)
        if subject.chip:
            _log(units, subject.chip, found)
            _custody(source.registry, report, subject.chip, found)
        if subject.entry is not None:
            _opening(units, report, subject, found)
        if subject.transcript:
            _transcript(source.cache, report, subject, max_transcript, found)
        made = Statement(
            inspection=inspection,
            made_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            subject=subject,
            software={
                "weighbridge": version("weighbridge"), "torch": version("torch"), "rule table": table_digest(),
            },
            parts=bundle.describe(found.parts),
            left_out=tuple(found.left_out),
        )  # fmt: skip
        found.add(page.NAME, page.render(made, report).encode())
        statement = Statement(
            inspection=made.inspection, made_at=made.made_at, subject=subject, software=made.software,
            parts=bundle.describe(found.parts), left_out=made.left_out,
        )  # fmt: skip
        found.add(bundle.STATEMENT, statement.sign(source.report_key))
        bundle.write(out, found.parts)
    return statement


def _draw(source: Source, report: Mapping[str, Any], found: _Collected) -> None:
    """Takes the record of a draw that was committed to; of one with a given seed, the chips that it was made from."""
    if report["draw"]["kind"] != "committed":
        ueids = [chip.ueid.hex() for chip in source.registry.chips()]
        found.add("draw/population.json", canonical(sorted(ueids)))
        return
    try:
        stored = source.cache.kept(Draws(source.registry.session).record(report["inspection"]))
    except (WeighbridgeError, OSError) as error:
        found.left_out.append(LeftOut(what="the record of the draw", why=_why(error)))
        return
    for name, data in cbor2.loads(zstandard.ZstdDecompressor().decompress(stored)):
        found.add(f"draw/{name}", data)


def _log(units: Units, ueid: str, found: _Collected) -> None:
    """Takes the chip's whole log as the inspection read it."""
    raw = units.get("log", ueid, lambda value: value)
    if not raw or raw["report"] is None:
        why = "the chip's log could not be read in this inspection, or did not verify"
        found.left_out.append(LeftOut(what=f"the log of chip {ueid}", why=why))
        return
    note, head = raw["report"]
    size = tlog.parse_checkpoint(tlog.parse_note(note).text).size
    if size > len(raw["entries"]):
        why = "the inspection could not read all entries under the chip's checkpoint"
        found.left_out.append(LeftOut(what=f"the log of chip {ueid}", why=why))
        return
    found.add("chip/checkpoint", note)
    found.add("chip/head", head)
    for name, data in tiles.files(raw["entries"][:size]):
        found.add(f"chip/{name}", data)


def _custody(registry: Registry, report: Mapping[str, Any], ueid: str, found: _Collected) -> None:
    """Takes the entries of the registry's log that speak of the chip, as far as the draw was committed to them."""
    section = report["draw"].get("registry")
    if section is None:
        found.left_out.append(
            LeftOut(what="the chip's custody", why="a draw with a given seed commits to no root of the registry's log")
        )
        return
    size = section["size"]
    rows = []
    with registry.session() as session:
        places = [place for place in registry.history(bytes.fromhex(ueid)) if place < size]
        for place, data in sorted(registry.log.pick(session, places).items()):
            proof = registry.log.inclusion_proof(place, size)
            rows.append({"place": place, "data": data.hex(), "proof": [each.hex() for each in proof]})
    found.add("registry/custody.json", canonical({"size": size, "entries": rows}))


def _opening(units: Units, report: Mapping[str, Any], subject: Subject, found: _Collected) -> None:
    row = _place(report, subject)
    if row is not None and row["bytes"] is None:
        why = "it was taken in a confidential boot, and the chip opens it to sealed workers alone"
        found.left_out.append(LeftOut(what="the chip's opening of the snapshot", why=why))
        return
    raw = units.get("opening", f"{subject.chip}/{subject.entry}", lambda value: value)
    if isinstance(raw, dict):
        found.add("chip/opening.cbor", cbor(raw))
    elif subject.transcript:
        found.left_out.append(LeftOut(what="the chip's opening of the snapshot", why="the chip did not give it"))


def _transcript(cache: Cache, report: Mapping[str, Any], subject: Subject, most: int, found: _Collected) -> None:
    """Takes the files that a replay to the snapshot needs: all but checkpoints other than the one before it."""
    name = subject.transcript
    left_out = LeftOut(what=f"transcript {name}", digest=name, why="the Verifier's cache does not have it any more")
    if not cache.has(name):
        found.left_out.append(left_out)
        return
    root = cache.root / name
    manifest = read_manifest(root, INSPECTED)
    row = _place(report, subject)
    needed = _checkpoints(root, manifest.checkpoints, None if row is None else row["step"])
    spare = {checkpoint_path(step) for step in manifest.checkpoints} - needed
    wanted = {path: size for path, size, _ in manifest.files if (root / path).is_file() and path not in spare}
    total = sum(wanted.values()) + (root / MANIFEST).stat().st_size
    if row is not None and row["shard"] is not None:
        why = "it is one rank of a job, and all ranks are needed to replay it; ask the Verifier for their transcripts"
        found.left_out.append(LeftOut(what=f"transcript {name}", bytes=total, digest=name, why=why))
    elif total > most:
        why = f"it is larger than {most} bytes; ask the Verifier for it, and pass it with --transcript"
        found.left_out.append(LeftOut(what=f"transcript {name}", bytes=total, digest=name, why=why))
    else:
        for path in (*wanted, MANIFEST):
            found.parts[f"transcript/{path}"] = root / path
        _supplements(root, None if row is None else row["step"], most - total, found)


def _supplements(root: Path, step: int | None, most: int, found: _Collected) -> None:
    """Takes the rounding logs that were made on demand: without them the replay comes out otherwise elsewhere."""
    folder = folder_of(root)
    here = [file for file in folder.iterdir() if file.suffix == SUFFIX] if folder.is_dir() else []
    wanted = sorted(file for file in here if step is None or int(file.stem) <= step)
    total = sum(file.stat().st_size for file in wanted)
    if total > most:
        why = (
            "with it the transcript is larger than it may be; ask the Verifier for it, and put it beside the transcript"
        )
        found.left_out.append(LeftOut(what=f"rounding logs of transcript {root.name}", bytes=total, why=why))
        return
    for file in wanted:
        found.parts[f"transcript.supplements/{file.name}"] = file


def _checkpoints(root: Path, kept: Sequence[int], step: int | None) -> set[str]:
    """Returns the checkpoints to take: the newest one before a step, and the first, which no tape may make."""
    here = sorted(each for each in kept if (root / checkpoint_path(each)).is_file())
    if step is None:
        return set(map(checkpoint_path, here))
    before = [each for each in here if each <= step]
    return {checkpoint_path(each) for each in {*here[:1], *before[-1:]}}


def _place(report: Mapping[str, Any], subject: Subject) -> Mapping[str, Any] | None:
    chip = next((each for each in report["chips"] if each["ueid"] == subject.chip), None)
    return None if chip is None or subject.entry is None else _row(chip, subject.entry)


def _why(error: Exception) -> str:
    return error.message if isinstance(error, WeighbridgeError) else f"it cannot be read ({type(error).__name__})"
