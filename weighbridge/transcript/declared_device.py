"""Which kind of device a transcript says recorded a step.

The draft says it, before the first step, unless the Recorder could not know: a program on a machine with an accelerator
may compute on either. A recording that went on after a crash may have moved, so each resumption says it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weighbridge.transcript.resumption_notes import MAX_DEVICE, Resumption

DEVICE = "device"
"""Key of the draft, and of a resumption."""


def declared_device(draft: Mapping[str, Any], resumptions: Sequence[Resumption], step: int) -> str | None:
    """Returns the kind that a step was recorded on (`weighbridge.numerics.conformance.device_kind`), or None.

    What is no such name, but a text for the report say, names none.

    Args:
        draft: The transcript's draft.
        resumptions: What it says of crashes.
        step: The step.
    """
    said = draft.get(DEVICE)
    for resumption in resumptions:
        if resumption.step <= step:
            said = resumption.device
    good = isinstance(said, str) and 0 < len(said) <= MAX_DEVICE and said.isprintable()
    return said if good else None
