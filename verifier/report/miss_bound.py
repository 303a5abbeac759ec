"""What a verdict is worth: a bound on the chance that a violation went unseen, term by term.

Pr(unseen) <= (1 - p) + p * epsilon. p is the chance that the inspection meets a snapshot of the violation that the
Prover cannot withhold; epsilon the chance that cryptography or the draw of chunks lets another content pass for it
(Shavit 2023, appendix D, read as docs/paper.md says).

This bounds what chance decides, and nothing else. A transcript that replays bit for bit and is not what it says (a
spoof: weights from elsewhere behind a harmless program) passes or does not, by what it is; the Prover picks it, so the
rate at which those that a test tried were caught bounds nothing here and is no term. What spoofs cost and bring
is measured and reported apart from p. The figure is therefore called `unseen_at_most`: it bounds how often a violation
is not met, and is no bound on how often one is missed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from analysis.domain import DetectionDomainError
from analysis.hypergeometric import seen_probability
from analysis.reliability import with_soundness_error
from verifier.model.facts import Cell, SnapshotFacts

MEANING = (
    "the probability that a violation of size H went unseen: that no snapshot of it was met on more chips than did not "
    "verify, or that a digest, a signature or an unchecked chunk let another content pass. It does not cover spoofs: "
    "transcripts that replay bit for bit and are not the training that they claim to be. Those pass or fail by what "
    "they are, not by chance."
)
FORMULA = "unseen_at_most = (1 - p) + p * epsilon; epsilon is the sum of its terms"
NOT_DRAWN = "of the chips involved, no more were drawn than did not verify afterwards (w)"
P_IS = {
    "strata": "exact, against the worst spread over the strata of the draw",
    "hypergeometric": "exact: whole chips, drawn without replacement",
    "eq1": "equation 1: chips drawn with replacement",
    "not defined": "not defined for this plan",
}
"""What each value of `p_is` means."""
DIGESTS = 2.0**-97
"""Two contents with one 256-bit digest are found in 2^80 evaluations: 2^(160 - 257)."""
SIGNATURES = 2.0**-92
"""An Ed25519 key is computed in 2^80 operations by a generic method: (2^80 / 2^126)^2."""


def bound(probability: Mapping[str, Any], *, chunks: float = 0.0) -> dict[str, Any]:
    """Returns the bound with all its terms, as JSON-compatible data.

    `unseen_at_most` includes no measured spoofs, on purpose: see the module.

    Args:
        probability: The report's section with p, its inputs, and how it was computed.
        chunks: The chance that a false result of a collective is not among the chunks that were checked, for snapshots
            that count; 0 if none of those was replayed as a cell.
    """
    p, source = detection(probability)
    terms = [*_within_p(probability["inputs"]), *_within_epsilon(chunks)]
    epsilon = min(1.0, math.fsum(term["value"] for term in terms if term["in"] == "epsilon"))
    unseen = 1.0 if p is None else 1.0 - float(with_soundness_error(probability=p, soundness_error=epsilon))
    return {
        "p": p,
        "p_is": source,
        "epsilon": epsilon,
        "unseen_at_most": unseen,
        "terms": terms,
        "formula": FORMULA,
        "meaning": MEANING,
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
            seen = seen_probability(
                population=inputs["C"], marked=involved, drawn=inputs["s"], shown=1.0, withheld=inputs["w"]
            )
            missed = 1.0 - float(seen)
        except DetectionDomainError:  # more are involved or drawn than there are
            pass
    empty = math.exp(-inputs["f"] * inputs["T"])
    return [
        _term("not_drawn", missed, "p", NOT_DRAWN),
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
    """Returns the largest chance that one false chunk was not drawn, over cells of chips that count as verified."""
    cells = [each.cell for each in snapshots if isinstance(each.cell, Cell) and each.chip.ueid in verified]
    return max((1 - cell.drawn / cell.chunks for cell in cells if cell.chunks), default=0.0)
