"""`weighbridge record --out RUN script.py [args]`: run a training script as it is, and record it."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from weighbridge.cli._inputs import signing_key
from weighbridge.cli.bench.layout import DEFAULT, Bench
from weighbridge.core.errors import UsageError
from weighbridge.transcript.log_kinds import KINDS

MODELLED = ("unit-a100", "unit-h100")
"""Policies of units that truncate, which no machine has to show: their models stand in for them."""
POLICIES = (
    "mixed", "strict", "calibrated", "probabilistic", "blocked-64", "blocked-256", "unit-vdpbf16ps", *MODELLED
)  # fmt: skip
POLICY = (
    "Error bounds: mixed, strict (no 16-bit), calibrated, probabilistic, blocked-64, blocked-256, unit-vdpbf16ps; "
    "unit-a100, unit-h100 with --unit-model."
)
UNIT_MODEL = "With unit-a100 or unit-h100: the unit's model computes 16-bit products in the device's place; slow."
EVALUATIONS = ("native", "recorded")
SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": False}


def command(
    script: Annotated[Path, typer.Argument(help="The script; its arguments follow.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="The script's own arguments.")] = None,
    out: Annotated[Path | None, typer.Option(help="New or empty directory for the transcript.")] = None,
    policy: Annotated[str, typer.Option(help=POLICY)] = "mixed",
    seed: Annotated[int, typer.Option(help="Fixes all randomness of what is recorded.", min=0)] = 0,
    logs: Annotated[
        str, typer.Option(help="Rounding logs: full; on-demand: much faster, `regenerate` makes them later; sketch.")
    ] = "full",
    evaluation: Annotated[str, typer.Option(help="Evaluations: native, or recorded like training.")] = "native",
    chip: Annotated[
        str,
        typer.Option(
            metavar="SOCKET",
            help="Train on the chip with this socket, or name in a bench; {rank} is the rank's number.",
        ),
    ] = "",
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Run the script again after a crash: it goes on from what it saved."),
    ] = False,
    beacon: Annotated[
        Path | None,
        typer.Option(
            "--beacon", metavar="DIR", help="Repeat segments that this beacon names (logs on demand, a chip)."
        ),
    ] = None,
    share: Annotated[float, typer.Option("--repeat-share", help="Probability that a segment is repeated.")] = 0.02,
    delay: Annotated[
        int, typer.Option("--repeat-delay", metavar="SECONDS", help="When its logs are committed to, at the latest.")
    ] = 3600,
    confidential: Annotated[
        bool,
        typer.Option("--confidential", help="The draft says that only sealed workers judge its disputes."),
    ] = False,
    key: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Private key that signs, of `weighbridge rules key FILE`; by default a new one."
        ),
    ] = None,
    unit_model: Annotated[bool, typer.Option("--unit-model", help=UNIT_MODEL)] = False,
) -> int:
    """Run a training script as it is, and record it. The exit code and the output are the script's own."""
    if out is None:
        raise UsageError("give --out, a new directory for the transcript, before the script")
    if policy not in POLICIES:
        raise UsageError(f"--policy takes {', '.join(POLICIES[:-1])} or {POLICIES[-1]}, not {policy!r}")
    if evaluation not in EVALUATIONS:
        raise UsageError(f"--evaluation takes {' or '.join(EVALUATIONS)}, not {evaluation!r}")
    if logs not in KINDS:
        raise UsageError(f"--logs takes {' or '.join(KINDS)}, not {logs!r}")
    if unit_model and policy not in MODELLED:
        raise UsageError(f"--unit-model goes with --policy {' or '.join(MODELLED)}, not {policy!r}")
    if key is not None and beacon is not None:
        raise UsageError("what repeats segments signs with the key in RUN.key; leave out --key, or --beacon")
    signing = None if key is None else signing_key(key)
    from prover.following.script import record_script

    repeats = None
    if beacon is not None:
        from prover import Repeats

        repeats = Repeats(beacon=beacon, share=share, delay_s=delay)
    options: dict[str, Any] = {
        "repeats": repeats,
        "seed": seed,
        "policy": policy,
        "evaluation": evaluation,
        "resume": resume,
        "logs": logs,
        "confidential": confidential,
        "key": signing,
    }
    with _attached(chip) if chip else nullcontext() as shim, _modelled(policy) if unit_model else nullcontext():
        code, recorded = record_script(script, arguments or (), out, chip=shim, **options)
    print(f"weighbridge: the transcript is in {out if recorded is None else recorded.path}", file=sys.stderr)
    if recorded is not None and (parent := recorded.parent) is not None:
        print(
            f"weighbridge: it goes on from the state before step {parent.step} of the attempt {parent.transcript[:16]}",
            file=sys.stderr,
        )
    return code


def _modelled(policy: str) -> Any:
    """Puts the model of a policy's unit into the device's place."""
    from weighbridge.numerics.conformance.bound_policy import UNITS
    from weighbridge.numerics.units import injection

    return injection.injected(UNITS[policy])


def _attached(chip: str) -> Any:
    """Attaches this process to a chip; what runs until it is left is seen by it."""
    from firmware_sim.shim import Shim

    return Shim.connect(socket_of(chip.replace("{rank}", os.environ.get("RANK", "0"))))


def socket_of(chip: str) -> str:
    """Returns the socket of a chip, which may be named by that, or by its name in the bench of this directory.

    Raises:
        UsageError: The bench has no chip of that name, or is damaged.
    """
    if os.sep in chip or Path(chip).exists() or not Bench.exists(DEFAULT):
        return chip
    bench = Bench.opened(DEFAULT)
    if chip not in bench.settings.chips:
        raise UsageError(f"the bench in {DEFAULT} has the chips {', '.join(bench.settings.chips)}, and no {chip!r}")
    return str(bench.socket(chip))
