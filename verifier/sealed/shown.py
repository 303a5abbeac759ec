"""A case for the party that is asked to sign an order of it: all that it applies, and all that it says of chips.

What a Verifier says of a log (that it could not be read, or does not continue what was held) becomes a finding of a
record that both parties' secrets sign. So a Prover reads it here, before it signs the order.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from cryptography.hazmat.primitives.hashes import SHA256

from verifier.model.facts import LogFacts
from verifier.registry.transitions import Contradiction
from verifier.sealed.case import Case, regime_of
from verifier.stages.read_logs import snapshots_in
from weighbridge.core.errors import WeighbridgeError


def shown(case: Case) -> dict[str, Any]:
    """Returns what a case asks and says, JSON-compatible. Texts in it are the Verifier's, and hostile.

    Raises:
        WeighbridgeError: Its rules or its policy are none.
    """
    rules = regime_of(case).rules
    both = list(zip(case.logs, case.contradictions, strict=True))
    return {
        "inspection": case.inspection,
        "created_at": case.created_at,
        "chips": {log.chip.ueid.hex(): [each.index for each in snapshots_in(log)] for log in case.logs},
        "said": {log.chip.ueid.hex(): list(_said(log, wrong)) for log, wrong in both},
        "population": {"chips": len(case.agreed), "digest": case.agreed.digest.hex()},
        "beacon": json.loads(case.beacon) if case.beacon else None,
        "plan": case.plan.to_json(),
        "firmware": case.firmware.to_json(),
        "manufacturer": case.manufacturer.fingerprint(SHA256()).hex(),
        "witness": "" if case.witness is None else str(case.witness),
        "rules": "" if rules is None else rules.rules.digest,
        "policy": case.policy.decode(errors="replace"),
    }


def lines(said: dict[str, Any]) -> Iterator[tuple[int, str]]:
    """Yields the same as lines for a person: how far each is indented, and its text, which is as hostile."""
    yield 0, f"case of inspection {said['inspection']}: {len(said['chips'])} of {said['population']['chips']} chips"
    yield 1, f"population: BLAKE3 {said['population']['digest']}"
    yield 1, "beacon: none" if said["beacon"] is None else f"beacon: round {said['beacon']['round']}"
    for ueid, snapshots in said["chips"].items():
        yield 1, f"{ueid}: snapshots {', '.join(map(str, snapshots)) or 'none'}"
        for each in said["said"][ueid]:
            yield 2, f"the Verifier says: {each}"
    for part in ("plan", "firmware"):
        for name, value in said[part].items():
            yield 1, f"{name}: {value}"
    yield 1, f"manufacturer: certificate with SHA-256 {said['manufacturer']}"
    yield 1, f"witness: {said['witness'] or 'none'}"
    yield 1, f"rules: {said['rules'] or 'none'}; policy: {'its own' if said['policy'] else 'as designed'}"
    for line in said["policy"].splitlines():
        yield 2, line


def _said(log: LogFacts, wrong: tuple[Contradiction, ...]) -> Iterator[str]:
    for what, error in (("head", log.head), ("log", log.error), ("history", log.history)):
        if isinstance(error, WeighbridgeError):
            yield f"{what}: {error.message} ({error.reason})"
    for reason, _ in log.refused:
        yield f"a report of the chip was refused: {reason}"
    for each in wrong:
        yield f"registry: {each.reason} at entry {each.index}: expected {each.expected}, found {each.found}"
