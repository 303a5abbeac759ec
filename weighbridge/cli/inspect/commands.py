"""`weighbridge inspect ...`: what an operator does with a running Verifier."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli._exits import Exit, print_json
from weighbridge.cli._inputs import Json
from weighbridge.cli.inspect import case, criteria, database, draws, listing
from weighbridge.cli.inspect.connection import Address, Directory, Inspection, connected
from weighbridge.cli.report import as_text, headline, observed_time, outcome, proven, silence
from weighbridge.core.errors import UsageError, WeighbridgeError

if TYPE_CHECKING:
    from weighbridge.cli.inspect.operator import Operator

app = typer.Typer(help="Register chips with a Verifier, run inspections, read reports.", no_args_is_help=True)
app.add_typer(database.app, name="db")
listing.add(app)
draws.add(app)
criteria.add(app)
case.add(app)


_SECONDS_PER_DAY = 86_400.0


def _bytes(text: str, what: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise UsageError(f"{what} must be hexadecimal, not {text!r}") from None


def _environment(pairs: list[str]) -> dict[str, str]:
    """Parses `NAME=VALUE` pairs."""
    out = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise UsageError(f"--replay-env takes NAME=VALUE, not {pair!r}")
        out[name] = value
    return out


def _speeds(pairs: list[str]) -> dict[str, float]:
    """Parses `TYPE=FLOP/s` pairs; returns FLOP per day by type."""
    out = {}
    for pair in pairs:
        name, _, value = pair.rpartition("=")
        try:
            out[name] = float(value) * _SECONDS_PER_DAY
        except ValueError:
            name = ""
        if not name:
            raise UsageError(f"--type-flops takes TYPE=FLOP/s, not {pair!r:.100}")
    return out


@app.command()
def register(
    verifier: Address,
    credentials: Directory,
    ueid: Annotated[str, typer.Option("--ueid", help="The chip's identity in hexadecimal.")],
    chip: Annotated[str, typer.Option("--chip", help="The chip's host:port.")],
    prover: Annotated[str, typer.Option("--prover", help="The host:port of its user's ProverService.")] = "",
    owner: Annotated[str, typer.Option("--owner")] = "",
    site: Annotated[str, typer.Option("--site")] = "",
    chip_type: Annotated[str, typer.Option("--type", help="The chip's model.")] = "",
    name: Annotated[str, typer.Option("--name", help="What to call it; findings and reports show the name.")] = "",
) -> None:
    """Add a chip to the registry, or correct what is known about it."""
    with connected(verifier, credentials) as operator:
        operator.register(
            ueid=_bytes(ueid, "--ueid"), chip=chip, prover=prover, owner=owner, site=site, chip_type=chip_type,
            name=name,
        )  # fmt: skip
    print(f"registered {ueid}{f' as {name}' if name else ''}")


@app.command()
def chips(verifier: Address, credentials: Directory, as_json: Json = False) -> None:
    """List the registry."""
    with connected(verifier, credentials) as operator:
        rows = operator.chips()
    if as_json:
        print_json({"chips": rows})
        return
    head = ("name", "UEID", "chip", "Prover", "owner", "site", "type")
    listing.print_table(head, ([value or "-" for value in row.values()] for row in rows))


@app.command()
def start(
    verifier: Address,
    credentials: Directory,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Chips to draw (s).")],
    threshold: Annotated[float, typer.Option("--threshold", help="Size of the violation not to miss, in FLOPs (H).")],
    speed: Annotated[float, typer.Option("--chip-flops", help="FLOP/s of one chip; a is that times 86400.")],
    period: Annotated[float, typer.Option("--period", help="Monitoring period in days (T_m).")],
    rate: Annotated[float, typer.Option("--rate", help="Snapshots per chip and day (f).")],
    seed: Annotated[
        str | None, typer.Option("--seed", help="Choose the seed yourself, 32+ hexadecimal digits.")
    ] = None,
    strata: Annotated[
        str, typer.Option("--strata", help="Divide chips by owner, site, type: one or more, commas.")
    ] = "",
    allocation: Annotated[
        str, typer.Option("--allocation", help="Samples to strata: proportional, or optimal against the worst run.")
    ] = "proportional",
    type_speed: Annotated[
        list[str] | None, typer.Option("--type-flops", help="TYPE=FLOP/s of chips of a type; repeatable.")
    ] = None,
    cutoff: Annotated[float | None, typer.Option("--cutoff", help="Seconds to collect chips' heads.", min=0)] = None,
    device: Annotated[str, typer.Option("--device", help="Device to replay on.")] = "cpu",
    replay_env: Annotated[list[str] | None, typer.Option("--replay-env", help="NAME=VALUE; repeatable.")] = None,
    cells: Annotated[bool, typer.Option("--cells", help="Replay ranks of jobs alone, collectives given.")] = False,
    chunks: Annotated[int, typer.Option("--chunks", help="Chunks to check of each cell; 0: 300.", min=0)] = 0,
    random_segments: Annotated[
        int | None,
        typer.Option(
            "--random-segments",
            help="Segments of each run to replay whole, at random; 0: none.",
            min=0,
            show_default="1",
        ),
    ] = None,
    largest_segments: Annotated[
        int | None,
        typer.Option("--largest-segments", help="The same, where the weights changed most.", min=0, show_default="1"),
    ] = None,
    memorisation: Annotated[
        int, typer.Option("--memorisation", help="Segments of each run to test for memorisation.", min=0)
    ] = 0,
    recognise: Annotated[
        int | None,
        typer.Option(
            "--recognise",
            help="Steps of each whole segment whose training to recognise; 0: none.",
            min=0,
            show_default="2",
        ),
    ] = None,
    sensitivity: Annotated[
        int, typer.Option("--sensitivity", help="Steps of each whole segment to test for how weights respond.", min=0)
    ] = 0,
    records: Annotated[int, typer.Option("--records", help="Random records for the Prover to open.", min=0)] = 0,
    peak: Annotated[
        float, typer.Option("--peak-flops", help="Most FLOP/s that a chip can do; 0: by its type.", min=0)
    ] = 0,
    regeneration: Annotated[
        float,
        typer.Option("--regeneration-seconds", help="For a Prover to make a segment's logs; 0: an hour.", min=0),
    ] = 0,
    chosen_order: Annotated[
        str, typer.Option("--chosen-order", help="Severity of an order of data that the Prover chose; default none.")
    ] = "",
    wait: Annotated[bool, typer.Option("--watch", help="Follow the inspection until it ends.")] = False,
    as_json: Json = False,
) -> None:
    """Start to draw chips and inspect them; prints the inspection's identifier and returns at once.

    Without --seed the Verifier commits to a verifiable draw (neither side can steer it); `inspect draw` fetches its
    record.
    """
    given = b"" if seed is None else _bytes(seed, "--seed")
    with connected(verifier, credentials) as operator:
        identifier = operator.start(
            samples=samples,
            seed=given,
            flops_threshold=threshold,
            chip_flops_per_day=speed * _SECONDS_PER_DAY,
            period_days=period,
            snapshot_rate_per_day=rate,
            replay_device=device,
            replay_env=_environment(replay_env or []),
            sharded="cells" if cells else "all",
            chunks=chunks,
            strata_by=[each for each in strata.split(",") if each],
            allocation=allocation,
            type_flops_per_day=_speeds(type_speed or []),
            cutoff_s=cutoff,
            random_segments=random_segments,
            largest_segments=largest_segments,
            memorisation=memorisation,
            records=records,
            recognise=recognise,
            sensitivity=sensitivity,
            peak_flops=peak,
            chosen_order=chosen_order,
            regeneration_s=regeneration,
        )
        if as_json:
            print_json({"inspection": identifier, "seed": given.hex() or None})
        else:
            print(identifier, flush=True)
        if wait:
            from rich.console import Console

            follow(operator, identifier, Console(stderr=True))


@app.command()
def watch(
    inspection: Inspection,
    verifier: Address,
    credentials: Directory,
) -> int:
    """Follow an inspection until it ends."""
    from rich.console import Console

    with connected(verifier, credentials) as operator:
        follow(operator, operator.whole(inspection), Console())
    return Exit.NOTHING_FOUND


def follow(operator: Operator, inspection: str, console: Any) -> None:
    """Shows the progress of an inspection as a bar until it ends.

    Raises:
        WeighbridgeError: The inspection failed.
    """
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from weighbridge.cli._exits import one_line

    updates = operator.watch(inspection)
    first = next(updates)  # an error comes before there is a bar
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bars:
        bar = bars.add_task("inspection", total=None)
        for update in chain([first], updates):
            if update.stage == "failed":
                raise WeighbridgeError(f"the inspection failed: {update.message}", code="inspection.failed")
            bars.update(
                bar,
                description=escape(one_line(f"{update.stage}: {update.message}")),
                completed=update.done,
                total=update.total or None,
            )
        bars.update(bar, description="inspection complete", completed=1, total=1)


@app.command()
def report(
    inspection: Inspection,
    verifier: Address,
    credentials: Directory,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the report's files here.")] = None,
    as_json: Json = False,
) -> int:
    """Fetch a report: exit 0 if nothing was found, 1 if something was."""
    from verifier.report.signing import open_report

    with connected(verifier, credentials) as operator:
        signed = operator.signed_report(operator.whole(inspection))
    fetched = open_report(signed).report
    if out is not None:
        write_report(fetched, out, signed)
    if as_json:
        print_json(fetched)
    else:
        print(as_text(fetched), end="")
    return outcome(fetched)


def write_report(fetched: dict[str, Any], out: Path, signed: bytes | None = None) -> Path:
    """Writes `report.json`, `report.html` and the signed `report.dsse` into a directory; returns the page's path."""
    import json

    from verifier.report.page import render_html

    out.mkdir(parents=True, exist_ok=True)
    (out / "report.json").write_text(json.dumps(fetched, indent=2) + "\n", encoding="utf-8")
    if signed is not None:
        (out / "report.dsse").write_bytes(signed)
    page = out / "report.html"
    page.write_text(render_html(fetched), encoding="utf-8")
    return page


def print_outcome(fetched: dict[str, Any]) -> None:
    """Prints the outcome of an inspection as a few lines of text, without its findings."""
    from verifier.report import extent, false_accusation
    from verifier.report.earlier_reports import as_current

    fetched = dict(as_current(fetched))
    counts = fetched["counts"]
    nothing = extent.nothing_checked(fetched)
    print(nothing or fetched["verdict"])
    print(f"{counts['sampled']} of {counts['registered']} chips drawn; {silence(counts, nothing)}")
    given = counts.get("explained_given_collectives", 0)
    apart = f", {given} given the results of collectives" if given else ""
    print(f"{counts['snapshots']} snapshots, {counts['explained']} explained{apart}")
    print(headline(fetched["miss"]))
    print(proven(fetched["probability"]["proven"]))
    print(false_accusation.in_words(fetched["false_accusation"]))
    print(observed_time(fetched["observed"]))
    if replays := extent.replays_in_words(fetched):
        print(f"replays: {replays}")
