"""What a Verifier lets enter a program without an origin. Apart from the checks, so that asking for them is cheap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weighbridge.core.errors import Severity

INSENSITIVE = "tape.insensitive"
IDS = (
    "tape.undeclared",
    "tape.free_input",
    "tape.overwrite",
    "tape.no_gradient",
    "tape.weights.undeclared",
    INSENSITIVE,
    "tape.formula",
    "transcript.chosen_bits",
)
"""Findings about what programs are, whether or not replaying them gives what the transcript says."""

FREE_TENSORS = 128
"""Bytes of undeclared tensors in a run that accuse no party: class weights and the like. No model fits into them."""

BUDGETS: Mapping[str, float] = {
    "tensors": 8.0 * FREE_TENSORS,
    "values": 1_024.0,
    "literals": 19_000.0,
    "structure": 276_000.0,
    "schedule": 1_024.0,
    "generators": 1_024.0,
    "edits": 1_024.0,
}
"""Bits in a whole run: four times the most that any honest training of benchmarks/results/chosen_bits.json chose,
rounded up to thousands, and 1,024 where that is less. The trainings of that file declare no formulas, so all values
that change count as chosen there; values that follow from a declared formula cost nothing, and their budget is 1,024,
as is that of undeclared tensors, which ordinary programs hardly need.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class TapePolicy:
    """What is allowed to enter a step without an origin, and how grave each finding is.

    Attributes:
        free_tensors: Bytes of undeclared tensors in all steps that are `info`.
        free_values: Changing values that no formula explains, in all steps.
        once_bytes: Bytes of constants of a tape that ran once.
        undeclared: Severity of `tape.undeclared`.
        free_input: Severity of `tape.free_input` for more tensors than that; in step 0 it is `info`: that model came
            from elsewhere.
        free_value: Severity of `tape.free_input` for values and constants, those beside their formulas included.
        overwrite: Severity of `tape.overwrite`.
        no_gradient: Severity of `tape.no_gradient`.
        perhaps_overwritten: Severity of `tape.overwrite` where an index or a mask decides how much was replaced.
        undeclared_weights: Bytes of state trained by gradients that need not be declared as weights: running estimates.
        no_weights: Severity of `tape.weights.undeclared` if no weights are declared at all.
        fewer_weights: The same if only some of them are.
        insensitive: Severity of `tape.insensitive`, where a step's weights do not respond as they do in a training.
        least_weights: A step that changes fewer numbers of weights is not judged by them, nor is a storage of fewer.
        least_carry: Least distance by which new weights move when old ones are disturbed, relative to the disturbance.
        least_joint: Least share of what the batch does to the weights that disturbed weights change.
        insensitive_share: Share of the weights that may be in storages of which either does not hold.
        log_bits: Bits that rounding logs may bring in by overruling the replayer, however few elements are rounded:
            what they chose, which elements they overruled included (`weighbridge.execution.rounding_surprise`).
        log_step_bits: The same in any one step.
        log_rate: Bits that they may bring in on top of either for each element rounded to 32 bits.
        log_rate_narrow: The same for each element rounded to 16 bits, of which far more are contested.
        log_freedom: Severity of `replay.rounding.freedom`, if they bring in more.
        log_one_sided: Share of the contested elements that only the log or only the replayer may find contested.
        unit_terms: Where a run declares a truncating unit: products of two numbers that the unit's model may take, in
            each step, to judge results that the log did not overrule and could have.
        unit_false: Severity of `replay.unit.false`, where results are not the declared unit's.
        unit_flips: Severity of `replay.unit.flips`, where the log overrules too few or too many.
        budgets: Most bits that may be chosen in a channel of the ledger of chosen bits, in the whole run. Channels
            without a budget are shown, and what is wrong with them has a finding of its own.
        chosen: Severity of `transcript.chosen_bits`, if there are more.
    """

    free_tensors: int = FREE_TENSORS
    free_values: int = 0
    once_bytes: int = 1 << 20
    undeclared: Severity = "violation"
    free_input: Severity = "violation"
    free_value: Severity = "warning"
    overwrite: Severity = "violation"
    no_gradient: Severity = "warning"
    perhaps_overwritten: Severity = "warning"
    undeclared_weights: int = 4096
    no_weights: Severity = "warning"
    fewer_weights: Severity = "info"
    insensitive: Severity = "warning"
    least_weights: int = 16
    least_carry: float = 0.25
    least_joint: float = 0.1
    insensitive_share: float = 0.1
    log_bits: float = 1024.0
    log_step_bits: float = 512.0
    log_rate: float = 6e-5
    log_rate_narrow: float = 1e-3
    log_freedom: Severity = "violation"
    log_one_sided: float = 0.25
    unit_terms: int = 1 << 26
    unit_false: Severity = "violation"
    unit_flips: Severity = "warning"
    budgets: Mapping[str, float] = field(default_factory=lambda: dict(BUDGETS))
    chosen: Severity = "violation"

    def log_limit(self, wide: int, narrow: int, constant: float) -> float:
        """Returns how many bits rounding logs may bring in.

        Args:
            wide: Elements rounded to 32 bits.
            narrow: Elements rounded to 16 bits.
            constant: `log_bits` or `log_step_bits`.
        """
        return constant + self.log_rate * wide + self.log_rate_narrow * narrow


AS_DESIGNED = TapePolicy()
"""Nothing enters without an origin but what is too little to be weights."""
