"""What about a rounding log is a finding: that it brought too much in, or that its entries are one-sided.

The *freedom* is what a log chose where it overruled the replayer (`rounding_surprise`). Its budget, for each step and
for the whole replay, is a constant and a rate for each rounded element. Honest devices differ in proportion to what
they round, so no constant alone serves models of every size; but the rates are a few times the honest maximum between
instruction sets (docs/benchmarks.md, "What rounding logs bring in"), and so buy next to nothing: elements that no
weight depends on feed the budget too, 32 bits for each 32,000 of them or more, all on the tape. Steps that this kind of
device recorded, as the transcript declares, have the constants alone: on it an honest log overrules nothing. What a
declared unit's model was not asked about stands in the ledger, and is no finding: samples and the number of flips tell
of it.

*One-sided* entries are normal between devices: an element near the edge of its bound is contested for one and not for
the other. Entries that are left out change no result here, and make a replay elsewhere differ without an explanation;
so their share, in outputs that a Prover cannot foresee, is judged against what was measured between instruction sets.
"""

from __future__ import annotations

from collections.abc import Callable

from weighbridge.core.errors import Finding
from weighbridge.execution.choice_statistics import WIDE, Tally
from weighbridge.execution.unit_adjudication import Adjudication
from weighbridge.program.tape_policy import TapePolicy

_ENOUGH = 64
"""Contested elements in the outputs drawn, below which a share of them says nothing."""


def findings(tally: Tally, policy: TapePolicy, subject: str, recorded_here: Callable[[int], bool]) -> list[Finding]:
    """Returns `replay.rounding.freedom` and `replay.rounding.one_sided` if the policy has them.

    What a declared unit's model was not asked about has to be left in the tally before.

    Args:
        tally: Tally of the replay.
        policy: How many bits may come in, how one-sided entries may be, and how grave it is if there is more.
        subject: The transcript.
        recorded_here: Whether a step was recorded, as the transcript declares, by the kind of device that replayed it.
    """
    tally.settle()
    return [*_freedom(tally, policy, subject, recorded_here), *_one_sided(tally, policy, subject)]


def _freedom(tally: Tally, policy: TapePolicy, subject: str, recorded_here: Callable[[int], bool]) -> list[Finding]:
    surprise = tally.surprise
    rates = {step: each.unjudged + (0.0 if recorded_here(step) else policy.log_limit(each.wide, each.narrow, 0.0))
             for step, each in surprise.steps.items()}  # fmt: skip
    over = {step: surprise.bits(step) - policy.log_step_bits - rate for step, rate in rates.items()}
    worst = max(over, key=lambda step: over[step], default=None)
    limit = policy.log_bits + sum(rates.values())
    if tally.charged_bits > limit:
        where, found = "", tally.charged_bits
    elif worst is not None and over[worst] > 0:
        where, found = f" of step {worst}", surprise.bits(worst)
        limit = found - over[worst]
    else:
        return []
    step = max(surprise.steps, key=surprise.bits)
    return [
        Finding(
            id="replay.rounding.freedom",
            message=f"the rounding log{where} overruled {tally.overruled} roundings in all, most of them in "
            f"{surprise.steps[step].largest[1]} of step {step}, and so chose {found:.0f} bits, which elements it "
            f"overruled included; {tally.wide_bits_in:.0f} bits are of values that were among more than {WIDE}. It may "
            "be an input: look at these operations, and replay on the kind of device that recorded the run, where "
            "nothing is overruled",
            expected=f"at most {limit:.0f} bits",
            found=f"{found:.0f} bits",
            subject=subject,
            severity=policy.log_freedom,
            evidence=tally.to_json(),
        )
    ]


def _one_sided(tally: Tally, policy: TapePolicy, subject: str) -> list[Finding]:
    one, of = tally.only_here + tally.only_logged, tally.only_here + tally.only_logged + tally.both
    if of < _ENOUGH or one <= policy.log_one_sided * of:
        return []
    return [
        Finding(
            id="replay.rounding.one_sided",
            message=f"of {of} elements that this device or the log finds contested in some outputs, only the log has "
            f"{tally.only_logged}, and only this device {tally.only_here}: entries were left out or made up, or the "
            "run was recorded on a device very unlike this one; replay it on the kind that recorded it",
            expected=f"at most {policy.log_one_sided:.0%} on one side only",
            found=f"{one / of:.0%}",
            subject=subject,
            severity="warning",
            evidence=tally.to_json(),
        )
    ]


def of_unit(made: Adjudication, policy: TapePolicy, subject: str) -> list[Finding]:
    """Returns `replay.unit.false` and `replay.unit.flips` if there is reason.

    Args:
        made: What came of judging the log by the model of the declared unit.
        policy: How grave they are.
        subject: The transcript.
    """
    found = []
    if made.false is not None:
        step, operation, number = made.false
        judged, likely = made.overruled + made.judged, made.likely()
        found.append(
            Finding(
                id="replay.unit.false",
                message=f"{made.wrong} of {judged} results of products that were judged are not those of the unit, in "
                f"the order, that the draft declares: {made.overruled - made.confirmed} that the log moved and "
                f"{made.suppressed} that it should have moved; the first is of step {step}, operation {number} "
                f"({operation})" + (f". {likely}" if likely else ""),
                expected="the declared unit's results",
                found=f"{made.wrong} others",
                subject=subject,
                severity=policy.unit_false,
                evidence=made.to_json(),
            )
        )
    if made.flips_differ():
        found.append(
            Finding(
                id="replay.unit.flips",
                message=f"the log overruled {made.overruled} results of products, and the errors of the declared unit "
                f"let {made.expected:.0f} be expected; {sum(made.rest.values()):.0f} of these are among elements that "
                "were not judged: results were suppressed or made up, or the unit is another. Replay with more terms "
                "for that (`unit_terms`)",
                expected=f"about {made.expected:.0f} roundings overruled",
                found=f"{made.overruled}",
                subject=subject,
                severity=policy.unit_flips,
                evidence=made.to_json(),
            )
        )
    return found
