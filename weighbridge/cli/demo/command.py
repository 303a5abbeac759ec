"""`weighbridge demo`: a whole inspection with real training runs, on one machine, in a few minutes.

Chips, Prover and Verifier are processes of their own that speak gRPC over mutual TLS. Five trainings run on the chips:
three declared and honest, one of them sharded over four ranks with a chip each, one undeclared, and one on other data
than its transcript says. The inspection has to find exactly the last two, and the replay runs with another instruction
set and thread count than the training. With `--sealed` one of the chips is drawn then and inspected by a sealed worker,
of which the Verifier learns one record (`weighbridge.cli.demo.sealed`); it has to say the same. Beside that two
services train for clients and audit each other (`weighbridge.cli.demo.services`); one of them trains fewer steps than
it claims, and has to lose the dispute about it.
"""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weighbridge.cli._exits import Exit, print_json
from weighbridge.cli._inputs import Json
from weighbridge.cli._packages import require
from weighbridge.cli.demo.cases import (
    CASES,
    CHIP_FLOPS_PER_DAY,
    CLOCK_SPEED,
    IDLE,
    PERIOD_DAYS,
    RATE_PER_DAY,
    TERMS,
    Case,
    judge,
)
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from weighbridge.cli.demo.jobs import Bars
    from weighbridge.cli.demo.processes import Job
    from weighbridge.cli.demo.station import RunningChip, Station

MARKER = ".weighbridge-demo"
"""Marks a directory that a demo made and a later one may clear."""

SERVICES = ".services"
"""Directory of the services that train for clients: the Prover offers no transcript from a hidden one."""
SEALED = ".sealed"
"""Directory of the parties of the sealed inspection."""


def command(
    out: Annotated[Path, typer.Option("--out", help="Directory for everything; a former demo's is replaced.")] = Path(
        "runs/demo"
    ),
    device: Annotated[str, typer.Option("--device", help="Device to train on: cpu or cuda.")] = "cpu",
    with_sealed: Annotated[
        bool, typer.Option("--sealed", help="Inspect a drawn chip once more in a sealed worker; takes minutes longer.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Run a whole inspection; exit 0 only if it found exactly what it should."""
    from rich.console import Console

    from verifier.report.signing import open_report
    from weighbridge.cli.demo.printing import show, show_sealed, show_services
    from weighbridge.cli.demo.sealed import sealed
    from weighbridge.cli.demo.services import market
    from weighbridge.cli.demo.station import station
    from weighbridge.cli.inspect.commands import follow, write_report
    from weighbridge.cli.replay import require_device
    from weighbridge.execution.sealed.lacking import lacking

    require("torch", "transformers", "sklearn")
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device takes cpu or cuda, not {device!r}")
    require_device(device)
    out = out.resolve()
    prepare(out)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that all processes end with this one
    console = Console(stderr=as_json)
    if not console.is_terminal:
        console.width = 120
    trained_with, replay_env, note = instruction_sets()
    console.print(f"Training with {trained_with}, {note}.")
    names = [*(site for case in CASES for site in case.sites), *IDLE]
    with (
        market(out / SERVICES) as services,
        sealed(out / SEALED) as parties,
        station(out / "station", runs=out, chips=names, rate_per_day=RATE_PER_DAY, clock_speed=CLOCK_SPEED) as running,
    ):
        console.print(f"{len(names)} chips, a Prover and a Verifier are running.")
        train(running, CASES, out, device, console)
        console.print("Two services train for two clients, and audit each other.")
        services.audit()
        inspection = running.operator.start(
            samples=len(names),
            seed=b"",  # a verifiable draw
            flops_threshold=CHIP_FLOPS_PER_DAY * PERIOD_DAYS,
            chip_flops_per_day=CHIP_FLOPS_PER_DAY,
            period_days=PERIOD_DAYS,
            snapshot_rate_per_day=RATE_PER_DAY,
            replay_env=replay_env,
        )
        began = time.monotonic()
        follow(running.operator, inspection, console)
        took = time.monotonic() - began
        signed = running.operator.signed_report(inspection)
        sites = {chip.ueid.hex(): chip.name for chip in running.chips}
        report = open_report(signed).report
        running.stop_verifier()
        missing = lacking() if with_sealed else ()
        if missing:
            console.print(f"NO SEALED INSPECTION: this machine does not permit {', '.join(missing)}.")
        elif with_sealed:
            console.print("A chip is inspected once more, by a sealed worker, which lets out one record.")
        with ThreadPoolExecutor(1) as beside:
            session = None
            if with_sealed and not missing:
                session = beside.submit(parties.inspect, running, out, report, TERMS, took)
            served = services.settle()
            left = None if session is None else session.result()
    page = write_report(report, out, signed)
    outcomes = judge(report, sites, CASES)
    if as_json:
        print_json(
            {
                "report": str(page),
                "probability": report["probability"],
                "outcomes": [asdict(o) for o in outcomes],
                "sealed": None if left is None else asdict(left),
                "services": [asdict(each) for each in served],
            }
        )
    else:
        show(report, outcomes, page, console)
        if left is not None:
            show_sealed(left, console)
        show_services(served, console)
    as_said = [each.as_said for each in outcomes] + [each.as_said for each in served]
    as_said += [] if left is None else [left.as_said]
    return Exit.NOTHING_FOUND if all(as_said) else Exit.FINDINGS


def prepare(out: Path) -> None:
    """Makes the directory of a demo, clearing what a former one left.

    Raises:
        UsageError: The directory holds something else.
    """
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is not a directory; choose another with --out")
    if out.is_dir() and any(out.iterdir()):
        if not (out / MARKER).is_file():
            raise UsageError(f"{out} is not empty and no demo made it; choose another directory with --out")
        for entry in out.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name != MARKER:
                entry.unlink()
    out.mkdir(parents=True, exist_ok=True)
    (out / MARKER).write_text("A later `weighbridge demo` may delete everything in this directory.\n", encoding="utf-8")


def instruction_sets() -> tuple[str, dict[str, str], str]:
    """Chooses how the replay shall differ from the training. Compiles kernels first if that was not done here yet.

    Returns:
        The instruction set of the training, the environment of the replay, and words for both.
    """
    import os
    import subprocess
    import sys

    from weighbridge.cli.bench.processes import environment

    program = (
        "import torch; from weighbridge.numerics.warm import warm; "
        "warm(); print(torch.backends.cpu.get_cpu_capability())"
    )
    probe = [sys.executable, "-c", program]  # its standard error is ours: what is compiled is said there
    ran = subprocess.run(probe, env=environment({}), stdout=subprocess.PIPE, text=True, check=True)
    native = ran.stdout.strip()
    threads = str(min(2, os.cpu_count() or 1))
    variables = {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": threads}
    if native in ("DEFAULT", "NO AVX"):
        return (
            native,
            variables,
            f"1 thread; this processor has no other instruction set, so only threads differ ({threads})",
        )
    return native, variables, f"1 thread; replaying with the instruction set DEFAULT, {threads} threads"


def train(running: Station, cases: Sequence[Case], out: Path, device: str, console: Console) -> None:
    """Runs all training jobs, two at a time and those on several ranks alone, each rank on its chip.

    Raises:
        ProcessError: A job failed.
    """
    from weighbridge.cli.demo.jobs import bars
    from weighbridge.cli.demo.processes import run_all

    by_name = {chip.name: chip for chip in running.chips}
    with bars(console) as shown:
        run_all([job(case, by_name[case.name], out, device, shown) for case in cases if case.ranks == 1], at_once=2)
        for case in (case for case in cases if case.ranks > 1):
            ranks = [job(case, by_name[site], out, "cpu", shown, rank) for rank, site in enumerate(case.sites)]
            run_all(ranks, at_once=case.ranks)


def job(case: Case, chip: RunningChip, out: Path, device: str, shown: Bars, rank: int = 0) -> Job:
    """Returns the job of a case, or one rank of it, with a progress bar."""
    from weighbridge.cli.demo.processes import Job

    declared = [] if case.mode == "hidden" else ["--out", str(out / case.name)]
    arguments = [
        *(case.recipe, "--mode", case.mode, "--socket", str(chip.socket), "--steps", str(case.steps)),
        *("--checkpoint-every", str(case.checkpoint_every)),
        *("--device", device if case.mode != "altered" else "cpu", *declared),
        # Poisson interrupts may leave a short job alone; these make sure that every job has a snapshot.
        *("--snapshot-in", *(str(step) for step in _snapshots_in(case))),
    ]
    if case.ranks > 1:
        meeting = out / "station" / f"{case.name}-meeting"
        arguments += ["--rank", str(rank), "--ranks", str(case.ranks), "--meeting", str(meeting)]
    log = out / "station" / "logs" / f"job-{chip.name}.log"
    return Job(chip.name, arguments, log=log, on_step=shown.add(chip.name, case.steps))


def _snapshots_in(case: Case) -> list[int]:
    # A snapshot of one rank costs a replay of all.
    return [case.steps // 2] if case.ranks > 1 else [case.steps // 3, case.steps * 2 // 3]
