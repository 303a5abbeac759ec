"""What a Verifier lets enter a program without an origin. Apart from the checks, so that asking for them is cheap."""

from __future__ import annotations

from dataclasses import dataclass

from weighbridge.errors import Severity

IDS = ("tape.undeclared", "tape.free_input", "tape.overwrite", "tape.no_gradient", "tape.formula")
"""Findings about what programs are, whether or not replaying them gives what the transcript says."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TapePolicy:
    """What is allowed to enter a step without an origin, and how grave each finding is.

    Attributes:
        free_tensors: Bytes of free tensors in all steps.
        free_values: Changing values that no formula explains, in all steps.
        once_bytes: Bytes of constants of a tape that ran once.
        undeclared: Severity of `tape.undeclared`.
        free_input: Severity of `tape.free_input` for tensors; in step 0 it is `info`: that model came from elsewhere.
        free_value: Severity of `tape.free_input` for values and constants.
        overwrite: Severity of `tape.overwrite`.
        no_gradient: Severity of `tape.no_gradient`.
        log_bits: Bits that rounding logs may bring in by overruling the replayer, however few elements are rounded.
        log_rate: Bits that they may bring in on top of that for each element rounded to 32 bits.
        log_rate_narrow: The same for each element rounded to 16 bits, of which far more are contested.
        log_freedom: Severity of `replay.rounding.freedom`, if they bring in more.
    """

    free_tensors: int = 0
    free_values: int = 0
    once_bytes: int = 1 << 20
    undeclared: Severity = "violation"
    free_input: Severity = "violation"
    free_value: Severity = "warning"
    overwrite: Severity = "violation"
    no_gradient: Severity = "warning"
    log_bits: float = 1024.0
    log_rate: float = 0.02
    log_rate_narrow: float = 0.05
    log_freedom: Severity = "violation"


AS_DESIGNED = TapePolicy()
"""Nothing enters without an origin."""
