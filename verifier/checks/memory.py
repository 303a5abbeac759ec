"""Is what the chip had in memory exactly what the transcript says was there?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from verifier.model.facts import MATCHES, Explanation, Opening, SnapshotFacts, digest, number
from verifier.model.policies import SNAPSHOTS_AS_DESIGNED, SnapshotPolicy
from weighbridge.attest.tokens import HiddenBody, shown
from weighbridge.core.digests import Leaf, salt_digest, snapshot_root
from weighbridge.core.errors import ChipError, Finding, Severity, WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Accounting:
    """The bytes of one snapshot, compared as a multiset of (bytes, digest).

    Attributes:
        explained: Bytes that both the chip and the replay hold.
        declared: Bytes that only the chip holds and whose content the transcript declares: its batches and
            undeclared tensors, of this step or one next to it. (The Recorder's own buffers lie in the host's memory.)
        temporary: Off a safepoint, bytes that only the chip holds and that the operation in progress may have made.
            They cannot be looked at again.
        unexplained: Bytes that only the chip holds.
        missing: Bytes that only the replay holds, but for batches: a chip knows a batch only once a kernel has read it.
        unexplained_storages: Number of storages that only the chip holds.
        missing_storages: Number of storages that only the replay holds.
    """

    explained: int
    declared: int
    temporary: int = 0
    unexplained: int
    missing: int
    unexplained_storages: int
    missing_storages: int


def account(
    chip: Sequence[Leaf],
    replay: Sequence[Leaf],
    batches: Sequence[Leaf] = (),
    *,
    after: Sequence[Leaf] | None = None,
    room: float = 0,
) -> Accounting:
    """Compares the storages of the chip with those of the replay; order carries no meaning.

    Args:
        chip: (bytes, keyed digest) of the storages in the snapshot.
        replay: The same of the replay at that position.
        batches: The same of the transcript's batches around that step.
        after: Off a safepoint, the same of the replay after the operation in progress. What this operation writes or
            frees may be as before, as after, or in between. Nothing after the last step, where all may be freed.
        room: Bytes that the operation in progress may hold besides.
    """
    there, here, known = Counter(chip), Counter(replay), Counter(batches)
    later = here if after is None else Counter(after)
    explained = there & (here | later)
    extra = there - explained
    declared = extra & known
    unexplained, missing = extra - declared, (here & later) - there - known
    size = _bytes(unexplained)
    temporary = size if size <= room else 0
    return Accounting(
        explained=_bytes(explained),
        declared=_bytes(declared),
        temporary=temporary,
        unexplained=size - temporary,
        missing=_bytes(missing),
        unexplained_storages=0 if temporary else unexplained.total(),
        missing_storages=missing.total(),
    )


def _bytes(leaves: Counter[Leaf]) -> int:
    return sum(size * count for (size, _), count in leaves.items())


def accounting(snapshot: SnapshotFacts, policy: SnapshotPolicy = SNAPSHOTS_AS_DESIGNED) -> Accounting | None:
    """Returns the accounting of a snapshot that was opened and has a matching replay, else None."""
    result = replayed(snapshot)
    if result is None or not isinstance(snapshot.opening, Opening) or is_setup(snapshot, policy):
        return None
    if _is_over(snapshot):
        return account(snapshot.opening.leaves, leaves(result), snapshot.batches, after=())
    if shown(snapshot.verified.token)["safepoint"]:
        return account(snapshot.opening.leaves, leaves(result), snapshot.batches)
    after = leaves(snapshot.after) if snapshot.after is not None else None
    room = policy.temporaries * result.touched
    return account(snapshot.opening.leaves, leaves(result), snapshot.batches, after=after, room=room)


def _is_over(snapshot: SnapshotFacts) -> bool:
    """Whether the claimed position is the one after the last step: no tape says what a program lets go of then."""
    claim, facts = snapshot.explanation, snapshot.transcript
    if not isinstance(claim, Explanation) or facts is None or isinstance(facts.opened, WeighbridgeError):
        return False
    return claim.step == facts.opened.steps


def replayed(snapshot: SnapshotFacts) -> ReplayResult | None:
    """Returns the replay to the snapshot's position if it matched and got there, else None."""
    result = snapshot.replayed
    if result is None or isinstance(result, WeighbridgeError) or result.verdict not in MATCHES or result.live is None:
        return None
    return result


def leaves(result: ReplayResult) -> list[Leaf]:
    """Returns the storages that a replay held where it stopped."""
    return [(size, bytes.fromhex(keyed)) for size, keyed in result.live or ()]


def check(snapshot: SnapshotFacts, policy: SnapshotPolicy = SNAPSHOTS_AS_DESIGNED) -> list[Finding]:
    """Checks the opening against the signed root, and the opened storages against the replayed ones."""
    opening = snapshot.opening
    if opening is None:
        return []
    if isinstance(opening, WeighbridgeError):
        silent = opening.reason == ChipError.code  # then it is about the chip, and one finding will do
        return [opening.finding(subject=f"chip {snapshot.chip.ueid.hex()}" if silent else snapshot.subject)]
    token = snapshot.verified.token
    if isinstance(token.body, HiddenBody):
        return []  # there is no root to compare it with, and `provenance` says why
    signed = (
        digest(token, "root"),
        number(token, "leaves"),
        number(token, "bytes"),
        digest(token, "salt_digest"),
        digest(token, "weights_root"),
        number(token, "weights_bytes"),
    )
    opened = (
        snapshot_root(opening.leaves, opening.salt),
        len(opening.leaves),
        sum(size for size, _ in opening.leaves),
        salt_digest(opening.salt),
        snapshot_root(opening.weights, opening.salt),
        sum(size for size, _ in opening.weights),
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
    return [_setup(snapshot)] if is_setup(snapshot, policy) else _compare(snapshot, policy)


def is_setup(snapshot: SnapshotFacts, policy: SnapshotPolicy) -> bool:
    """Whether a run that began from given weights was still loading them: no tape says what was in memory then."""
    claim = snapshot.explanation
    if not isinstance(claim, Explanation) or claim.step:
        return False
    return is_beginning(snapshot, policy) and begins_from_given(snapshot)


def is_beginning(snapshot: SnapshotFacts, policy: SnapshotPolicy) -> bool:
    """Whether a workload has done no more than it takes to begin: by FLOPs, kernels and the time that they ran.

    Time is what no workload can make look smaller; without it, work in kernels that count few FLOPs would be excused.
    """
    token, work = snapshot.verified.token, snapshot.work
    small = number(token, "flops") <= policy.setup_flops and number(token, "kernels") <= policy.setup_kernels
    return small and work is not None and work.busy_ns <= policy.setup_busy_s * 1e9


def begins_from_given(snapshot: SnapshotFacts) -> bool:
    """Whether the run behind a snapshot began from given weights: what made them is on no tape."""
    facts = snapshot.transcript
    if facts is None or isinstance(facts.opened, WeighbridgeError):
        return False
    try:
        return not facts.opened.initialises()
    except WeighbridgeError:
        return False  # the tape of step 0 cannot be read, as the replay says


def _setup(snapshot: SnapshotFacts) -> Finding:
    return Finding(
        id="snapshot.setup",
        message="the snapshot was taken while a run was loading the weights that it began from; not verified",
        expected="the run's first step",
        found=f"{number(snapshot.verified.token, 'bytes')} bytes before it",
        subject=snapshot.subject,
        severity="info",
    )


def _compare(snapshot: SnapshotFacts, policy: SnapshotPolicy) -> list[Finding]:
    found = accounting(snapshot, policy)
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
                severity=_severity(found.missing, found.explained, policy),
                evidence=evidence,
            )
        )
    if found.unexplained:
        findings.append(
            Finding(
                id="snapshot.memory.unexplained",
                message="the chip held more than the transcript accounts for; ask what these storages were",
                expected=f"{found.explained + found.declared} explained bytes and no others",
                found=f"{found.unexplained} bytes in {found.unexplained_storages} storages besides",
                subject=snapshot.subject,
                severity=_severity(found.unexplained, found.explained, policy),
                evidence=evidence,
            )
        )
    return findings


def _severity(differing: int, explained: int, policy: SnapshotPolicy) -> Severity:
    return "warning" if differing <= policy.unexplained_share * (differing + explained) else "violation"


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
