"""`weighbridge gpu-evidence make` and `verify`: what a device does with the standard trainings, in one signed file."""

from __future__ import annotations

import secrets
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weighbridge.cli._exits import Exit, one_line, print_json
from weighbridge.cli._inputs import Json
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from weighbridge.cli.gpu_evidence.making import Progress

app = typer.Typer(
    help="Evidence about a device: record and replay standard trainings on it, sign the results, check them elsewhere.",
    no_args_is_help=True,
)
_SIZES = ("full", "tiny")
_STEPS = 5


@app.command()
def make(
    out: Annotated[Path, typer.Option("--out", help="File to write.")],
    device: Annotated[
        list[str] | None,
        typer.Option(help="Device under test; may be repeated. By default one CUDA device of each kind, else the CPU."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this training; may be repeated. A wrong name prints all.")
    ] = None,
    size: Annotated[
        str, typer.Option(help="full: GPT-2 124M and ResNet-50; tiny: the same kinds, for trying this out.")
    ] = "full",
    steps: Annotated[int, typer.Option(help="Updates of each training.", min=2, max=1000)] = _STEPS,
    key: Annotated[
        Path | None, typer.Option(help="Key file that signs, made if it does not exist; by default one for this only.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Record, replay and measure on this machine's devices, and sign what came out: exit 0 if every replay matched.

    Every training is recorded on each device and replayed on each other one, the CPU among them.
    """
    from weighbridge.attest.manifest import SigningKey, load_or_create_key
    from weighbridge.cli.gpu_evidence import making, places
    from weighbridge.cli.gpu_evidence.subjects import SUBJECTS

    places.require(device or ())
    unknown = [name for name in only or () if name not in SUBJECTS]
    if unknown:
        raise UsageError(f"--only takes {', '.join(SUBJECTS)}, not {unknown[0]!r}")
    if size not in _SIZES:
        raise UsageError(f"--size takes {' or '.join(_SIZES)}, not {size!r}")
    signing = SigningKey.generate() if key is None else load_or_create_key(key)
    with progress_bar(quiet=as_json) as progress:
        made = making.make(
            out, places.places(device or ()), only or list(SUBJECTS), size=size, steps=steps, key=signing,
            progress=progress,
        )  # fmt: skip
    lines = [
        f"{made.recordings[each.recording].subject}, {made.recordings[each.recording].place} to {each.place}: "
        f"{each.verdict}, {each.followed:,} of {made.recordings[each.recording].rounded:,} roundings differ"
        + (f"; {each.says}" if each.says else "")
        for each in made.replays
    ]
    failed = [each for each in made.replays if each.verdict != "match"]
    if as_json:
        counts = {"replays": len(made.replays), "matched": len(made.replays) - len(failed)}
        print_json({"file": str(out), "bytes": out.stat().st_size, "key": signing.public.hex(), **counts})
    else:
        for line in lines:
            print(one_line(line))
        print(f"{out}: {out.stat().st_size:,} bytes, signed by {signing.public.hex()}")
    return Exit.FINDINGS if failed else Exit.NOTHING_FOUND


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="The file with the evidence.")],
    key: Annotated[
        str | None, typer.Option("--key", help="Public key in hexadecimal that must have signed, or a file with it.")
    ] = None,
    sample: Annotated[int, typer.Option(help="How many recordings, drawn here, to replay on this CPU.", min=0)] = 2,
    as_json: Json = False,
) -> int:
    """Check evidence about a device on a machine without it: exit 0 if no claim failed, 1 if one did.

    A claim is verified by a replay here, consistent within the file, or only claimed by the signer.
    """
    from weighbridge.cli.gpu_evidence import verification
    from weighbridge.cli.gpu_evidence.making import LIMITS
    from weighbridge.cli.report import public_key

    wanted = None if key is None else public_key(key)
    with (
        tempfile.TemporaryDirectory(prefix="weighbridge-evidence-") as name,
        progress_bar(quiet=as_json) as progress,
    ):
        found = verification.verify(
            file, Path(name), sample=sample, seed=secrets.randbits(64), limits=LIMITS, progress=progress
        )
    claims = list(found.claims)
    if wanted is not None and wanted not in found.signers:
        claims.insert(0, verification.Claim("failed", "the key that you named did not sign this"))
    counts = Counter(claim.outcome for claim in claims)
    signers = [each.hex() for each in found.signers]
    if as_json:
        said = [{"outcome": claim.outcome, "says": claim.says} for claim in claims]
        print_json(
            {"size": found.statement.size, "signers": signers, "places": _plain(found), "claims": said, **counts}
        )
    else:
        _print(found, signers)
        for claim in claims:
            print(one_line(f"{claim.outcome}: {claim.says}"))
        print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return Exit.FINDINGS if counts["failed"] else Exit.NOTHING_FOUND


def _plain(found: Any) -> dict[str, Any]:
    return {name: dict(about) for name, about in found.statement.places.items()}


def _print(found: Any, signers: list[str]) -> None:
    """Prints what the file is, and the times that it claims."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    statement, console = found.statement, Console(highlight=False)
    print(one_line(f"made {statement.made_at}, trainings of {statement.size} size, signed by {', '.join(signers)}"))
    for name, about in statement.places.items():
        print(one_line(f"{name}, by the signer's word: {about.get('kind', '')}"))
    table = Table("claimed, ms an update", "plain", "wide", "recorded", box=None, header_style="bold")
    for each in statement.recordings:
        title = f"{each.subject} on {each.place}"
        times = statement.times.get(title, {})
        cells = [f"{times[way]['median']:,.1f}" if way in times else "-" for way in ("plain_ms", "wide_ms")]
        table.add_row(escape(title), *cells, f"{each.recorded_ms['median']:,.1f}")
    console.print(table)


@contextmanager
def progress_bar(quiet: bool) -> Iterator[Progress]:
    """A bar on standard error that says what is going on."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bars:
        bar = bars.add_task("starting", total=None)
        yield lambda what, done, of: bars.update(bar, description=escape(what), completed=done, total=of)
