"""`weighbridge up|down|status`: a whole inspection station in the background of this machine, in one directory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli._exits import Exit, one_line, print_json
from weighbridge.cli._inputs import Json
from weighbridge.cli._progress import working_on
from weighbridge.cli.bench.layout import DEFAULT, Bench, Settings, check_names
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from weighbridge.cli.bench.background import Background, Status

VARIABLE = "WEIGHBRIDGE_BENCH"
_DEFAULT_CHIPS, _DEFAULT_RATE, _DEFAULT_SPEED = 2, 0.1, 1.0

Directory = Annotated[Path, typer.Option("--dir", envvar=VARIABLE, help="Directory of the bench.")]


def up(
    directory: Directory = DEFAULT,
    chips: Annotated[
        int | None, typer.Option("--chips", help="How many chips: chip-0, chip-1, ...", min=1, max=64, show_default="2")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="A chip's name, instead of --chips; repeatable.")
    ] = None,
    rate: Annotated[
        float | None,
        typer.Option("--rate", help="Snapshots per chip and day, on its clock.", min=0, show_default="0.1"),
    ] = None,
    clock_speed: Annotated[
        float | None,
        typer.Option(
            "--clock-speed",
            help="Seconds of a chip's clock per second; 43200 makes a minute a month, so that snapshots come soon.",
            min=1,
            show_default="1",
        ),
    ] = None,
    allow_forced: Annotated[
        bool, typer.Option("--allow-forced", help="Let a training ask its chip for a snapshot.")
    ] = False,
    confidential: Annotated[
        bool,
        typer.Option("--confidential", help="Boot chips that open their snapshots for sealed inspections alone."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Start a bench: authority, credentials, chips, a Prover's and a Verifier's service, in the background.

    What runs goes on, what was stopped or killed is started again, and chips are added. The commands of `inspect` find
    the bench in the current directory by themselves.
    """
    from weighbridge.cli.bench.background import alone

    given = check_names(name) if name else tuple(f"chip-{number}" for number in range(chips)) if chips else ()
    if name and chips:
        raise UsageError("give --chips or --name, not both")
    directory = _place(directory)
    with alone(directory / "background"):
        bench = _settled(directory, given, rate, clock_speed, forced=allow_forced, confidential=confidential)
        working_on("making keys and chips")
        bench.make()
        services = _services(bench)
        idle = [each for each in services if each.status().state != "running"]
        working_on(f"starting {', '.join(each.service.name for each in idle)}")
        for each in idle:
            each.start()
        for each in idle:
            each.served()
        register(bench)
    started = [each.service.name for each in idle]
    statuses = [each.status() for each in services]
    if as_json:
        print_json(_said(bench, statuses) | {"started": started})
        return
    settings = bench.settings
    shown = _shown(bench.directory)
    print(f"{_count(len(settings.chips), 'chip')}, a Prover and a Verifier run in {shown}: {', '.join(settings.chips)}")
    print(f"started: {', '.join(started) or 'nothing, all of it ran'}")
    if settings.clock_speed > 1:
        faster = f"the chips' clocks run {settings.clock_speed:g} times as fast as they should"
        print(f"{faster}; this Verifier accepts that, and its reports say so (firmware.limits)")
    if settings.confidential:
        print("ordinary inspections verify nothing about these chips; make sealed ones (`weighbridge site`)")
    other = "" if shown == str(DEFAULT) else f" --dir {shown}"
    print(f"`weighbridge example{other} --declared {settings.chips[0]}` trains on a chip")


def down(directory: Directory = DEFAULT, as_json: Json = False) -> None:
    """Stop everything on a bench. What it holds stays; `weighbridge up` goes on with it."""
    from weighbridge.cli.bench.background import alone

    bench = Bench.opened(directory)
    with alone(bench.directory / "background"):
        working_on("stopping")
        stopped = [each.service.name for each in reversed(_services(bench)) if each.stop()]
    if as_json:
        print_json({"directory": str(bench.directory), "stopped": stopped})
    else:
        print(f"stopped: {', '.join(stopped) or 'nothing ran'}")


def status(directory: Directory = DEFAULT, as_json: Json = False) -> int:
    """Say what runs on a bench, where it answers and where its log is: exit 1 if something is down."""
    bench = Bench.opened(directory)
    statuses = [each.status() for each in _services(bench)]
    if as_json:
        print_json(_said(bench, statuses))
    else:
        from weighbridge.cli.inspect.listing import print_table

        rows = [
            (each.service.name, each.state, str(each.pid or "-"), each.address or "-", _shown(each.service.log))
            for each in statuses
        ]
        print_table(("service", "state", "process", "address", "log"), rows)
        for each in statuses:
            if each.state == "down":
                print(one_line(f"{each.service.name} ended by itself; the end of its log: {each.reason}"))
        if any(each.state != "running" for each in statuses):
            print("`weighbridge up` starts what does not run")
    return Exit.NOTHING_FOUND if all(each.state == "running" for each in statuses) else Exit.FINDINGS


def register(bench: Bench, *, owner: str = "bench", sites: bool = False) -> None:
    """Registers every chip of a bench with its Verifier, at its present address.

    Args:
        bench: All of it runs.
        owner: Who answers for the chips.
        sites: Whether each chip has a site of its own, which has its name.
    """
    from weighbridge.cli.inspect.operator import connect

    with connect(bench.address("verifier"), bench.credentials("operator")) as operator:
        for name in bench.settings.chips:
            operator.register(
                ueid=bench.ueid(name),
                chip=(bench.chip(name) / "address").read_text(encoding="utf-8").strip(),
                prover=bench.address("prover"),
                owner=owner,
                site=name if sites else "bench",
                chip_type="simulated",
                name=name,
            )


def _services(bench: Bench) -> list[Background]:
    from weighbridge.cli.bench.background import Background

    return [Background(service, bench.directory / "background") for service in bench.services()]


def _place(directory: Path) -> Path:
    """Returns the directory of a new or an old bench.

    Raises:
        UsageError: It holds something else.
    """
    directory = directory.absolute()
    if directory.exists() and not Bench.exists(directory):
        there = [each.name for each in directory.iterdir()] if directory.is_dir() else ["a file"]
        if set(there) - {"background"}:
            raise UsageError(f"{directory} is not empty and holds no bench; name another directory with --dir")
    return directory


def _settled(
    directory: Path,
    names: tuple[str, ...],
    rate: float | None,
    speed: float | None,
    *,
    forced: bool,
    confidential: bool,
) -> Bench:
    """Returns the bench as it shall be from now on, and writes that down.

    Raises:
        UsageError: Something runs that would have to run otherwise.
    """
    if not Bench.exists(directory):
        names = names or tuple(f"chip-{number}" for number in range(_DEFAULT_CHIPS))
        rate, speed = _DEFAULT_RATE if rate is None else rate, _DEFAULT_SPEED if speed is None else speed
        bench = Bench(directory, Settings(names, rate, speed, forced, confidential))
        bench.keep()
        return bench
    bench = Bench.opened(directory)
    before = bench.settings
    wanted = replace(
        before,
        chips=(*before.chips, *(each for each in names if each not in before.chips)),
        rate_per_day=before.rate_per_day if rate is None else rate,
        clock_speed=before.clock_speed if speed is None else speed,
        forced=before.forced or forced,
        confidential=before.confidential or confidential,
    )
    if replace(wanted, chips=before.chips) != before:
        running = [each.service.name for each in _services(bench) if each.status().state == "running"]
        if running:
            raise UsageError(
                f"{', '.join(running)} run with other options; type `weighbridge down` before you change "
                "--rate, --clock-speed, --allow-forced or --confidential"
            )
    bench = Bench(directory, wanted)
    bench.keep()
    return bench


def _said(bench: Bench, statuses: list[Status]) -> dict[str, Any]:
    settings = bench.settings
    return {
        "directory": str(bench.directory),
        "chips": [
            {"name": name, "ueid": bench.ueid(name).hex(), "socket": str(bench.socket(name))} for name in settings.chips
        ],
        "rate_per_day": settings.rate_per_day,
        "clock_speed": settings.clock_speed,
        "allow_forced": settings.forced,
        "confidential": settings.confidential,
        "runs": str(bench.runs),
        "credentials": str(bench.credentials("operator")),
        "services": [each.to_json() for each in statuses],
    }


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _shown(path: Path) -> str:
    """Returns a path as a reader in the current directory would write it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
