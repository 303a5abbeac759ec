"""Did the chip's clock run? Interrupts come on it, so a slow clock means fewer snapshots.

A boot takes its time from the host, so a chip's time of day says little about how fast its clock runs. Its uptime does:
between two heads of one boot, each over a nonce of the Verifier or its witness, it must go on as far as their clock.
What lies before a boot's first such head, or after its last, is *not anchored*: nothing proves how long it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby, pairwise

from verifier.model.facts import LogFacts, number
from verifier.model.reference_values import CLOCK_TOLERANCE, ChipLimits
from weighbridge.attest.tokens import Token, shown
from weighbridge.core.errors import Finding, WeighbridgeError

BEHIND = 10.0
"""How many times the slack a chip's time of day may be behind: its boots take the host's, which its owner sets."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Anchored:
    """A stretch of one boot's uptime with a head of the chip at each end.

    Attributes:
        first: The head at its beginning.
        last: The head at its end.
        begin_ms: The Verifier's time at which the first had been read.
        end_ms: The Verifier's time at which the last was asked for.
    """

    first: Token
    last: Token
    begin_ms: int
    end_ms: int

    @property
    def least_ms(self) -> int:
        """How far the Verifier's clock went at least, from one head to the other."""
        return max(0, self.end_ms - self.begin_ms)

    @property
    def uptime_ms(self) -> int:
        """How far the chip's clock went."""
        return self.last.uptime_ms - self.first.uptime_ms


def anchored(log: LogFacts) -> Iterator[Anchored]:
    """Yields the stretches of uptime between two heads of one boot that follow each other, oldest first.

    The witness keeps the heads at which a clock became slow or was no longer, so no fast stretch hides a slow one.
    """
    heads = [(anchor.token, anchor.asked_ms, anchor.read_ms) for anchor in log.anchors]
    if not isinstance(log.head, WeighbridgeError) and log.head.token.kind == "head" and log.asked_ms:
        heads.append((log.head.token, log.asked_ms, log.read_ms))
    for _, boot in groupby(heads, key=lambda head: head[0].boot_seed):
        for (first, _, begin_ms), (last, end_ms, _) in pairwise(boot):
            yield Anchored(first=first, last=last, begin_ms=begin_ms, end_ms=end_ms)


def proven_ms(log: LogFacts, period_ms: int) -> int:
    """Returns how much of the monitoring period was spent in anchored stretches, in milliseconds of the chip's clock.

    Stretches lie in the period by the Verifier's clock: the chip's time of day is the host's word. A simulated clock
    that runs faster sees more time; the period then ends sooner by the Verifier's clock.

    Args:
        log: The log of the chip.
        period_ms: Length of the period by the chip's clock; it ends when the log was read.
    """
    speeds, proven = speeds_by_boot(log), 0.0
    for stretch in anchored(log):
        speed = max(1.0, speeds.get(stretch.last.boot_count, 1.0))
        inside = stretch.end_ms - max(stretch.begin_ms, log.read_ms - period_ms / speed)
        proven += max(0.0, min(inside * speed, float(stretch.uptime_ms)))
    return min(period_ms, int(proven))


def check(log: LogFacts, limits: ChipLimits) -> list[Finding]:
    """Compares how far the chip's clock went with how far the Verifier's did, and its time of day with the Verifier's.

    A clock that runs faster costs the chip's user more snapshots, and simulated chips do so on purpose.

    Returns:
        At most one finding, the gravest.
    """
    if isinstance(log.head, WeighbridgeError) or log.head.token.kind != "head":
        return []
    slack_ms, subject = 1000 * limits.clock_slack_s, f"chip {log.chip.ueid.hex()}"
    gone, here = log.head.token.time_ms - log.held.chip_ms, log.read_ms - log.held.read_ms
    if log.held.read_ms and gone < here * (1 - CLOCK_TOLERANCE) - slack_ms:
        return [
            Finding(
                id="chip.clock.slow",
                message="the chip's clock stood still or was set back since the last contact, so interrupts were "
                "left out",
                expected=f"about {here / 1000:.0f} s",
                found=f"{gone / 1000:.0f} s",
                subject=subject,
            )
        ]
    speeds = speeds_by_boot(log)
    for stretch in anchored(log):
        speed = speeds.get(stretch.last.boot_count, 1.0)
        if stretch.uptime_ms < speed * (stretch.least_ms * (1 - CLOCK_TOLERANCE) - slack_ms):
            return [
                Finding(
                    id="chip.clock.slow",
                    message="the chip's clock ran slower within a boot than it says, so interrupts were left out",
                    expected=f"at least {speed * stretch.least_ms / 1000:.1f} s",
                    found=f"{stretch.uptime_ms / 1000:.1f} s",
                    subject=f"{subject} boot {stretch.last.boot_count}",
                )
            ]
    behind_ms = log.asked_ms - log.head.token.time_ms
    if behind_ms <= BEHIND * slack_ms:
        return []
    return [
        Finding(
            id="chip.clock.behind",
            message="the chip's time is behind the Verifier's: its clock was slow since its boot, or its host's time "
            "was wrong then",
            expected=f"at most {BEHIND * slack_ms / 1000:g} s behind",
            found=f"{behind_ms / 1000:.1f} s",
            subject=subject,
            severity="warning",
        )
    ]


def speeds_by_boot(log: LogFacts) -> dict[int, float]:
    """Returns the speed of the clock by boot, where the boot's entry states it."""
    tokens = [entry.verified.token for entry in log.entries if not isinstance(entry.verified, WeighbridgeError)]
    return {
        token.boot_count: number(token, "clock_milli") / 1000
        for token in tokens
        if token.kind == "boot" and "clock_milli" in shown(token)
    }
