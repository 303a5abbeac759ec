"""What a verdict is worth: a bound on the chance that a violation was there and was missed, term by term.

Pr(miss) <= (1 - p) + p * epsilon. p is the chance that the inspection meets a snapshot of the violation; epsilon the
chance that what it then meets is wrongly accepted (Shavit 2023, appendix D, read as docs/paper.md says).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.detection import DetectionDomainError
from analysis.hypergeometric import seen_probability
from analysis.reliability import with_soundness_error
from verifier.facts import Cell, SnapshotFacts
from verifier.segments import Replayed
from weighbridge.errors import WeighbridgeError
from weighbridge.transcript import Transcript

DIGESTS = 2.0**-97
"""Somebody finds two contents with one 256-bit digest in 2^80 evaluations: 2^(160 - 257)."""
SIGNATURES = 2.0**-92
"""Somebody computes an Ed25519 key in 2^80 operations by a generic method: (2^80 / 2^126)^2."""


def bound(probability: Mapping[str, Any], *, chunks: float = 0.0) -> dict[str, Any]:
    """Returns the bound with all its terms, as JSON-compatible data.

    Args:
        probability: The report's section with p, its inputs, and how it was computed.
        chunks: The chance that a false result of a collective is not among the chunks that were checked, for snapshots
            that count; 0 if none of those was replayed as a cell.
    """
    p, source = detection(probability)
    terms = [*_within_p(probability["inputs"]), *_within_epsilon(chunks)]
    epsilon = min(1.0, math.fsum(term["value"] for term in terms if term["in"] == "epsilon"))
    miss = 1.0 if p is None else 1.0 - float(with_soundness_error(probability=p, soundness_error=epsilon))
    return {
        "p": p,
        "p_is": source,
        "epsilon": epsilon,
        "miss_at_most": miss,
        "terms": terms,
        "formula": "miss_at_most = (1 - p) + p * epsilon; epsilon is the sum of its terms",
    }


def detection(probability: Mapping[str, Any]) -> tuple[float | None, str]:
    """Returns the p that the verdict rests on, and which of a report's values it is; None if none is defined.

    That of a draw from strata goes before the exact one of a plain draw, and this before equation 1.
    """
    for name in ("strata", "hypergeometric", "eq1"):
        value = probability.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value), name
    return None, "not defined"


def _term(name: str, value: float, inside: str, meaning: str) -> dict[str, Any]:
    return {"name": name, "value": value, "in": inside, "meaning": meaning}


def _within_p(inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What makes p smaller than one; these are part of it and not added again."""
    missed, involved = 1.0, inputs.get("involved_chips")
    if isinstance(involved, int):
        try:
            seen = seen_probability(population=inputs["C"], marked=involved, drawn=inputs["s"], shown=1.0)
            missed = 1.0 - float(seen)
        except DetectionDomainError:  # more are involved or drawn than there are
            pass
    empty = math.exp(-inputs["f"] * inputs["T"])
    return [
        _term("not_drawn", missed, "p", "none of the chips involved is among those that count as sampled"),
        _term("no_snapshot", empty, "p", "an involved chip holds no snapshot of the run: e^(-f T)"),
    ]


def _within_epsilon(chunks: float) -> list[dict[str, Any]]:
    return [
        _term("digests", DIGESTS, "epsilon", "two contents with one digest, found with 2^80 evaluations"),
        _term("signatures", SIGNATURES, "epsilon", "a signature forged with 2^80 operations"),
        _term(
            "chunks", chunks, "epsilon", "one false chunk of a collective's results that was not drawn; 0 without cells"
        ),
    ]


def unchecked_chunks(snapshots: Sequence[SnapshotFacts], verified: Sequence[bytes]) -> float:
    """Returns the largest chance that one false chunk was not drawn, over cells of chips that count as sampled."""
    cells = [each.cell for each in snapshots if isinstance(each.cell, Cell) and each.chip.ueid in verified]
    return max((1 - cell.drawn / cell.chunks for cell in cells if cell.chunks), default=0.0)


def replayed_steps(snapshots: Sequence[SnapshotFacts], segments: Sequence[Replayed]) -> list[dict[str, Any]]:
    """Returns for each transcript how much of it was replayed.

    p is about snapshots: each one's segment is replayed. A transcript that is false in another place only, where no
    sampled chip took a snapshot, is found with the share of its steps that was replayed, if that was chosen by chance.
    """
    ranges: dict[str, list[tuple[int, int]]] = {}
    totals: dict[str, int] = {}
    for snapshot in snapshots:
        if snapshot.transcript is None or not isinstance(snapshot.transcript.opened, Transcript):
            continue
        totals[snapshot.transcript.id] = snapshot.transcript.opened.steps
        if snapshot.replayed is not None and not isinstance(snapshot.replayed, WeighbridgeError):
            ranges.setdefault(snapshot.transcript.id, []).append(snapshot.replayed.steps)
    for segment in segments:
        for result in segment.results.values():
            if not isinstance(result, WeighbridgeError):
                ranges.setdefault(segment.selection.transcript, []).append(result.steps)
    out = []
    for identifier, total in sorted(totals.items()):
        count = _covered(ranges.get(identifier, []), total)
        share = count / total if total else 0.0
        out.append({"transcript": identifier, "steps": total, "replayed": count, "share": share})
    return out


def _covered(ranges: Sequence[tuple[int, int]], total: int) -> int:
    """Counts the steps in some ranges, each once."""
    count = reached = 0
    for first, last in sorted(ranges):
        count += max(0, min(last, total) - max(first, reached))
        reached = max(reached, min(last, total))
    return count
