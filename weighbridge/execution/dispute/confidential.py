"""Disputes of confidential runs have a referee of their own, a sealed worker: every other one refuses them by name.

The terms of a dispute say whether its run is confidential, as the run's draft does. What a party would send is refused
before it is signed, and what reaches an ordinary referee all the same is refused there.
"""

from __future__ import annotations

from typing import Any

from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor
from weighbridge.core.errors import FormatError
from weighbridge.execution.dispute.messages import DisputeError
from weighbridge.transcript.confidential_runs import CONFIDENTIAL

TERMS_ITEMS = 1 << 14
"""Most CBOR items of the terms of a dispute: two for each order of products that a draft may declare, and some more."""

COMMAND = "weighbridge dispute sealed"
"""What the parties to a dispute of a confidential run use."""


class ConfidentialDisputeError(DisputeError):
    """A dispute is of a confidential run, and this is no sealed referee."""

    code = "dispute.confidential"


def is_marked(terms: bytes) -> bool:
    """Whether the terms of a dispute, encoded, say that the run is confidential; what is no terms does not."""
    said = _read(terms)
    return said is not None and said.get(CONFIDENTIAL) is True


def unmarked(terms: bytes) -> bytes:
    """Returns the terms without that mark: whether a run is confidential is no matter of what its steps compute."""
    said = _read(terms)
    if said is None or CONFIDENTIAL not in said:
        return terms
    return cbor({name: value for name, value in said.items() if name != CONFIDENTIAL})


def require_open(terms: bytes) -> None:
    """Checks that what has these terms may go to an ordinary referee, or into a file that is passed around.

    Raises:
        ConfidentialDisputeError: The run is confidential.
    """
    if is_marked(terms):
        raise ConfidentialDisputeError(
            "The run is confidential: the referee of its disputes is a sealed worker, and nothing goes elsewhere; "
            f"use `{COMMAND}` (docs/disputes.md)."
        )


def _read(terms: bytes) -> dict[str, Any] | None:
    try:
        found = decode_cbor(terms, max_depth=8, max_items=TERMS_ITEMS)
    except FormatError:
        return None
    return found if isinstance(found, dict) else None
