"""Is what the chip had in memory exactly what the transcript says was there?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from verifier.facts import SnapshotFacts, digest, number
from weighbridge.digests import Leaf, salt_digest, snapshot_root
from weighbridge.errors import Finding, WeighbridgeError


@dataclass(frozen=True, kw_only=True, slots=True)
class Accounting:
    """The bytes of one snapshot, compared as a multiset of (bytes, digest).

    Attributes:
        explained: Bytes that both the chip and the replay hold.
        unexplained: Bytes that only the chip holds.
        missing: Bytes that only the replay holds.
        unexplained_storages: Number of storages that only the chip holds.
        missing_storages: Number of storages that only the replay holds.
    """

    explained: int
    unexplained: int
    missing: int
    unexplained_storages: int
    missing_storages: int


def account(chip: list[Leaf], replay: list[Leaf]) -> Accounting:
    """Compares the storages of the chip with those of the replay; order carries no meaning."""
    there, here = Counter(chip), Counter(replay)
    unexplained, missing = there - here, here - there
    return Accounting(
        explained=sum(size * count for (size, _), count in (there & here).items()),
        unexplained=sum(size * count for (size, _), count in unexplained.items()),
        missing=sum(size * count for (size, _), count in missing.items()),
        unexplained_storages=unexplained.total(),
        missing_storages=missing.total(),
    )


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
        return [opening.finding(subject=snapshot.subject)]
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
    return _compare(snapshot, opening.leaves)


def _compare(snapshot: SnapshotFacts, leaves: list[Leaf]) -> list[Finding]:
    replayed = replayed_leaves(snapshot)
    if replayed is None:
        return []
    found = account(leaves, replayed)
    evidence = {"explained": found.explained, "unexplained": found.unexplained, "missing": found.missing}
    findings = []
    if found.missing:
        findings.append(
            Finding(
                id="snapshot.memory.missing",
                message="the chip did not hold what this position of the transcript leaves in memory",
                expected=f"{found.explained + found.missing} bytes as replayed",
                found=f"{found.missing} bytes in {found.missing_storages} storages are not there",
                subject=snapshot.subject,
                evidence=evidence,
            )
        )
    if found.unexplained:
        findings.append(
            Finding(
                id="snapshot.memory.unexplained",
                message="the chip held more than the transcript accounts for; ask what these storages were",
                expected=f"{found.explained} explained bytes and no others",
                found=f"{found.unexplained} bytes in {found.unexplained_storages} storages besides",
                subject=snapshot.subject,
                evidence=evidence,
            )
        )
    return findings


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
