"""`weighbridge tape ...`: what a program does, and the passport of all programs of a run."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from weighbridge.cli._exits import findings_line, one_line, print_json
from weighbridge.cli._inputs import Json, Run, require_transcript
from weighbridge.cli.tape import passports
from weighbridge.core.errors import Finding, UsageError

app = typer.Typer(no_args_is_help=True, help="Look at the programs of a transcript, and approve them.")
app.command("passport")(passports.show)
app.command("approve")(passports.approve)
app.command("verify-passport")(passports.verify)


@app.callback()
def _group() -> None:
    """Look at the programs of a transcript, and approve them."""


@app.command()
def show(
    run: Run,
    tape: Annotated[str | None, typer.Argument(help="Digest of a tape, or how it begins.")] = None,
    step: Annotated[int | None, typer.Option("--step", help="The tape that this step ran.")] = None,
    operations: Annotated[bool, typer.Option("--operations", help="List every operation too.")] = False,
    as_json: Json = False,
) -> None:
    """Say what a tape does: operations, shapes, FLOPs, what enters it and where that goes. Nothing is executed.

    Without a digest or a step it is the tape that ran most often, and the others are listed.
    """
    require_transcript(run)
    if tape is not None and step is not None:
        raise UsageError("give the digest of a tape or --step, not both")
    from weighbridge.execution import transcript_facts as confined

    opened = confined.open_confined(run, opening=confined.OPENING, limits=confined.OPENING)
    facts = opened.program(tape, step, operations=operations)
    if as_json:
        print_json({name: value for name, value in facts.items() if name != "step"})
    else:
        _print(facts)


def _print(facts: dict[str, Any]) -> None:
    """Prints a description for a person; a hostile name cannot steer the terminal."""

    def line(name: str, text: str) -> None:
        print(f"{name:13}{one_line(text)}")

    declared = {None: "", True: ", declared", False: ", NOT declared"}[facts["declared"]]
    line("tape", facts["tape"])
    line("runs", f"{facts['kind']}, {facts['steps']} times, first in step {facts['first_step']}{declared}")
    line("operations", f"{facts['operations']:,}: " + _counts(facts["by_rule"]))
    line("", _counts(dict(list(facts["by_operation"].items())[:12])))
    line("FLOPs", f"{facts['flops']:,}  " + _counts(facts["flops_by_operation"]))
    line("memory", f"{facts['births']:,} storages born ({facts['born_bytes']:,} bytes), {facts['frees']:,} freed")
    line("", f"at most {facts['peak_bytes']:,} bytes alive at once")
    _print_inputs(facts, line)
    _print_values(facts["values"], facts["step"], line)
    for place, group in enumerate(facts["changes"]):
        names = group["changed"]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3:,} more" if len(names) > 3 else "")
        line("changes" if not place else "", f"{shown} <- {_origin(group, group['most_other_state'])}")
    for item in facts["overwrites"]:
        told = item["depends_on"]
        where = f"operation {item['operation']}"
        line("overwrites", f"{item['state']} at {where} <- {_origin(told, len(told['state']) + told['more_state'])}")
    for raw in facts["findings"]:
        line("finding", findings_line(Finding(**raw)))
    line("programs", "not fixed in the draft" if facts["declared"] is None else "fixed in the draft")
    if len(facts["others"]) > 1:
        first = facts["first_in_step"]
        several = [
            f"{digest[:12]} ({count} times, first in step {first[digest]})" for digest, count in facts["others"].items()
        ]
        line("tapes", ", ".join(several))
    for each in facts.get("list", ()):
        notes = [f"{each['flops']:,} FLOPs"] if each["flops"] else []
        notes += [f"makes %{slot} ({size:,} bytes)" for slot, size in each["births"]]
        notes += [f"frees %{slot} before" for slot in each["frees_before"]]
        notes += [f"in {each['module']}"] if each["module"] else []
        operands, results = ", ".join(each["operands"]), ", ".join(each["results"])
        print(one_line(f"{each['op']:>6} {each['operation']}({operands}) -> {results}  {'; '.join(notes)}"))


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _print_inputs(facts: dict[str, Any], line: Any) -> None:
    for origin in ("batch", "state", "free", "dropped"):
        several = [item for item in facts["inputs"] if item["origin"] == origin]
        if not several:
            continue
        size = sum(item["bytes"] for item in several)
        line("undeclared" if origin == "free" else origin, f"{len(several):,} storages, {size:,} bytes")
        shown = several if origin != "state" else several[:6]
        for item in shown[:20]:
            line("", f"  {item['name']}: {', '.join(item['tensors']) or 'not read'}")
        if len(several) > len(shown[:20]):
            line("", f"  and {len(several) - len(shown[:20]):,} more")
    if facts["draws"]:
        line("random", f"{facts['draws']:,} draws")


def _print_values(values: dict[str, Any], step: int, line: Any) -> None:
    line(
        "values", f"{values['constants']:,} constants of the program, {values['host_values']:,} read back from tensors"
    )
    for name, entry in values["derived"].items():
        here = f", {_number(entry['here'])} in step {step}" if "here" in entry else ""
        line("", f"  {entry['positions']:,} follow {name} = {entry['formula']}{here}")
    if values["unexplained"]:
        here = ", ".join(map(_number, values["unexplained_here"][:6]))
        line("", f"  {values['unexplained']:,} change and follow no formula: UNDECLARED ({here} in step {step})")
    for name, entry in values["free_tensors"].items():
        line("", f"  undeclared tensor {name}: {entry['bytes']:,} bytes in {entry['steps']:,} steps")
    if values["once_bytes"]:
        line("", f"  ran once: its constants are {values['once_bytes']:,} bytes that may be anything")


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else repr(value)  # an infinity or NaN is a text


def _origin(told: dict[str, Any], others: int) -> str:
    """Says what something depends on."""
    parts = ["itself"] if told["itself"] else []
    parts += [f"batch {', '.join(told['batch'][:4])}"] if told["batch"] else []
    parts += [f"state {told['state'][0]}"] if others == 1 and told["state"] else []
    parts += [f"other state (up to {others:,} storages)"] if others > 1 else []
    parts += [f"undeclared {', '.join(told['free'][:4])}"] if told["free"] else []
    parts += ["random numbers"] if told["random"] else []
    return ", ".join(parts) or "constants"
