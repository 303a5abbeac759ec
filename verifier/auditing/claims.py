"""What an auditor says of a segment: committed to before any auditor shows anything, then opened."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from verifier.auditing.statements import AuditError
from weighbridge.core.digests import DIGEST_SIZE, record_digest
from weighbridge.execution.replay_answer import ReplayResult

Found = Literal["match", "mismatch", "inconclusive"]

_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a replay of a segment found.

    Attributes:
        verdict: As of a replay.
        step: Step of the first difference; of a match, the step after the last one.
        op: Operation of the first difference; of a match 0.
        work: Hex keyed digest over all operation results up to there.
    """

    verdict: Found
    step: int
    op: int
    work: str

    def to_json(self) -> list[Any]:
        """Returns it as a statement has it; inverse of `from_json`."""
        return [self.verdict, self.step, self.op, self.work]

    @classmethod
    def from_json(cls, raw: Any) -> Claim:
        """Reads a claim.

        Raises:
            AuditError: It is none.
        """
        match raw:
            case [verdict, int(step), int(op), str(work)] if verdict in get_args(Found) and _HEX.fullmatch(work):
                if type(step) is type(op) is int and 0 <= step < 1 << 53 and 0 <= op < 1 << 53:
                    return cls(verdict=verdict, step=step, op=op, work=work)
        raise AuditError("A claim is not a verdict, a step, an operation and a digest; ask for the statement again.")


Opened = dict[int, tuple[str, Claim]]
"""Number of each segment to the blinding in hex and the claim."""


def claim_of(result: ReplayResult, begin: int, end: int) -> Claim | None:
    """Returns what is to be said after a replay of a segment with a key; None if it did not get to the segment.

    Args:
        result: The replay.
        begin: First step of the segment.
        end: The step after its last one.
    """
    if result.work is None or result.verdict == "match given collectives":
        return None
    if result.verdict == "match":
        return Claim(verdict="match", step=end, op=0, work=result.work)
    where = result.first_difference
    step, op = (result.steps[1], 0) if where is None else (where["step"], where["op"])
    return None if step < begin else Claim(verdict=result.verdict, step=step, op=op, work=result.work)


def blinding() -> str:
    """Returns 32 random bytes in hex, fresh for each commitment."""
    return secrets.token_hex(DIGEST_SIZE)


def commitment(plan: bytes, segment: int, auditor: bytes, r: str, claim: Claim) -> str:
    """Returns what an auditor commits to, in hex. It names the auditor, so another one's is of no use to copy.

    Args:
        plan: Digest of the plan's statement (32 bytes).
        segment: Number of the segment.
        auditor: Raw public key of the auditor (32 bytes).
        r: Its blinding, in hex.
        claim: The claim.
    """
    return record_digest("audit-commitment/1", [plan, segment, auditor, bytes.fromhex(r), claim.to_json()]).hex()


def opened_to_json(opened: Opened) -> list[Any]:
    """Returns opened claims as a statement has them; inverse of `opened_of`."""
    return [[segment, r, *claim.to_json()] for segment, (r, claim) in sorted(opened.items())]


def opened_of(raw: Any) -> Opened:
    """Reads opened claims.

    Raises:
        AuditError: They are none, or a segment is there twice.
    """
    found: Opened = {}
    for each in raw if isinstance(raw, list) else [None]:
        match each:
            case [int(segment), str(r), *claim] if type(segment) is int and _HEX.fullmatch(r) and segment not in found:
                found[segment] = r, Claim.from_json(claim)
            case _:
                raise AuditError("Openings are not a list of segment, blinding and claim; ask for the statement again.")
    return found


def commitments_of(raw: Any) -> Mapping[int, str]:
    """Reads the commitments of an auditor, by segment.

    Raises:
        AuditError: They are none, or a segment is there twice.
    """
    found: dict[int, str] = {}
    for each in raw if isinstance(raw, list) else [None]:
        match each:
            case [int(segment), str(said)] if type(segment) is int and _HEX.fullmatch(said) and segment not in found:
                found[segment] = said
            case _:
                raise AuditError("Commitments are not a list of segment and digest; ask for the statement again.")
    return found
