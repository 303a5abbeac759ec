"""`weighbridge replay RUN`: execute a transcript's tapes alone and say whether they made what the transcript says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli import _second_executor as second_executor
from weighbridge.cli._bars import steps_bar
from weighbridge.cli._exits import Exit, findings_line, one_line, print_json
from weighbridge.cli._inputs import Json, Run, require_transcript
from weighbridge.cli._packages import require
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from weighbridge.execution.replay_answer import ReplayResult

_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,2})?")


def parse_steps(text: str, count: int) -> tuple[int, int]:
    """Parses `A:B` into a half-open range of steps.

    Args:
        text: `A:B`; either side may be left out (the first step, past the last step).
        count: Number of steps in the transcript.

    Raises:
        UsageError: `text` is not a range within the transcript.
    """
    first, colon, last = text.partition(":")
    try:
        if not colon or not all(part.isascii() and (part.isdecimal() or not part) for part in (first, last)):
            raise ValueError
        start, stop = int(first or 0), int(last or count)
    except ValueError:
        raise UsageError(f"--steps takes A:B with A < B, e.g. 1:10, not {text!r}") from None
    if not 0 <= start < stop <= count:
        raise UsageError(f"--steps {text}: the transcript has the steps 0:{count}; give a range within it")
    return start, stop


def require_device(device: str) -> None:
    """Checks that a device exists here.

    Raises:
        UsageError: It is no device's name, or this machine has none of it.
    """
    if not _DEVICE.fullmatch(device):
        raise UsageError(f"--device takes cpu, cuda or cuda:N, not {device!r}")
    if device == "cpu":
        return
    import torch

    number = int(device.partition(":")[2] or 0)
    if not torch.cuda.is_available() or number >= torch.cuda.device_count():
        raise UsageError(f"this machine, or this build of torch, has no device {device}; use --device cpu")


def command(
    run: Run,
    steps: Annotated[str | None, typer.Option(help="Only the steps A to B-1, as A:B.")] = None,
    device: Annotated[str, typer.Option(help="Device to replay on: cpu, cuda, cuda:1.")] = "cpu",
    op_rules: Annotated[
        list[str] | None,
        typer.Option("--op-rules", help="Module or .py file of yours that registers rules for custom operators."),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Of a job: only this rank, with --results.", min=0)] = None,
    results: Annotated[
        Path | None, typer.Option(help="Of a job: the results of the rank's collectives, to be taken as given.")
    ] = None,
    recognise: Annotated[
        int, typer.Option(help="Recognise the training of so many steps, drawn at random.", min=0)
    ] = 0,
    claims: Annotated[
        Path | None,
        typer.Option(help="With --recognise: another run of the same program, whose claims are tried."),
    ] = None,
    sensitivity: Annotated[
        int, typer.Option(help="Steps, drawn at random, to test for whether new weights follow old ones and batches.")
    ] = 0,
    executor: Annotated[
        str, typer.Option(help="Who computes: torch, or jax, a second implementation of what operations mean.")
    ] = "torch",
    as_json: Json = False,
) -> int:
    """Replay a transcript, or all of a job: exit 0 on a match, 1 otherwise, naming the first operation that differs."""
    require_device(device)
    if executor != "torch":
        others = (device != "cpu", op_rules, rank is not None, results, recognise, claims, sensitivity)
        return second_executor.command(run, lambda: _steps(run, steps), executor, any(others), as_json)
    require("torch")
    if claims is not None and not recognise:
        raise UsageError("--claims is for recognition; add --recognise N")
    if (run / "job.cbor").is_file():
        if claims is not None:
            raise UsageError(f"{run} is a job; --claims is for runs on one chip")
        if sensitivity:
            raise UsageError(f"{run} is a job; --sensitivity is for runs on one chip")
        return _replay_job(run, steps, device, op_rules or (), rank, results, recognise, as_json)
    require_transcript(run)
    if rank is not None or results is not None:
        raise UsageError(f"{run} is no job; --rank and --results are for jobs on several ranks")
    from weighbridge.execution.replay import replay

    wanted = _steps(run, steps)
    with steps_bar("replay", quiet=as_json) as advance:
        result = replay(
            run,
            steps=wanted,
            device=device,
            op_rules=op_rules or (),
            progress=advance,
            recognise=recognise,
            claims=claims,
            sensitivity=sensitivity,
        )
    if as_json:
        print_json(result.to_json())
    else:
        _print(result)
    return Exit.NOTHING_FOUND if result.verdict == "match" and not _violations(result) else Exit.FINDINGS


def _replay_job(
    run: Path, steps: str | None, device: str, op_rules: Sequence[str], rank: int | None, results: Path | None,
    recognise: int, as_json: bool,
) -> int:  # fmt: skip
    """Replays all ranks of a job, or one of them with its collectives taken as given."""
    from weighbridge.execution.job_replay import replay_cell, replay_job
    from weighbridge.transcript.job_record import rank_name

    wanted = _steps(run / rank_name(rank or 0), steps)
    if (rank is None) != (results is None):
        raise UsageError("a cell needs both --rank and --results (weighbridge job results); a job neither")
    if rank is not None and results is not None:
        if recognise:
            raise UsageError("--recognise needs all ranks of a job; leave out --rank and --results")
        cell = replay_cell(run, rank, results=results, steps=wanted, device=device, op_rules=op_rules)
        if as_json:
            print_json(cell.to_json())
        else:
            _print(cell)
        return Exit.NOTHING_FOUND if cell.verdict.startswith("match") and not _violations(cell) else Exit.FINDINGS
    whole = replay_job(run, steps=wanted, device=device, op_rules=op_rules, recognise=recognise)
    if as_json:
        print_json(whole.to_json())
    else:
        for number, each in enumerate(whole.ranks):
            print(f"rank {number}:" if each is not None else f"rank {number}: stopped, because another rank ended it")
            if each is not None:
                _print(each)
    found = any(_violations(each) for each in whole.ranks if each is not None)
    return Exit.NOTHING_FOUND if whole.verdict == "match" and not found else Exit.FINDINGS


def _steps(run: Path, steps: str | None) -> tuple[int, int] | None:
    """Returns the steps that are wanted, None for all; reads only the manifest: the worker reads the rest."""
    if steps is None:
        return None
    from weighbridge.core.bounded import DEFAULT_LIMITS
    from weighbridge.transcript.files import read_manifest

    return parse_steps(steps, read_manifest(run, DEFAULT_LIMITS).steps)


def _violations(result: ReplayResult) -> bool:
    return any(finding.severity == "violation" for finding in result.findings)


def _chosen(chosen: Mapping[str, Mapping[str, Any]]) -> Table:
    """The ledger of chosen bits."""
    from rich.markup import escape
    from rich.table import Table

    table = Table("chosen bits", "", "budget", "of weights' bits", "most in", box=None, header_style="bold")
    for channel, entry in chosen.items():
        budget = "-" if entry["budget"] is None else f"{entry['budget']:,.0f}"
        share = "-" if entry["share"] is None else f"{entry['share']:.2g}"
        where = "" if entry["step"] < 0 else f"step {entry['step']}: "
        row = channel, f"{entry['bits']:,.0f}", budget, share, one_line(where + entry["what"])
        table.add_row(*(escape(cell) for cell in row))
    return table


def _bounds(result: ReplayResult) -> str:
    """Says on which kinds of bounds the roundings rest."""
    strict = result.rounded - result.calibrated - result.probable
    if strict == result.rounded:
        return "strict (proven) for all roundings"
    kinds = [f"strict (proven) for {strict:,} of the roundings"] if strict or not result.probable else []
    if result.probable:
        kinds.append(
            f"probabilistic for {result.probable:,} (an honest run is accused because one is too small with a "
            f"probability of {result.false_accusation:.0e} at most, if rounding errors are independent)"
        )
    if result.calibrated:
        kinds.append(f"calibrated (measured on {_measured_on(result)}) for {result.calibrated:,}")
    return ", ".join(kinds)


def _unit(result: ReplayResult) -> str:
    """Says how far products rest on the model of the unit that the run declares."""
    asked = {name: int(result.unit[name]) for name in ("overruled", "confirmed", "could", "judged", "suppressed")}
    judged, of = asked["overruled"] + asked["judged"], asked["overruled"] + asked["could"]
    wrong = asked["overruled"] - asked["confirmed"] + asked["suppressed"]
    says = f"{wrong:,} are not the unit's" if wrong else "all are the unit's"
    return (
        f"declared unit: of {of:,} results of products that its bounds leave open, its model judged {judged:,}, and "
        f"{says}; the log overruled this device in {asked['overruled']:,}"
    )


def _measured_on(result: ReplayResult) -> str:
    """Says on which device calibrated bounds were measured, and whether that is the kind that replayed here."""
    from weighbridge.numerics.conformance.device_kind import model_of

    here = model_of(result.device)
    if here and here == result.calibrated_on:
        return f"{result.calibrated_on}, as here"
    return f"{result.calibrated_on or 'a device that is not known'}, and this is {here or result.device}"


def _print(result: ReplayResult) -> None:
    """Prints a result for a person."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from weighbridge.execution.recognition.outcome import Summary

    console = Console(highlight=False)
    color = {"match": "green", "match given collectives": "green", "mismatch": "red"}.get(result.verdict, "yellow")
    first, last = result.steps
    console.print(
        f"[{color} bold]{escape(result.verdict)}[/]  steps {first}:{last}  state {escape(result.state)}", soft_wrap=True
    )
    console.print(
        f"{result.rounded:,} roundings, {result.logged:,} of them in the log; "
        f"{result.followed:,} would have gone the other way on this device without it",
        soft_wrap=True,
    )
    if result.rounded:
        console.print(f"bounds: {_bounds(result)}", soft_wrap=True)
    if result.unit.get("results"):
        console.print(escape(_unit(result)), soft_wrap=True)
    if result.logged and result.evidence:
        chances = ", ".join(f"{name} {test['p']:.2g}" for name, test in result.evidence["tests"].items())
        console.print(
            f"the log brought in {result.evidence['charged_bits']:,.0f} bits and could have brought in "
            f"{result.evidence['bits']:,.0f}; against chance, p: {chances}",
            soft_wrap=True,
        )
    if result.first_difference is not None:
        where = result.first_difference
        position = f"step {where['step']}, operation {where['op']} ({where['operation']})"
        path = "" if where["path"] is None else f" in {where['path']}"
        console.print(f"[red]first difference: {escape(one_line(position + path))}[/]", soft_wrap=True)
        from weighbridge.execution.location import upstream_line

        for source in where["upstream"]:
            console.print(f"  from {escape(one_line(upstream_line(source)))}", soft_wrap=True)
    table = Table("tape", "kind", "ran", "operations", "undeclared values", box=None, header_style="bold")
    for digest, facts in result.tapes.items():
        row = (digest[:16], facts["kind"], facts["count"], facts["operations"], facts["free_values"])
        table.add_row(*(escape(str(cell)) for cell in row))
    console.print(table)
    if result.chosen:
        console.print(_chosen(result.chosen))
    if result.recognised:
        for line in Summary(result.recognised).lines():
            console.print(escape(one_line(line)), soft_wrap=True)
    if result.sensitivity is not None:
        for line in result.sensitivity.lines():
            console.print(escape(one_line(line)), soft_wrap=True)
    for finding in result.findings:
        console.print(escape(findings_line(finding)), soft_wrap=True)
