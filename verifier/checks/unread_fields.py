"""Does a chip's log hide fields that this inspection is not to read?

Work that no snapshot fell on shows in a chip's counters alone. Where these are hidden, not even a chip without a
snapshot counts as verified.
"""

from __future__ import annotations

from verifier.checks import provenance
from verifier.model.facts import LogFacts
from verifier.model.hidden_tokens import places
from weighbridge.core.errors import Finding


def check(log: LogFacts) -> list[Finding]:
    """Names a chip whose tokens hide fields that are not opened; in a sealed session `hidden_fields` says why not."""
    return [provenance.confidential(log.chip.ueid)] if places(log) and not log.unopened else []
