"""The ledger of chosen bits: how much a Prover chose that can reach the weights, by channel and step.

A match says that a program made a state. Whatever else went in, the Prover chose: tensors without an origin, the
structure of the programs, starts of generators, roundings. A choice among n possibilities brings in log2(n) bits, and
n bits of a model made elsewhere take n bits of choices to bring in, through whichever channel. So choices are counted,
each in one channel only and never below what it could bring in, and every channel has a budget: an absolute number of
bits, from what honest training needs times a stated factor. The share of the weights' bits is no limit, since one per
cent of a large model is an adapter.

This module keeps the books. Who counts what is said with each channel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

Channel = Literal[
    "tensors",
    "values",
    "literals",
    "structure",
    "schedule",
    "generators",
    "roundings",
    "edits",
    "batch",
    "origin",
    "selection",
    "given",
    "recognition",
]
"""Where choices come in.

- `tensors`: undeclared tensors that entered a step.
- `values`: changing values that no formula gives, and how others differ from their formulas'.
- `literals`: constants of programs, and the text of formulas.
- `structure`: the description length of each program, given those before it; the initialisation is one.
- `schedule`: which of the known programs ran at each step, on how many records, and how far the schedules were that
  formulas follow.
- `generators`: generators that did not go on, between steps or within one, and whose start follows from nothing.
- `roundings`: outcomes of rounding logs, and which elements they are about, as far as the replayer is surprised.
- `edits`: how many changes of state between steps there were, and where.
- `batch`: what a step was fed whose origin no commitment to data covers, and in which shapes; that of the
  initialisation above all.
- `origin`: state that was there before anything was recorded: parents, optimizer state, buffers.
- `selection`: the seed, the end of the run, the order of the data, where nothing fixes them.
- `given`: results of other ranks that a replay took as given.
- `recognition`: how recorded gradients and updates could have differed from the Verifier's own and still be accepted,
  in the steps that it recognised.
"""

CHANNELS: tuple[Channel, ...] = get_args(Channel)


@dataclass(slots=True)
class ChosenBits:
    """The ledger of one replay or of one analysis.

    Attributes:
        bits: By channel and step, the bits chosen; what belongs to no step is under -1.
        what: By channel, what the largest entry was, in words.
    """

    bits: dict[Channel, dict[int, float]] = field(default_factory=dict)
    what: dict[Channel, tuple[float, str]] = field(default_factory=dict)

    def add(self, channel: Channel, step: int, bits: float, what: str) -> None:
        """Counts a choice.

        Args:
            channel: Where it came in.
            step: The step that it reached first; -1 for the whole run.
            bits: log2 of the number of possibilities, at least 0.
            what: What was chosen, for people: an operation, a tensor, a generator.
        """
        if not (math.isfinite(bits) and bits >= 0):
            raise ValueError(f"a choice of {bits} bits")
        if not bits:
            return
        column = self.bits.setdefault(channel, {})
        column[step] = column.get(step, 0.0) + bits
        if bits > self.what.get(channel, (0.0, ""))[0]:
            self.what[channel] = bits, what

    def total(self, channel: Channel | None = None) -> float:
        """Returns the bits of one channel, or of all."""
        return sum(sum(self.bits.get(each, {}).values()) for each in (CHANNELS if channel is None else (channel,)))

    def to_json(self, budgets: Mapping[str, float] | None = None, weights: float = 0.0) -> dict[str, Any]:
        """Returns what there is to show of each channel that has any bits.

        Args:
            budgets: By channel, the most bits that may be chosen; a channel without one is only shown.
            weights: Bits of the weights that the run began with; 0 if that is not known.

        Returns:
            By channel: `bits` in all, the `step` that brought most and its `step_bits`, `what` brought most at a time,
            `budget` (None without one) and `share` of the weights' bits (None if these are not known).
        """
        found: dict[str, Any] = {}
        for channel in CHANNELS:
            if column := self.bits.get(channel):
                step = max(column, key=lambda each: (column[each], -each))
                bits = self.total(channel)
                found[channel] = {
                    "bits": bits,
                    "step": step,
                    "step_bits": column[step],
                    "what": self.what[channel][1],
                    "budget": (budgets or {}).get(channel),
                    "share": bits / weights if weights > 0 else None,
                }
        return found


def parse(raw: Any) -> dict[str, dict[str, Any]]:
    """Reads what `to_json` returned, from a worker whose answers are hostile.

    Raises:
        ValueError, TypeError, KeyError: It is not that.
    """
    if not isinstance(raw, Mapping) or not set(raw) <= set(CHANNELS):
        raise ValueError("chosen bits")
    found: dict[str, dict[str, Any]] = {}
    for channel in CHANNELS:
        if channel in raw:
            entry = raw[channel]
            bits, step_bits = _natural(entry["bits"]), _natural(entry["step_bits"])
            if step_bits > bits * (1 + 1e-9):
                raise ValueError("chosen bits")
            found[channel] = {
                "bits": bits,
                "step": int(entry["step"]),
                "step_bits": step_bits,
                "what": str(entry["what"])[:200],
                "budget": None if entry["budget"] is None else _natural(entry["budget"]),
                "share": None if entry["share"] is None else _natural(entry["share"]),
            }
    return found


def _natural(raw: Any) -> float:
    """Reads a number of bits, or a share: finite, and at least 0."""
    if type(raw) not in (int, float) or not (math.isfinite(raw) and raw >= 0):
        raise ValueError("chosen bits")
    return float(raw)
