"""Is this the chip that the registry means, and did one device sign everything?"""

from __future__ import annotations

from verifier.model.facts import LogFacts
from weighbridge.core.errors import Finding, WeighbridgeError


def check(log: LogFacts) -> list[Finding]:
    """Compares the identity in every verified token with the registered one, and with the one that was agreed on.

    It reports the first difference.

    That each token's certificate chain ends at the manufacturer's root was part of verifying it.
    """
    for where, verified in (("head", log.head), *((f"entry {n}", e.verified) for n, e in enumerate(log.entries))):
        if isinstance(verified, WeighbridgeError):
            continue  # reported by chip_log
        found = {verified.token.ueid, verified.identity.ueid} - {log.chip.ueid}
        if found:
            return [
                Finding(
                    id="chip.identity.mismatch",
                    message="another device than the registered one signed this log; inspect the chip on site",
                    expected=log.chip.ueid.hex(),
                    found=", ".join(sorted(ueid.hex() for ueid in found)),
                    subject=f"chip {log.chip.ueid.hex()} {where}",
                )
            ]
        if log.agreed and verified.identity.device != log.agreed:
            return [
                Finding(
                    id="chip.identity.agreed",
                    message="the chip has another IDevID certificate than both parties agreed on before the draw",
                    expected=log.agreed.hex(),
                    found=verified.identity.device.hex(),
                    subject=f"chip {log.chip.ueid.hex()} {where}",
                )
            ]
    return []
