"""`weighbridge example`: small trainings on the chips of a bench, for a first inspection and for tests of a bench."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json
from weighbridge.cli._packages import require
from weighbridge.cli.bench.commands import Directory
from weighbridge.cli.bench.layout import DEFAULT, Bench
from weighbridge.core.errors import UsageError

RECIPES = {"digits": ("sklearn",), "gpt2": ("transformers",)}
"""Which models there are, and the packages that each needs beside torch."""


def example(
    recipe: Annotated[str, typer.Argument(help="digits (a convolutional net) or gpt2.")] = "digits",
    directory: Directory = DEFAULT,
    declared: Annotated[
        list[str] | None, typer.Option("--declared", help="A chip for a declared and honest training; repeatable.")
    ] = None,
    hidden: Annotated[
        list[str] | None, typer.Option("--hidden", help="A chip for a training that is not recorded; repeatable.")
    ] = None,
    altered: Annotated[
        list[str] | None,
        typer.Option("--altered", help="A chip for one on other data than its transcript says; repeatable."),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="Updates of each.", min=1)] = 40,
    seed: Annotated[int, typer.Option("--seed", help="Fixes all randomness.", min=0)] = 7,
    as_json: Json = False,
) -> None:
    """Train small models on chips of a bench, at the same time: declared and honest ones, and ones that cheat.

    Transcripts lie in the bench's runs/, where its Prover offers them, under the chip's name. On a bench that was
    started with --allow-forced, each training asks for two snapshots.
    """
    from rich.console import Console

    from weighbridge.cli.demo.jobs import bars
    from weighbridge.cli.demo.processes import Job, run_all

    if recipe not in RECIPES:
        raise UsageError(f"there is no example {recipe!r:.80}; take {' or '.join(RECIPES)}")
    require("torch", *RECIPES[recipe])
    bench = Bench.opened(directory)
    modes = {"honest": declared or [], "hidden": hidden or [], "altered": altered or []}
    chosen = [(mode, chip) for mode, chips in modes.items() for chip in chips]
    _check(bench, [chip for _, chip in chosen])
    console = Console(stderr=True)
    outs = {chip: _new(bench.runs / chip) for mode, chip in chosen if mode != "hidden"}
    with bars(console) as shown:
        jobs = []
        for mode, chip in chosen:
            out = ["--out", str(outs[chip])] if chip in outs else []
            forced = ["--snapshot-in", str(1 + steps // 3), str(1 + 2 * steps // 3)] if bench.settings.forced else []
            arguments = [
                *(recipe, "--mode", mode, "--socket", str(bench.socket(chip)), "--steps", str(steps)),
                *("--seed", str(seed), *out, *forced),
            ]
            log = bench.directory / "logs" / f"job-{chip}.log"
            jobs.append(Job(chip, arguments, log=log, on_step=shown.add(chip, steps)))
        run_all(jobs, at_once=len(jobs))
    if as_json:
        rows = [{"chip": chip, "mode": mode, "transcript": _text(outs.get(chip))} for mode, chip in chosen]
        print_json({"trainings": rows})
        return
    for mode, chip in chosen:
        words = {"honest": "a declared training", "hidden": "a training that was not recorded"}
        said = words.get(mode, "a training on other data than its transcript says")
        print(f"{chip}: {said}" + (f", in {outs[chip]}" if chip in outs else ""))


def _check(bench: Bench, chips: list[str]) -> None:
    if not chips:
        raise UsageError(f"say on which chip, e.g. --declared {bench.settings.chips[0]}")
    for chip in chips:
        if chip not in bench.settings.chips:
            raise UsageError(f"there is no chip {chip!r:.80} on this bench; it has {', '.join(bench.settings.chips)}")
        if chips.count(chip) > 1:
            raise UsageError(f"chip {chip} can train one model at a time; name it once")


def _new(path: Path) -> Path:
    """Returns a path of which nothing is there: itself, or with a number."""
    number = 1
    found = path
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}-{number}")
    return found


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
