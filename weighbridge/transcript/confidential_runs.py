"""Which runs are confidential: their drafts say so, before the first step, and signed with the manifest.

What is sent of such a run in a dispute goes to a sealed worker alone. The mark keeps this software from sending it
elsewhere, and an ordinary referee from taking it. It hides nothing by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CONFIDENTIAL = "confidential"
"""Key of the draft, with the value true; a draft without it is of a run that is not."""


def is_confidential(draft: Mapping[str, Any]) -> bool:
    """Tells whether a draft says that its run is confidential."""
    return draft.get(CONFIDENTIAL) is True
