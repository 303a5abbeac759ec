"""What the registry's log says of one chip: who made, sold and installed it, entry by entry."""

from __future__ import annotations

from typing import Any

from verifier.registry.directory import Registry
from verifier.registry.entries import Listing, decode
from verifier.registry.listings import rfc3339
from weighbridge.attest.custody_statements import Signed


def chip_history(registry: Registry, ueid: bytes) -> list[dict[str, Any]]:
    """Returns the entries about a chip, the oldest first.

    Args:
        registry: Whose log is read.
        ueid: Of the chip.

    Returns:
        For each entry its index (`entry`), `time` (RFC 3339) and `event`; of a party's statement also `by`, `to` and
        `site`; of a listing, whose event is `listed`, `owner` and `site`.
    """
    history: list[dict[str, Any]] = []
    for index in registry.history(ueid):
        (entry,) = registry.log.entries(index, index + 1)
        at_s, content = decode(entry)
        if isinstance(content, Signed):
            said = content.statement
            more = {"by": said.by, "to": said.to, "site": said.site}
            history.append({"entry": index, "time": rfc3339(said.time_s), "event": said.kind, **more})
        elif isinstance(content, tuple):
            row = next(row for row in content if isinstance(row, Listing) and row.ueid == ueid)
            history.append(
                {"entry": index, "time": rfc3339(at_s), "event": "listed", "owner": row.owner, "site": row.site}
            )
    return history
