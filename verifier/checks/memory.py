"""Is what the chip had in memory exactly what the transcript says was there?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from verifier.facts import Opening, SnapshotFacts, digest, number
from weighbridge.digests import Leaf, salt_digest, snapshot_root
from weighbridge.errors import ChipError, Finding, Severity, WeighbridgeError

SMALL_SHARE = 0.01
"""Up to this share of all bytes, storages that do not match are a warning; above it, a violation.

A program may keep a tensor longer than its transcript knows. A model, its optimizer or their wrong contents are larger.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accounting:
    """The bytes of one snapshot, compared as a multiset of (bytes, digest).

    Attributes:
        explained: Bytes that both the chip and the replay hold.
        data: Bytes that only the chip holds and that are a batch of the transcript, of this step or one next to it.
        unexplained: Bytes that only the chip holds.
        missing: Bytes that only the replay holds, but for batches: a chip knows a batch only once a kernel has read it.
        unexplained_storages: Number of storages that only the chip holds.
        missing_storages: Number of storages that only the replay holds.
    """

    explained: int
    data: int
    unexplained: int
    missing: int
    unexplained_storages: int
    missing_storages: int


def account(chip: Sequence[Leaf], replay: Sequence[Leaf], batches: Sequence[Leaf] = ()) -> Accounting:
    """Compares the storages of the chip with those of the replay; order carries no meaning.

    Args:
        chip: (bytes, keyed digest) of the storages in the snapshot.
        replay: The same of the replay at that position.
        batches: The same of the transcript's batches around that step.
    """
    there, here, known = Counter(chip), Counter(replay), Counter(batches)
    data = (there - here) & known
    unexplained, missing = there - here - data, here - there - known
    return Accounting(
        explained=_bytes(there & here),
        data=_bytes(data),
        unexplained=_bytes(unexplained),
        missing=_bytes(missing),
        unexplained_storages=unexplained.total(),
        missing_storages=missing.total(),
    )


def _bytes(leaves: Counter[Leaf]) -> int:
    return sum(size * count for (size, _), count in leaves.items())


def accounting(snapshot: SnapshotFacts) -> Accounting | None:
    """Returns the accounting of a snapshot that was opened and has a matching replay, else None."""
    replayed = replayed_leaves(snapshot)
    if replayed is None or not isinstance(snapshot.opening, Opening):
        return None
    return account(snapshot.opening.leaves, replayed, snapshot.batches)


def replayed_leaves(snapshot: SnapshotFacts) -> list[Leaf] | None:
    """Returns the storages that a matching replay held at the position, or None if there is no such replay."""
    result = snapshot.replayed
    if result is None or isinstance(result, WeighbridgeError) or result.verdict != "match" or result.live is None:
        return None
    return [(size, bytes.fromhex(keyed)) for size, keyed in result.live]


def check(snapshot: SnapshotFacts) -> list[Finding]:
    """Checks the opening against the signed root, and the opened storages against the replayed ones."""
    opening = snapshot.opening
    if opening is None:
        return []
    if isinstance(opening, WeighbridgeError):
        silent = opening.reason == ChipError.code  # then it is about the chip, and one finding will do
        return [opening.finding(subject=f"chip {snapshot.chip.ueid.hex()}" if silent else snapshot.subject)]
    token = snapshot.verified.token
    signed = (digest(token, "root"), number(token, "leaves"), number(token, "bytes"), digest(token, "salt_digest"))
    opened = (
        snapshot_root(opening.leaves, opening.salt),
        len(opening.leaves),
        sum(size for size, _ in opening.leaves),
        salt_digest(opening.salt),
    )
    if signed != opened:
        return [
            Finding(
                id="snapshot.opening.mismatch",
                message="what the chip opened is not what it signed",
                expected=", ".join(_text(value) for value in signed),
                found=", ".join(_text(value) for value in opened),
                subject=snapshot.subject,
            )
        ]
    return _compare(snapshot)


def _compare(snapshot: SnapshotFacts) -> list[Finding]:
    found = accounting(snapshot)
    if found is None:
        return []
    evidence = asdict(found)
    findings = []
    if found.missing:
        findings.append(
            Finding(
                id="snapshot.memory.missing",
                message="the chip did not hold what this position of the transcript leaves in memory",
                expected=f"{found.explained + found.missing} bytes as replayed",
                found=f"{found.missing} bytes in {found.missing_storages} storages are not there",
                subject=snapshot.subject,
                severity=_severity(found.missing, found.explained),
                evidence=evidence,
            )
        )
    if found.unexplained:
        findings.append(
            Finding(
                id="snapshot.memory.unexplained",
                message="the chip held more than the transcript accounts for; ask what these storages were",
                expected=f"{found.explained + found.data} explained bytes and no others",
                found=f"{found.unexplained} bytes in {found.unexplained_storages} storages besides",
                subject=snapshot.subject,
                severity=_severity(found.unexplained, found.explained),
                evidence=evidence,
            )
        )
    return findings


def _severity(differing: int, explained: int) -> Severity:
    return "warning" if differing <= SMALL_SHARE * (differing + explained) else "violation"


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
