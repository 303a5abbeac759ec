"""What a report says beside findings: how runs began, in which order they used data, and how their weights moved.

None of it accuses anybody. It is there so that a reader sees what the verdict rests on, and where to look further.
"""

from __future__ import annotations

import math
from typing import Any

from verifier.checks import records
from verifier.checks.order import order_of, seed_follows
from verifier.collected import Collected
from verifier.lineage import Lineage
from verifier.openedrecords import RecordFacts
from verifier.weightchange import Changes
from weighbridge.errors import WeighbridgeError
from weighbridge.parentage import Parent
from weighbridge.transcript import Transcript


def build(collected: Collected) -> dict[str, Any]:
    """Returns JSON-compatible data.

    - `beginnings`: for each transcript, what entered W_0 from outside, and the declared parent.
    - `orders`: for each transcript, who chose the order of its data, and whether its seed follows from them.
    - `weights`: for each transcript, the relative change of the weights in each segment between two checkpoints, and
      how far that stands out from its neighbours (`verifier.weightchange`).
    - `records`: how many records were asked for, and how many were opened and are those committed to.
    - `memories`: whether weights remember the batches of their segments, with p-values (`verifier.memorisation`).
    - `segments`: those replayed whole, with all that their choice follows from (`verifier.segments.verify`).
    """
    opened = {facts.id: facts.opened for facts in collected.transcripts.values()}
    return {
        "beginnings": [_beginning(line) for line in collected.lineages],
        "orders": [
            {"transcript": name, "order": order_of(each), "seed_follows": seed_follows(each)}
            for name, each in opened.items()
            if isinstance(each, Transcript)
        ],
        "weights": [_weights(each) for each in opened.values() if isinstance(each, Transcript)],
        "records": [_records(each) for each in collected.records],
        "memories": collected.memories,
        "segments": [each.to_json() for each in collected.segments],
    }


def _records(facts: RecordFacts) -> dict[str, Any]:
    opened = [] if isinstance(facts.opened, WeighbridgeError) else facts.opened
    good = len(opened) - sum(finding.id == "data.record.differs" for finding in records.check(facts))
    return {"transcript": facts.id, "asked": len(facts.asked), "used": len(facts.used), "opened": good}


def _beginning(line: Lineage) -> dict[str, Any]:
    parent = line.parent
    return {
        "transcript": line.id,
        "from_outside": line.bytes,
        "parent": {"transcript": parent.transcript, "step": parent.step} if isinstance(parent, Parent) else None,
        "compared": line.held is not None and not isinstance(line.held, WeighbridgeError),
        "elsewhere": dict(sorted(line.elsewhere.items())),
    }


def _weights(transcript: Transcript) -> dict[str, Any]:
    changes = Changes(transcript)
    outstanding = changes.continuity()
    rows = [
        {"begin": begin, "change": _finite(changes.total[begin]), "score": _finite(outstanding[begin])}
        for begin in sorted(changes.total)
    ]
    return {"transcript": transcript.digest, "segments": rows}


def _finite(value: float) -> float | None:
    """JSON has no infinity: None stands for it."""
    return round(value, 9) if math.isfinite(value) else None
