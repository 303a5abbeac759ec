"""`weighbridge registry ...`: the directory of chips and their holders, in the Verifier's database."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli._exits import Exit, findings_line, one_line, print_json
from weighbridge.cli._inputs import Json
from weighbridge.cli.registry import event, log
from weighbridge.cli.registry.inputs import Db, Key, chip_of, open_registry, public_key, ueids_in
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from verifier.registry import Registry

app = typer.Typer(
    help="The directory of chips and their holders: parties, events, tables, audit.", no_args_is_help=True
)
app.add_typer(event.app, name="event")
app.add_typer(log.app, name="log")


@app.command()
def party(
    name: Annotated[str, typer.Argument(help="The party's name: lower-case letters, digits, hyphens.")],
    db: Db,
    public: Annotated[
        Path, typer.Option("--public-key", help="Its certificate or public key, as PEM: P-384 or Ed25519.")
    ],
    role: Annotated[
        list[str] | None,
        typer.Option("--role", help="manufacturer, owner or inspector; repeatable. None withdraws it."),
    ] = None,
    key: Key = None,
) -> None:
    """Declare who may sign statements from now on, or change a party's roles and key."""
    from verifier.registry import ROLES, Party
    from weighbridge.attest.custody_statements import encode_key

    roles = role or []
    if not set(roles) <= set(ROLES):
        raise UsageError(f"a party's roles are {', '.join(ROLES)}; correct --role")
    registry = open_registry(db, key, signing=True, create=True)
    chosen = tuple(each for each in ROLES if each in roles)
    registry.statements.declare(Party(name=name, roles=chosen, key=encode_key(public_key(public))))
    print(f"declared {name}: {', '.join(chosen) or 'withdrawn'} in {registry.name}")


@app.command("import")
def import_(
    table: Annotated[Path, typer.Argument(help="CSV file; line 1 names columns, of which `ueid` must be there.")],
    db: Db,
) -> None:
    """List the chips of a CSV file, all or none; bad rows are named by line."""
    from verifier.registry import csvfile

    try:
        with table.open(newline="", encoding="utf-8") as file:
            count = csvfile.import_(open_registry(db, create=True), file)
    except OSError as error:
        raise UsageError(f"cannot read {table} ({error.strerror}); name a file that can be read") from error
    print(f"{count} chips imported")


@app.command()
def export(
    table: Annotated[Path, typer.Argument(help="New CSV file, or - for standard output.")],
    db: Db,
) -> None:
    """Write all chips as CSV, which `import` reads."""
    from verifier.registry import csvfile

    registry = open_registry(db)
    if str(table) == "-":
        csvfile.export(registry, sys.stdout)
        return
    try:
        with table.open("x", newline="", encoding="utf-8") as file:
            count = csvfile.export(registry, file)
    except OSError as error:
        raise UsageError(f"cannot write {table} ({error.strerror}); name a new file") from error
    print(f"{count} chips in {table}")


@app.command()
def show(
    db: Db,
    ueid: Annotated[
        str | None, typer.Argument(help="A chip's name, or how its UEID begins; all chips in sum without.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show who answers for a chip and why, or how many chips there are in which state, and the registry's root."""
    registry = open_registry(db)
    said = _chip(registry, chip_of(registry, ueid)) if ueid else _sum(registry)
    if as_json:
        print_json(said)
        return
    for name, value in said.items():
        if isinstance(value, list):
            print(f"{name}:")
            for each in value:
                print("  " + one_line("  ".join(str(part) for part in each.values() if part != "")))
        else:
            print(f"{name}: {one_line(str(value))}")


@app.command()
def audit(
    db: Db,
    lost_share: Annotated[
        float, typer.Option("--lost-share", help="Share of a holder's chips that may be lost.")
    ] = 0.01,
    lost_days: Annotated[float, typer.Option("--lost-days", help="In so many days.")] = 365.0,
    uninstalled_days: Annotated[
        float, typer.Option("--uninstalled-days", help="How long chips may lie about before they are installed.")
    ] = 90.0,
    not_found: Annotated[
        Path | None, typer.Option("--not-found", help="File with UEIDs, one a line, that were looked for in vain.")
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also verify the whole log and compare the tables with it.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Look for what cannot be, or should not be, in the histories of chips: exit 1 if there is such a thing."""
    from verifier.registry.audit import AuditPolicy, missing
    from verifier.registry.audit import audit as run
    from verifier.registry.reconstruction import compare, replay_log

    registry = open_registry(db)
    policy = AuditPolicy(lost_share=lost_share, lost_days=lost_days, uninstalled_days=uninstalled_days)
    findings = run(registry, policy)
    if not_found is not None:
        findings += missing(registry, ueids_in(not_found))
    if deep:
        replayed = replay_log(registry.log.entries())
        findings += [*replayed.findings, *compare(registry, replayed)]
    if as_json:
        print_json({**_sum(registry), "findings": [finding.to_json() for finding in findings]})
    else:
        for finding in findings:
            print(findings_line(finding))
        print(f"{len(findings)} findings")
    return Exit.FINDINGS if any(finding.severity != "info" for finding in findings) else Exit.NOTHING_FOUND


def _sum(registry: Registry) -> dict[str, Any]:
    states = registry.states()
    size = registry.tree_size
    return {"chips": sum(states.values()), **states, "entries": size, "root": registry.root(size).hex()}


def _chip(registry: Registry, ueid: bytes) -> dict[str, Any]:
    from verifier.registry.chip_history import chip_history

    chip = registry.chip(ueid)
    return {
        "ueid": chip.ueid.hex(),
        "name": chip.name,
        "state": chip.state,
        "holder": chip.owner,
        "site": chip.site,
        "type": chip.chip_type,
        "maker": chip.maker,
        "address": chip.address,
        "prover_address": chip.prover_address,
        "history": chip_history(registry, ueid),
    }
