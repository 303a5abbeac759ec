"""To which witness does the chip report? What it reports to another one, it may drop before this Verifier has it."""

from __future__ import annotations

from verifier.model.facts import LogFacts, digest
from weighbridge.attest.tlog import NoteKey
from weighbridge.core.errors import Finding, WeighbridgeError


def check(log: LogFacts, own: NoteKey | None) -> list[Finding]:
    """Reports what the witness refused since the last contact, and the first boot in which the chip trusted another."""
    return [*_refused(log), *_foreign(log, own)]


def _refused(log: LogFacts) -> list[Finding]:
    """A history that was reported once stays one, also if the chip shows another by now."""
    return [
        Finding(
            id="chip.log.rolled_back" if reason == "chip.log.rolled_back" else "chip.log.changed",
            message="the chip reported a log that is no continuation of the one that the witness holds",
            expected=log.held.root.hex(),
            found=reason,
            subject=f"chip {log.chip.ueid.hex()}",
            evidence={"held": log.held.checkpoint.decode(), "shown": checkpoint.decode()},
        )
        for reason, checkpoint in log.refused
    ]


def _foreign(log: LogFacts, own: NoteKey | None) -> list[Finding]:
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
