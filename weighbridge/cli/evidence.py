"""`weighbridge evidence ...`: one finding or snapshot with all that is needed to check it offline."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from weighbridge.cli._exits import Exit, findings_line, one_line, print_json
from weighbridge.cli._inputs import Json, require_database
from weighbridge.cli._shortened import resolve
from weighbridge.core.errors import UsageError

app = typer.Typer(
    help="Evidence that stands alone: export one finding or snapshot, verify it offline.", no_args_is_help=True
)

_Root = Annotated[Path, typer.Option("--manufacturer", help="The chip manufacturer's root certificate, as PEM.")]


@app.command()
def export(
    inspection: Annotated[str, typer.Argument(help="Identifier of the inspection; its beginning is enough.")],
    out: Annotated[Path, typer.Option("--out", help="File to write.")],
    db: Annotated[
        str, typer.Option("--db", envvar="WEIGHBRIDGE_DB", help="The Verifier's registry: SQLite file, or URL.")
    ],
    cache: Annotated[Path, typer.Option("--cache", help="The Verifier's directory of fetched transcripts.")],
    manufacturer: _Root,
    finding: Annotated[int | None, typer.Option("--finding", help="Number of the finding, from 0.", min=0)] = None,
    snapshot: Annotated[
        str | None, typer.Option("--snapshot", help="CHIP:ENTRY, the chip by name or UEID, which may be shortened.")
    ] = None,
    witness_key: Annotated[
        Path | None, typer.Option("--witness-key", help="The witness's key; by default beside an SQLite file.")
    ] = None,
    max_transcript: Annotated[
        int, typer.Option("--max-transcript", help="MiB of a transcript beyond which it is named only.", min=0)
    ] = 1024,
    as_json: Json = False,
) -> None:
    """Bundle one finding or snapshot of an inspection, on the Verifier's machine."""
    from verifier.evidence import export as exporting
    from verifier.registry import Registry
    from verifier.report import signing
    from verifier.store.cache import Cache
    from verifier.store.sealing import WITNESS_KEY
    from weighbridge.cli.chip import description

    require_database(db)
    if witness_key is None and "://" in db:
        raise UsageError("a database behind a URL has no file beside which the keys lie; name --witness-key")
    if not cache.is_dir():
        raise UsageError(f"{cache} is no directory; name the Verifier's cache")
    keys = db if witness_key is None else str(witness_key).removesuffix(WITNESS_KEY)
    key = Path(keys + signing.KEY)
    if not key.is_file():
        raise UsageError(f"{key} does not exist; evidence is signed with the key that signs this Verifier's reports")
    root, named = description.read_root(manufacturer), None if snapshot is None else _snapshot(snapshot)
    registry = Registry(db, read_only=True)  # a Verifier may be at work on both
    try:
        known = [each.id for each in registry.inspections(prefix=inspection)]
        inspection = resolve(inspection, known, "inspection", "weighbridge inspect list shows all")
        made = exporting.export(
            exporting.Source(
                registry=registry,
                cache=Cache(cache, read_only=True),
                report_key=signing.load_key(key),
                manufacturer=root,
            ),
            inspection, out, finding=finding, snapshot=named, max_transcript=max_transcript << 20,
        )  # fmt: skip
    finally:
        registry.close()
    if as_json:
        left = [asdict(each) for each in made.left_out]
        print_json({"file": str(out), "bytes": out.stat().st_size, "parts": len(made.parts) + 1, "left_out": left})
        return
    print(f"{out}: {len(made.parts) + 1} parts, {out.stat().st_size} bytes; index.html in it is for people")
    for each in made.left_out:
        print(one_line(f"not in it: {each.what}: {each.why}"))


@app.command()
def verify(
    file: Annotated[Path, typer.Argument(help="The file with the evidence.")],
    key: Annotated[str, typer.Option("--key", help="The Verifier's public key in hexadecimal, or a file with it.")],
    manufacturer: _Root,
    log_key: Annotated[str | None, typer.Option("--log-key", help="Key of the Verifier's log, as you know it.")] = None,
    transcript: Annotated[
        Path | None, typer.Option("--transcript", help="Directory of the transcript, if the file only names it.")
    ] = None,
    replay: Annotated[bool, typer.Option("--replay/--no-replay", help="Whether to repeat the training.")] = True,
    page: Annotated[Path | None, typer.Option("--page", help="Also write its page for people here.")] = None,
    as_json: Json = False,
) -> int:
    """Check evidence offline: exit 0 if no claim failed, 1 if one did, 2 if the file is no evidence.

    Of each claim it says whether it is verified, is not contained in the file, or failed.
    """
    from rich.console import Console

    from verifier.evidence import bundle, verification
    from verifier.evidence.page import NAME
    from weighbridge.attest.tlog import parse_key
    from weighbridge.cli.chip import description
    from weighbridge.cli.report import public_key

    trusted, root = public_key(key), description.read_root(manufacturer)
    console = Console(stderr=True)
    with (
        tempfile.TemporaryDirectory(prefix="weighbridge-evidence-") as name,
        console.status("reading the file") as status,
    ):
        parts = bundle.read(file, Path(name))
        reader = verification.Reader(
            key=trusted, manufacturer=root, log_key=None if log_key is None else parse_key(log_key.strip()),
            transcript=transcript, replay=replay,
            progress=lambda done, of: status.update(f"replaying: {done} of {of} steps"),
        )  # fmt: skip
        status.update("checking signatures, proofs and the draw")
        claims = verification.verify(parts, Path(name), reader)
        if page is not None and NAME in parts:
            _write(page, parts[NAME].read_bytes())
    counts = verification.summary(claims)
    if as_json:
        print_json({"claims": verification.to_json(claims), **counts})
    else:
        for claim in claims:
            print(one_line(f"{claim.outcome}: {claim.name}: {claim.says}"))
            for finding in claim.findings:
                print(findings_line(finding))
                if finding.expected or finding.found:
                    print(one_line(f"  expected {finding.expected}, found {finding.found}"))
        print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    return Exit.FINDINGS if counts["failed"] else Exit.NOTHING_FOUND


def _snapshot(text: str) -> tuple[str, int]:
    chip, colon, entry = text.rpartition(":")
    if not colon or not chip or not entry.isdecimal():
        raise UsageError(f"--snapshot takes CHIP:ENTRY, not {text[:80]!r}")
    return chip, int(entry)


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageError(f"cannot write {path} ({error.strerror}); choose another place") from None
