"""What a report says beside findings: how runs began, in which order they used data, and how their weights moved.

None of it is evidence against the Prover. It shows a reader what the verdict rests on, and where to look further.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from verifier.checks import data_records
from verifier.checks.order import order_of, seed_follows
from verifier.model import supplement_facts
from verifier.model.collected import Collected
from verifier.model.lineage import Lineage
from verifier.model.opened_records import RecordFacts
from verifier.model.weight_change import Changes
from verifier.report import training
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.transcript_facts import OpenedTranscript
from weighbridge.transcript.parentage import Parent


def build(collected: Collected, lists: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Returns JSON-compatible data.

    Args:
        collected: The inspection, once it is judged.
        lists: The lists of the rule set in force; they may approve data sets.

    Returns:
        What a report has under `evidence`:

    - `beginnings`: for each transcript, what entered W_0 from outside, the declared parent, and what the run, its
      ancestors and the other ranks of its job chose together.
    - `orders`: for each transcript, who chose the order of its data, and whether its seed follows from them.
    - `weights`: for each transcript, the relative change of the weights in each segment between two checkpoints, and
      how far that stands out from its neighbours (`verifier.model.weight_change`).
    - `records`: how many records were asked for, and how many were opened and are those committed to.
    - `memories`: whether weights remember the batches of their segments, with p-values
    (`verifier.report.memorisation`).
    - `segments`: those replayed whole, with all that their choice follows from (`verifier.model.segments.verify`).
    - `supplements`: rounding logs that Provers were asked to make on demand, and by Prover how many such requests were
    answered, in this inspection and in earlier ones (`verifier.model.supplement_facts`).
    - `repeats`: for each transcript that declares them, which segments were due while it was recorded, and what became
    of the commitments to their logs (`verifier.model.repeat_facts`).
    - `training`: what was recognised of each run's steps (`verifier.report.training`).
    """
    opened = {facts.id: facts.opened for facts in collected.transcripts.values()}
    return {
        "beginnings": [_beginning(line) for line in collected.lineages],
        "orders": [
            {"transcript": name, "order": order_of(each), "seed_follows": seed_follows(each)}
            for name, each in opened.items()
            if isinstance(each, OpenedTranscript)
        ],
        "weights": [_weights(each) for each in opened.values() if isinstance(each, OpenedTranscript)],
        "records": [_records(each) for each in collected.records],
        "memories": collected.memories,
        "segments": [each.to_json() for each in collected.segments],
        "supplements": supplement_facts.section(collected.supplements, collected.earlier),
        "repeats": [each.to_json() for each in collected.repeats],
        "training": training.section(collected.trainings(), _roots(opened), lists or {}),
    }


def _roots(opened: Mapping[str, OpenedTranscript | WeighbridgeError]) -> dict[str, str]:
    return {
        name: each.data.root.hex()
        for name, each in opened.items()
        if isinstance(each, OpenedTranscript) and each.data is not None
    }


def _records(facts: RecordFacts) -> dict[str, Any]:
    opened = [] if isinstance(facts.opened, WeighbridgeError) else facts.opened
    good = len(opened) - sum(finding.id == "data.record.differs" for finding in data_records.check(facts))
    return {"transcript": facts.id, "asked": len(facts.asked), "used": len(facts.used), "opened": good}


def _beginning(line: Lineage) -> dict[str, Any]:
    parent = line.parent
    return {
        "transcript": line.id,
        "from_outside": line.bytes,
        "parent": {"transcript": parent.transcript, "step": parent.step} if isinstance(parent, Parent) else None,
        "compared": line.held is not None and not isinstance(line.held, WeighbridgeError),
        "elsewhere": dict(sorted(line.elsewhere.items())),
        "runs": line.runs,
        "chosen": {} if isinstance(line.chosen, WeighbridgeError) else dict(line.chosen),
    }


def _weights(transcript: OpenedTranscript) -> dict[str, Any]:
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
