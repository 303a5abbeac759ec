"""`weighbridge doctor script.py [args]`: what stands in the way of recording a training script."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli._exits import Exit, one_line, print_json
from weighbridge.cli._inputs import Json
from weighbridge.cli.record import EVALUATIONS, MODELLED, POLICIES, POLICY
from weighbridge.core.errors import Finding, UsageError

if TYPE_CHECKING:
    from prover.examination.diagnosis import Diagnosis
    from prover.examination.examine import Request

SETTINGS = {"allow_interspersed_args": False, "ignore_unknown_options": False}
_HEADS = {
    "refused": "refused: a recording would end here",
    "reported": "reported: a recording would be whole, and a Verifier would report this",
    "slow": "where a recorded step spends its time",
    "note": "worth knowing",
}
_DEFAULTS = {"policy": "mixed", "seed": 0, "evaluation": "native"}
"""Options that `record` has too, and what they are there if they are not given."""
_SHOWN = 20
"""Findings of one kind that are shown to a person."""


def command(
    script: Annotated[Path, typer.Argument(help="The script; its arguments follow.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="The script's own arguments.")] = None,
    steps: Annotated[int, typer.Option(help="Steps to look at; times are those of the third and later.", min=1)] = 5,
    policy: Annotated[str, typer.Option(help=POLICY)] = "mixed",
    seed: Annotated[int, typer.Option(help="As for `record`.", min=0)] = 0,
    evaluation: Annotated[str, typer.Option(help="Evaluations: native, or recorded like training.")] = "native",
    ranks: Annotated[int, typer.Option(help="Start the script on so many ranks by torchrun.", min=1)] = 1,
    seconds: Annotated[float, typer.Option(help="How long each of the two runs may take.", min=1)] = 600.0,
    as_json: Json = False,
) -> int:
    """Say what stands in the way of recording a script: what would be refused, reported or slow, and what it costs.

    Runs the script for a few steps, recorded and again unrecorded, and replays what was recorded. Keeps nothing of it;
    what the script itself writes in these steps, it writes. Exit code 0 if nothing stands in the way, 1 otherwise.
    """
    if policy not in POLICIES:
        raise UsageError(f"--policy takes {', '.join(POLICIES[:-1])} or {POLICIES[-1]}, not {policy!r}")
    if policy in MODELLED:
        raise UsageError(f"doctor puts no model in the place of {policy.removeprefix('unit-')}; try unit-vdpbf16ps")
    if evaluation not in EVALUATIONS:
        raise UsageError(f"--evaluation takes {' or '.join(EVALUATIONS)}, not {evaluation!r}")
    from rich.console import Console
    from rich.markup import escape

    from prover.examination.diagnosis import diagnose
    from prover.examination.examine import Request, examine

    request = Request(script, arguments or (), steps, seed, policy, evaluation, ranks, seconds)
    console = Console(stderr=True, quiet=as_json or not sys.stderr.isatty())
    name = escape(one_line(script.name))
    with console.status(name) as status:
        found = diagnose(examine(request, lambda doing: status.update(f"{name}: {doing}")))
    if as_json:
        print_json(describe(found))
    else:
        for line in lines(found, _recording(request)):
            print(line)
    return Exit.NOTHING_FOUND if found.clear else Exit.FINDINGS


def describe(found: Diagnosis) -> dict[str, Any]:
    """Returns a diagnosis as JSON-compatible values."""
    return {
        "script": found.script,
        "clear": found.clear,
        "steps": found.steps,
        "ended": found.ended,
        "findings": [finding.to_json() for finding in found.findings],
        "costs": found.costs,
        "arithmetic": found.arithmetic,
        "replay": {"verdict": found.verdict, "seconds": found.replay_seconds},
        "output": found.output,
    }


def _recording(request: Request) -> str:
    """Returns the command that records what was examined, with the same options and arguments."""
    words = ["weighbridge"]
    if request.ranks > 1:
        words = ["torchrun", "--nproc-per-node", str(request.ranks), "-m", "weighbridge.cli"]
    words += ["record", "--out", "RUN"]
    for name, value in (("policy", request.policy), ("seed", request.seed), ("evaluation", request.evaluation)):
        if value != _DEFAULTS[name]:
            words += [f"--{name}", str(value)]
    return shlex.join([*words, str(request.script), *request.arguments])


def lines(found: Diagnosis, recording: str) -> Iterator[str]:
    """Yields a diagnosis as lines for a person.

    Args:
        found: What was found.
        recording: The command that records the script.
    """
    if found.output:
        yield "the script's last lines:"
        for text in found.output:
            yield f"  | {one_line(text)}"
        yield ""
    for kind, head in _HEADS.items():
        findings = [finding for finding in found.findings if finding.evidence["kind"] == kind]
        if findings:
            yield head
            for finding in findings[:_SHOWN]:
                yield from _finding(finding)
            if len(findings) > _SHOWN:
                yield f"  and {len(findings) - _SHOWN} more (--json shows all)"
            yield ""
    yield from _costs(found)
    for device, fault in found.arithmetic.items():
        yield f"{'arithmetic':12}{device} " + ("conforms" if fault is None else "does not conform")
    if found.verdict is not None:
        yield f"{'replay':12}{found.verdict}, {found.replay_seconds:.1f} s for all of these steps"
    seen = f"in {found.steps} step{'' if found.steps == 1 else 's'}"
    ended = ", after which the script ended by itself" if found.ended == "itself" else ""
    if found.clear:
        yield f"nothing stands in the way, {seen}{ended}: {one_line(recording)}"
    else:
        grave = sum(finding.severity != "info" for finding in found.findings)
        yield f"{grave} finding{'' if grave == 1 else 's'} {seen}{ended}"


def _finding(finding: Finding) -> Iterator[str]:
    evidence = finding.evidence
    where = [] if not finding.subject else [finding.subject]
    if evidence.get("module"):
        where.append(f"in {evidence['module']}")
    place = one_line(", ".join(where))
    code = "" if finding.severity == "info" else f" [{finding.id}]"
    said = one_line(f"{finding.message}{code}")
    yield f"  {place}" if place else f"  {said}"
    if place:
        yield f"    {said}"
    if evidence.get("remedy"):
        yield f"    -> {one_line(evidence['remedy'])}"


def _costs(found: Diagnosis) -> Iterator[str]:
    cost = found.costs
    if not cost:
        return
    if cost["step_seconds"] is None:
        timed = "an optimizer, whose steps are timed" if cost["timed_steps"] else "three steps or more"
        yield f"{'time':12}not measured: that takes {timed}"
    else:
        plain = cost["plain_seconds"]
        beside = "" if plain is None else f", {_time(plain)} unrecorded: {cost['slowdown']:.1f} times as long"
        yield f"{'time':12}{_time(cost['step_seconds'])} a step{beside} (mean of {cost['timed_steps']})"
    for kind, size in cost["memory_bytes"].items():
        plain = (cost["plain_memory_bytes"] or {}).get(kind)
        beside = "" if plain is None else f", {_bytes(plain)} unrecorded"
        yield f"{'memory':12}{_bytes(size)} at most on the {kind}{beside}"
    yield (
        f"{'transcript':12}{_bytes(cost['transcript_bytes'])} a step, {_bytes(cost['log_bytes'])} of it roundings; "
        f"{_bytes(cost['checkpoint_bytes'])} a checkpoint (every 50 steps), {_bytes(cost['tape_bytes'])} of programs"
    )


def _time(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if size >= 100 or unit == "B" else f"{size:.1f} {unit}"
