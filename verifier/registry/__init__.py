"""The Verifier's registry: the chips, who answers for them, what was witnessed of their logs, and the inspections.

What a chip's log was seen to contain is remembered here, so that a log which later shrinks or changes is a finding.
An inspection's plan, stage and report are kept for good.
"""

from verifier.database import Base
from verifier.registry.directory import FINISHED, Chip, InspectionRecord, Registry

__all__ = ["FINISHED", "Base", "Chip", "InspectionRecord", "Registry"]
