"""Does the chip's history hold together: was it made once, and handed over by who had it?"""

from __future__ import annotations

from verifier.model.facts import CustodyFacts
from verifier.registry.audit import AuditPolicy, contradiction
from weighbridge.core.errors import Finding


def check(facts: CustodyFacts) -> list[Finding]:
    """Reports what parties said of a drawn chip that cannot be; its holder by the registry answers for it."""
    subject, policy = f"chip {facts.chip.ueid.hex()}", AuditPolicy()
    return [
        contradiction(each, subject, {"place": each.index, "holder": facts.chip.owner}, policy)
        for each in facts.contradictions
    ]
