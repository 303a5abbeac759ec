"""Is the memory that the workload declared as its weights what the transcript names as the model's parameters?"""

from __future__ import annotations

from collections import Counter

from verifier.checks.memory import replayed
from verifier.model.facts import Explanation, Opening, SnapshotFacts
from weighbridge.core.errors import Finding


def check(snapshot: SnapshotFacts) -> list[Finding]:
    """Compares the opened weights region with the parameters of a matching replay.

    A region that lacks parameters is a warning: which storages a model has may change between two declarations.
    """
    result, claim = replayed(snapshot), snapshot.explanation
    if result is None or result.weights is None or not isinstance(snapshot.opening, Opening):
        return []
    if not isinstance(claim, Explanation) or claim.step == 0:
        return []  # before the model is made, there is nothing to declare
    declared = Counter(snapshot.opening.weights)
    named = Counter((size, bytes.fromhex(keyed)) for size, keyed in result.weights)
    foreign, lacking = declared - named, named - declared
    if not foreign and not lacking:
        return []
    return [
        Finding(
            id="snapshot.weights.mismatch",
            message="the memory declared to the chip as weights is not that of the transcript's parameters",
            expected=f"{_bytes(named)} bytes in {named.total()} storages",
            found=f"{_bytes(foreign)} bytes of something else, {_bytes(lacking)} bytes not declared",
            subject=snapshot.subject,
            severity="violation" if foreign else "warning",
            evidence={"foreign": _bytes(foreign), "lacking": _bytes(lacking)},
        )
    ]


def _bytes(leaves: Counter[tuple[int, bytes]]) -> int:
    return sum(size * count for (size, _), count in leaves.items())
