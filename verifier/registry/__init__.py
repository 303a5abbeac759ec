"""The Verifier's registry: the chips, who answers for them, what was witnessed of their logs, and the inspections.

A chip gets into it by statements of the parties that made, sold and installed it (`statements`, `transitions`), or
because the registry lists it (`listings`). Either way there is an entry in the registry's log (`log`, `entries`), whose
root so covers every chip. What a chip's own log was seen to contain is remembered here, so that a log which later
shrinks or changes is a finding. An inspection's plan, stage and report are kept for good.
"""

from verifier.registry.directory import FINISHED, Chip, InspectionLine, InspectionRecord, Member, Registry
from verifier.registry.entries import ROLES, Party
from verifier.registry.log import load_key

__all__ = ["FINISHED", "ROLES", "Chip", "InspectionLine", "InspectionRecord", "Member", "Party", "Registry", "load_key"]
