"""To whom does the chip report? What it reports to somebody else, it may drop before this Verifier has it."""

from __future__ import annotations

from verifier.facts import LogFacts, digest
from weighbridge.errors import Finding, WeighbridgeError
from weighbridge.tlog import NoteKey


def check(log: LogFacts, own: NoteKey | None) -> list[Finding]:
    """Reports the first boot in which the chip trusted a witness that is not this Verifier's."""
    known = {bytes(32), own.public if own is not None else bytes(32)}
    for entry in log.entries:
        if isinstance(entry.verified, WeighbridgeError) or entry.verified.token.kind != "boot":
            continue
        trusted = digest(entry.verified.token, "witness")
        if trusted not in known:
            return [
                Finding(
                    id="chip.witness.unknown",
                    message="the chip trusts another witness, so it may drop entries that this Verifier has not seen",
                    expected=own.public.hex() if own is not None else "no witness",
                    found=trusted.hex(),
                    subject=f"chip {log.chip.ueid.hex()} entry {entry.verified.token.index}",
                    severity="warning",
                )
            ]
    return []
