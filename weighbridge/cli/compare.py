"""`weighbridge compare RUN_A RUN_B`: where two local runs of one program part, element by element."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli._exits import Exit, fail, one_line, print_json
from weighbridge.cli._inputs import Json
from weighbridge.cli.replay import require_device
from weighbridge.core.errors import WeighbridgeError

if TYPE_CHECKING:
    from weighbridge.execution.comparison import Comparison


def command(
    run_a: Annotated[Path, typer.Argument(help="Transcript directory.")],
    run_b: Annotated[Path, typer.Argument(help="Another one of the same program.")],
    step: Annotated[int | None, typer.Option("--step", help="Compare this step alone.")] = None,
    op: Annotated[int | None, typer.Option("--op", help="Show what this operation of the step returned.")] = None,
    elements: Annotated[int, typer.Option("--elements", help="Differing elements to show, at most.")] = 16,
    device: Annotated[str, typer.Option("--device", help="Where to execute them: cpu, cuda, cuda:1.")] = "cpu",
    op_rules: Annotated[
        list[str] | None,
        typer.Option("--op-rules", help="Module or .py file of yours that registers rules for custom operators."),
    ] = None,
    as_json: Json = False,
) -> int:
    """Compare two local runs: exit 0 if equal, 1 if they differ (saying where first), 2 if that cannot be said."""
    try:
        require_device(device)
        from weighbridge.execution.comparison import compare

        found = compare(run_a, run_b, step=step, op=op, elements=elements, device=device, op_rules=op_rules or ())
    except WeighbridgeError as error:
        fail(error, as_json=as_json)  # nothing was compared, even where the error accuses a transcript
        return Exit.UNREADABLE
    if as_json:
        print_json(found.to_json())
    else:
        for line in _lines(found):
            print(_indented(line))
    return Exit.NOTHING_FOUND if found.equal else Exit.FINDINGS


def _indented(text: str) -> str:
    """Returns `text` on one line with the spaces that it begins with."""
    return " " * (len(text) - len(text.lstrip(" "))) + one_line(text)


def _lines(found: Comparison) -> list[str]:
    """Returns a comparison as lines for a person."""
    from weighbridge.execution.location import upstream_line

    first, last = found.compared
    lines = [
        f"{'equal' if found.equal else 'different'}  steps {first}:{last}  A {found.runs[0]}  B {found.runs[1]}",
    ]
    lines += [f"draft: {each['name']}: A {each['a']}, B {each['b']}" for each in found.draft]
    for each in found.differences:
        where = "" if each["op"] is None else f", operation {each['op']} ({each['operation']})"
        path = "" if each["path"] is None else f" in {each['path']}"
        lines += [
            f"step {each['step']}{where}{path}: {each['kind']}: {each['name']} differs",
            f"  A {each['a']}",
            f"  B {each['b']}",
        ]
    if found.operation is not None:
        place = found.operation
        path = "" if place["path"] is None else f" in {place['path']}"
        lines.append(f"step {place['step']}, operation {place['op']} ({place['operation']}){path}")
        lines += [f"  from {upstream_line(source)}" for source in place["upstream"]]
    for result in found.results:
        name = f"{result['name']} " if result["name"] else ""
        shape = f"{result['dtype']}{result['shape']}"
        lines.append(f"  {name}{shape}: {result['differing']} of {result['elements']} elements differ")
        for element in result["listed"]:
            lines += [
                f"    {element['index']}",
                *(f"      {side.upper()} {_value(element[side])}" for side in ("a", "b")),
            ]
    return lines


def _value(side: dict[str, Any]) -> str:
    """One element of one run."""
    text = f"{side['value']} ({side['hex']})"
    if side["wide"] is None:
        return text
    said = "contested" if side["contested"] else "not contested"
    logged = "logged" if side["logged"] else "not logged"
    return f"{text}, rounded from {side['wide']} with the bound {side['bound']}; {said}, {logged}"
