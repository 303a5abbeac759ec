"""What the ledger of chosen bits amounts to: channels over their budgets.

Channels that have findings of their own are not accused here a second time: undeclared inputs (`tape.free_input`),
rounding logs (`replay.rounding.freedom`), state from elsewhere (`transcript.origin.undeclared`), order of the data
(`data.order.chosen`), data that nothing commits to (`data.not_precommitted`).
"""

from __future__ import annotations

from weighbridge.core.errors import Finding
from weighbridge.program.chosen_bits import CHANNELS, Channel, ChosenBits
from weighbridge.program.tape_policy import TapePolicy

_BROUGHT: dict[Channel, str] = {
    "literals": "constants of programs and formulas",
    "structure": "the structure of programs",
    "schedule": "which program ran when",
    "generators": "starts of generators",
    "edits": "changes of state between steps",
    "batch": "what the initialisation was fed",
}


def findings(ledger: ChosenBits, policy: TapePolicy, subject: str) -> list[Finding]:
    """Returns `transcript.chosen_bits` for every channel that brought in more than its budget.

    Args:
        ledger: What was counted, over the whole transcript.
        policy: The budgets, and how grave it is to go beyond them.
        subject: The transcript.
    """
    found = []
    for channel in CHANNELS:
        column = ledger.bits.get(channel, {})
        budget = policy.budgets.get(channel)
        if channel == "batch":  # batches of steps are judged by the commitment to data; an initialisation has none
            column, budget = {step: bits for step, bits in column.items() if step == 0}, 0.0
        bits = sum(column.values())
        if budget is None or bits <= budget or channel in ("tensors", "values"):
            continue
        step, what = max(column, key=lambda each: (column[each], -each)), ledger.what[channel][1]
        found.append(
            Finding(
                id="transcript.chosen_bits",
                message=f"{_BROUGHT.get(channel, channel)} chose {bits:,.0f} bits, {column[step]:,.0f} of them in step "
                f"{step}, most by {what}; they may be weights made elsewhere: read that program "
                "(weighbridge tape show)",
                expected=f"at most {budget:,.0f} bits of {channel}",
                found=f"{bits:,.0f} bits",
                subject=subject,
                severity=policy.chosen,
                evidence={
                    "channel": channel, "bits": bits, "budget": budget, "step": step, "step_bits": column[step],
                    "what": what,
                },
            )
        )  # fmt: skip
    return found
