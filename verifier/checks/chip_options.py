"""Was the chip started with options within this Verifier's limits?

A measurement says which firmware runs, and nothing about the options that it was started with. An interrupt that may
wait for ever, or a clock that stands still, would make every other check of interrupts worth nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from verifier.model.facts import LogFacts, number
from verifier.model.reference_values import ChipLimits
from weighbridge.attest.tokens import Token, shown
from weighbridge.core.errors import Finding, WeighbridgeError

_ROUNDING = 0.0005
"""Boot entries have three decimals."""


def check(log: LogFacts, limits: ChipLimits) -> list[Finding]:
    """Compares the options in every boot entry that is new to the Verifier with its limits.

    Returns:
        A finding for each option, about the first boot that is beyond its limit or does not state it.
    """
    findings: dict[str, Finding] = {}
    for index, entry in enumerate(log.entries[log.chip.witnessed_size :], log.chip.witnessed_size):
        if isinstance(entry.verified, WeighbridgeError) or entry.verified.token.kind != "boot":
            continue
        for name, expected, found in _beyond(entry.verified.token, limits):
            findings.setdefault(
                name,
                Finding(
                    id="chip.options.exceeded",
                    message=f"the chip was started with an option beyond this Verifier's limits: {name}",
                    expected=expected,
                    found=found,
                    subject=f"chip {log.chip.ueid.hex()} entry {index}",
                    evidence={"option": name},
                ),
            )
    return list(findings.values())


def _beyond(boot: Token, limits: ChipLimits) -> Iterator[tuple[str, str, str]]:
    """Yields (option, limit, what the boot entry says)."""
    if (hold := number(boot, "hold")) > limits.hold:
        yield "hold", f"at most {limits.hold} kernels", f"{hold} kernels"
    if "clock_milli" not in shown(boot):  # earlier firmware, which nothing kept from any speed
        yield "clock speed", "a stated speed", "none stated"
        return
    speed = number(boot, "clock_milli") / 1000
    if not 1 - _ROUNDING <= speed <= limits.clock_speed + _ROUNDING:
        yield "clock speed", f"1 to {limits.clock_speed:g}", f"{speed:g}"
    if shown(boot)["forced"] and not limits.forced:
        yield "forced interrupts", "refused by the chip", "allowed"
