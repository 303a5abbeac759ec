"""What a rounding log told a replay that the replay did not know: the length of a code for its surprises.

A replayer has its own wide values, bounds and roundings. Given these, a log can change what follows in one way only: an
admissible entry *overrules* the replayer's rounding of an element. Everything else about a log changes nothing:

- An entry that confirms the replayer's own rounding leaves the result as it is, wherever it stands and however many
  values it could have chosen. That it is there tells a later operation nothing.
- Without an entry the replayer takes its own rounding. If the recorder had rounded otherwise, the checksum differs and
  the replay ends: leaving an entry out can end a replay, and cannot steer one.
- Checksums are compared, never taken over. A result that collides with one is still the replayer's own.
- How long an entry's k is, and how the bytes of a log are made, reaches no value. A k too short to name one value is
  inadmissible (`weighbridge.numerics.rounding.contested`).

So the information in a log, given the replayer, is the set of overruled elements and the value that each got. It is
charged by this code, which has no parameter that a log could set:

1. A step in which nothing was overruled costs nothing. Any other step s costs log2(s + 1) to be named, and
   log2(n + 1) + log2 C(n, m) to say which m of its n rounded outputs were touched.
2. Each of these outputs costs gamma(i) + log2 C(c, i) for the i overruled elements among the c that the *replayer*
   finds contested there, and gamma(j) + log2 C(N - c, j) for the j others of its N elements. gamma(x) is
   the length of Elias' gamma code of x + 1 (`weighbridge.core.integer_codes`).
3. Each overruled element costs log2(v - 1), v being the number of values admissible for the replayer, one of which is
   its own.
4. Where a run declares a matrix unit, an overruling that the unit's model confirms chose nothing and costs nothing.
   But a flip could have been suppressed at elements that were not judged (`weighbridge.execution.unit_adjudication`):
   each is a bit, and as many are charged as are expected there.

For each step, 2^-cost sums to at most 1 + 1/(s + 1) over everything that a log could do there; over steps 1 to S the
product is at most (S + 2)/2. So no more than 2^(B + log2 S) outcomes of a run are charged B bits or less (Kraft's
inequality), and to bring in n bits of a foreign model a log has to be charged n bits but for log2 S. The contested set
is searched for only in outputs that were touched. On the kind of device that recorded the run there are none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from weighbridge.core.integer_codes import gamma_bits
from weighbridge.program.chosen_bits import ChosenBits


@dataclass(frozen=True, slots=True)
class Overruled:
    """What a log overruled in one rounded output.

    Attributes:
        elements: Elements of the output (N).
        contested: Those that the replayer finds contested (c).
        inside: Overruled elements among these (i).
        outside: Overruled elements among the others (j).
        values: Sum over all of them of log2(v - 1).
    """

    elements: int
    contested: int
    inside: int
    outside: int
    values: float

    @property
    def bits(self) -> float:
        """Length of the code for this output (items 2 and 3 of the module)."""
        others = self.elements - self.contested
        return (
            gamma_bits(self.inside + 1) + subset(self.contested, self.inside)
            + gamma_bits(self.outside + 1) + subset(others, self.outside)
            + self.values
        )  # fmt: skip


@dataclass(slots=True)
class StepSurprise:
    """One step's count.

    Attributes:
        wide: Elements rounded to 32 bits.
        narrow: Elements rounded to 16 bits.
        outputs: Rounded outputs (n).
        touched: Those in which something was overruled (m).
        overruled: Elements overruled.
        bits: Length of the code for the touched outputs.
        largest: Bits of the costliest of them, and the operation that made it.
        unjudged: Flips of a declared unit that a Prover could have suppressed (`unit_adjudication`).
    """

    wide: int = 0
    narrow: int = 0
    outputs: int = 0
    touched: int = 0
    overruled: int = 0
    bits: float = 0.0
    largest: tuple[float, str] = (0.0, "")
    unjudged: float = 0.0


@dataclass(slots=True)
class Surprise:
    """The surprises of a replay, by step."""

    steps: dict[int, StepSurprise] = field(default_factory=dict)

    def add(self, step: int, elements: int, narrow: bool, operation: str, overruled: Overruled | None) -> None:
        """Counts one rounded output.

        Args:
            step: Its step.
            elements: Its elements.
            narrow: Whether it was rounded to 16 bits.
            operation: What made it.
            overruled: What the log overruled in it, if anything.
        """
        count = self.steps.get(step)
        if count is None:
            count = self.steps[step] = StepSurprise()
        count.outputs += 1
        if narrow:
            count.narrow += elements
        else:
            count.wide += elements
        if overruled is not None:
            bits = overruled.bits
            count.touched += 1
            count.overruled += overruled.inside + overruled.outside
            count.bits += bits
            count.largest = max(count.largest, (bits, operation))

    def leave(self, step: int, bits: float) -> None:
        """Charges a step what a Prover could have chosen of a declared unit's results that were not judged."""
        if step in self.steps:
            self.steps[step].unjudged = bits

    def bits(self, step: int) -> float:
        """Returns what is charged for a step (items 1 to 4 of the module); 0 if nothing was overruled in it."""
        count = self.steps[step]
        if not count.touched:
            return count.unjudged
        which = math.log2(count.outputs + 1) + subset(count.outputs, count.touched)
        return math.log2(step + 1) + which + count.bits + count.unjudged

    def total(self) -> float:
        """Returns what is charged for all steps."""
        return sum(self.bits(step) for step in self.steps)

    def most(self) -> float:
        """Returns what is charged for the costliest step."""
        return max((self.bits(step) for step in self.steps), default=0.0)

    def enter(self, ledger: ChosenBits) -> None:
        """Enters the charges into a ledger, under `roundings`."""
        for step, count in sorted(self.steps.items()):
            if count.touched or count.unjudged:
                what = f"{count.overruled} roundings overruled, most of it in {count.largest[1] or 'none'}"
                if count.unjudged:
                    what += f"; {count.unjudged:.0f} flips of the declared unit that were not looked for"
                ledger.add("roundings", step, self.bits(step), what)


def subset(of: int, chosen: int) -> float:
    """Returns log2 C(of, chosen), the bits that name a subset of known size; `chosen` is at most `of`."""
    return max(0.0, (math.lgamma(of + 1) - math.lgamma(chosen + 1) - math.lgamma(of - chosen + 1)) / math.log(2))
