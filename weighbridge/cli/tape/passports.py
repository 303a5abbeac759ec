"""`weighbridge tape passport`, `approve` and `verify-passport`: a run's programs on one page, and their approval."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from weighbridge.cli._exits import Exit, one_line, print_json
from weighbridge.cli._inputs import Json, Run, read_file, require_transcript, write_file
from weighbridge.core.errors import UsageError

Line = Callable[[str, str], None]
_SHOWN = 40


def show(
    run: Run,
    recognise: Annotated[
        int,
        typer.Option(help="Replay the run too, and recognise the training of so many random steps.", min=0),
    ] = 0,
    as_json: Json = False,
) -> None:
    """Say what the programs of a run are: modules, what enters, what is trained, FLOPs, formulas. Nothing is executed.

    The digest names the programs: it is the same for every run of the same programs, whatever their data and seed. What
    is recognised stands beside, and is not part of it.
    """
    found = _passport(run)
    told = _recognised(run, recognise) if recognise else None
    if as_json:
        print_json(found if told is None else {**found, "recognised": told})
    else:
        _print(found)
        for place, line in enumerate([] if told is None else told["lines"]):
            print(f"{'' if place else 'recognised':13}{one_line(line)}")


def approve(
    run: Run,
    key: Annotated[list[Path], typer.Option("--key", help="Private key of a party; repeatable.")],
    out: Annotated[Path, typer.Option("--out", help="Signed passport; signatures that it has are kept.")],
    as_json: Json = False,
) -> None:
    """Approve the programs of a run, or add a signature to a passport that others signed."""
    from weighbridge.attest import approved_passport
    from weighbridge.attest.manifest import load_or_create_key

    for each in key:
        if not each.exists():
            raise UsageError(f"there is no key {each}; make it with `weighbridge rules key {each}`")
    found = _passport(run)
    former = read_file(out) if out.exists() else None
    signed = approved_passport.sign(found["facts"], [load_or_create_key(each) for each in key], former)
    write_file(out, signed)
    keys = approved_passport.read(signed)[1]
    if as_json:
        print_json({"digest": found["digest"], "keys": [each.hex() for each in keys]})
    else:
        print(f"passport {found['digest']}, signed by {len(keys)}")


def verify(
    signed: Annotated[Path, typer.Argument(help="Signed passport.")],
    parties: Annotated[Path, typer.Option("--parties", help="TOML file with the parties' keys and the quorum.")],
    run: Annotated[
        Path | None, typer.Option("--run", help="Transcript whose programs it must be the passport of.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Verify who approved a passport, and that a run's programs are those: exit 1 if they are not."""
    from weighbridge.attest import approved_passport
    from weighbridge.attest.dsse import Trust

    trust = Trust.load(parties)
    approved = approved_passport.verify(read_file(signed), trust)
    own = None if run is None else _passport(run)
    same = own is None or own["digest"] == approved.digest
    if as_json:
        run_digest = None if own is None else own["digest"]
        print_json({"digest": approved.digest, "signers": list(approved.signers), "run": run_digest, "same": same})
    else:
        print(f"passport {approved.digest}")
        print(one_line(f"signed by {', '.join(approved.signers)} ({trust.quorum} needed)"))
        if own is not None and same:
            print("the run's programs are the approved ones")
        if own is not None and not same:
            print(f"the run's programs are others: their passport is {own['digest']}")
            for each in _different(approved.facts, own["facts"]):
                print(one_line(f"  {each}"))
    return Exit.NOTHING_FOUND if same else Exit.FINDINGS


def _recognised(run: Path, steps: int) -> dict[str, Any]:
    """What a replay recognises of a run's training, for people and for programs."""
    from weighbridge.execution.recognition.outcome import Summary
    from weighbridge.execution.replay import replay

    result = replay(run, recognise=steps)
    lines = Summary(result.recognised).lines() if result.recognised else ["no step was recognised"]
    if result.verdict != "match":
        lines = [f"the replay ended in {result.verdict}; `weighbridge replay` says where", *lines]
    return {"verdict": result.verdict, "lines": lines, "steps": [each.to_json() for each in result.recognised]}


def _passport(run: Path) -> dict[str, Any]:
    """The passport of a transcript that may be another party's: a confined worker decodes it."""
    require_transcript(run)
    from weighbridge.execution import transcript_facts as confined

    return confined.open_confined(run, opening=confined.OPENING, limits=confined.OPENING).passport()


def _different(approved: dict[str, Any], own: dict[str, Any]) -> list[str]:
    """Says in which parts two passports differ, and which programs are not approved."""
    parts = [name for name in own if own[name] != approved.get(name)]
    programs = approved.get("programs")
    known = {str(each.get("tape")) for each in programs if isinstance(each, dict)} if isinstance(programs, list) else {}
    strange = [each["tape"] for each in own["programs"] if each["tape"] not in known]
    return [f"they differ in: {', '.join(parts)}", *(f"not approved: tape {tape}" for tape in strange[:_SHOWN])]


def _print(passport: dict[str, Any]) -> None:
    """Prints a passport for a person; a hostile name cannot steer the terminal."""

    def line(name: str, text: str) -> None:
        print(f"{name:13}{one_line(text)}")

    facts, run = passport["facts"], {each["tape"]: each for each in passport["run"]["programs"]}
    line("passport", passport["digest"])
    line("bounds", facts["policy"])
    for each in facts["programs"]:
        _print_program(each, run[each["tape"]], line)
    for name, text in facts["formulas"].items():
        line("formula", f"{name} = {text}")
    line("modules", "as the Prover names them; nothing proves names")
    tree = _tree(facts["modules"])
    for depth, text in tree[: 5 * _SHOWN]:
        print(f"{'':13}{'  ' * depth}{one_line(text)}")
    if len(tree) > 5 * _SHOWN:
        line("", f"and {len(tree) - 5 * _SHOWN:,} more (--json)")
    for place, text in enumerate(facts["unrecognised"]):
        line("" if place else "not told", text)


def _below(text: str) -> None:
    print(f"{'':15}{one_line(text)}")


def _print_program(facts: dict[str, Any], run: dict[str, Any], line: Line) -> None:
    flops = "not counted" if facts["flops"] is None else f"{facts['flops']:,} FLOPs"
    line(facts["kind"], f"tape {facts['tape'][:16]}: {facts['operations']:,} operations, {flops}")
    _below(f"ran {_counted(run['count'], 'time')}, first in step {run['first']}")
    for name, kind in facts["batch"]:
        _below(f"takes {name}: {kind}, from the batch")
    numbers = [name for name, kind in facts["undeclared"] if kind.endswith("[]")]
    for name, kind in [each for each in facts["undeclared"] if each[0] not in numbers][:_SHOWN]:
        _below(f"takes {name}: {kind or 'a tensor that no operation uses'}, UNDECLARED")
    if numbers:
        _below(f"takes {_counted(len(numbers), 'single number')} of the program: {_listed(numbers)}")
    more = [(facts["draws"], "random draw", ""), (facts["read_back"], "number", " read back from tensors"),
            (facts["collectives"], "collective", "")]  # fmt: skip
    if any(count for count, _, _ in more):
        _below(", ".join(f"{_counted(count, what)}{where}" for count, what, where in more if count))
    for operation, kind, module in facts["losses"][:_SHOWN]:
        _below(f"{operation} of {kind}" + (f" in {module}" if module else ""))
    for what in ("trained", "changed"):
        for holder, (count, size) in facts[what].items():
            how = "makes" if facts["kind"] == "init" else "changes"
            why = ", by what it calculates from them and the batch" if what == "trained" else ""
            _below(f"{how} {_counted(count, 'storage')} of {holder} ({size:,} bytes){why}")
    for name in facts["replaced"][:_SHOWN]:
        _below(f"replaces {name} by what does not depend on it")
    for name, (least, most, last) in run["follow"].items():
        _below(f"{name} from {least} to {most}, at last {last}")
    if run["constants"]:
        line("", "  constants: " + ", ".join(f"{value} ({count}x)" for value, count in run["constants"][:8]))
    if run["unexplained"]:
        _below(f"{_counted(run['unexplained'], 'changing number')} without a formula: UNDECLARED")


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _listed(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else "")


def _tree(modules: dict[str, dict[str, list[str]]]) -> list[tuple[int, str]]:
    """Modules with what they hold and how deep they lie; those that only hold others are there too."""
    paths = {".".join(path.split(".")[:depth]) for path in modules for depth in range(1, path.count(".") + 2)}
    lines = []
    for parts in sorted(path.split(".") for path in paths):
        own = modules.get(".".join(parts), {})
        held = ", ".join(f"{name} {' or '.join(types)}" for name, types in own.items())
        lines.append((min(len(parts), _SHOWN), parts[-1] + (f": {held}" if held else "")))
    return lines
