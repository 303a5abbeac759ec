"""`weighbridge console`: read-only pages over a Verifier's database, in the browser."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weighbridge.cli import _packages
from weighbridge.cli._exits import print_json
from weighbridge.cli._inputs import Json, require_database
from weighbridge.cli.inspect.connection import bench_here
from weighbridge.core.errors import UsageError

if TYPE_CHECKING:
    from verifier.console.evidence_files import EvidenceFiles
    from verifier.registry import Registry


def command(
    db: Annotated[
        str,
        typer.Option(
            "--db",
            envvar="WEIGHBRIDGE_DB",
            help="The Verifier's registry: SQLite file, or URL.",
            default_factory=str,
            show_default="that of the bench here",
        ),
    ],
    credentials: Annotated[
        Path | None,
        typer.Option("--credentials", help="Directory of the console's role certificate: Verifier or operator."),
    ] = None,
    cache: Annotated[
        Path | None, typer.Option("--cache", help="The Verifier's cache, to offer evidence for download.")
    ] = None,
    manufacturer: Annotated[
        Path | None, typer.Option("--manufacturer", help="The chip manufacturer's root, for the same.")
    ] = None,
    report_key: Annotated[
        Path | None, typer.Option("--report-key", help="The key that signs reports, for the same.")
    ] = None,
    address: Annotated[
        str, typer.Option("--address", help="host:port to listen at; port 0 picks a free one.")
    ] = "127.0.0.1:8443",
    address_file: Annotated[
        Path | None, typer.Option("--address-file", help="Write the address here once it serves.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Serve read-only pages over a Verifier's database: fleet, inspections, snapshots, chips, search.

    A browser signs in with the certificate of an operator or a Verifier (`weighbridge identity browser`). Without --db,
    it serves the bench of this directory. Without --cache, --manufacturer and --report-key it uses no key of the
    Verifier, and pages name the command that exports evidence.
    """
    _packages.require("fastapi", "uvicorn")
    from verifier.console import pages
    from verifier.console.reading import Reading
    from verifier.console.serving import served
    from verifier.console.sign_in import Door
    from verifier.registry import Registry
    from verifier.report.signing import KEY
    from weighbridge.core import secret_files
    from weighbridge.rpc import serving

    logging.basicConfig(level=logging.WARNING)
    secret_files.keep_to_owner()
    if not db:
        verifier = bench_here("--db").directory / "verifier"
        db, credentials = str(verifier / "registry.sqlite"), credentials or verifier / "credentials"
        cache, report_key = cache or verifier / "cache", report_key or verifier / f"registry.sqlite{KEY}"
        manufacturer = manufacturer or verifier.parent / "manufacturer" / "authority.pem"
    if credentials is None:
        raise UsageError("name --credentials, the directory of the console's role certificate")
    require_database(db)
    door = Door(credentials)
    registry = Registry(db, read_only=True)
    try:
        evidence = _evidence(registry, cache, manufacturer, report_key)
        app = pages.create(Reading(registry), evidence, cache=str(cache or "CACHE"), db=registry.database.name)
        stop = serving.AskedToStop()
        with served(app, door, address) as bound:
            if address_file is not None:
                serving.write_address(address_file, bound)
            if as_json:
                print_json({"address": bound, "url": f"https://{bound}/"})
            else:
                print(f"Console serves at https://{bound}/")
            sys.stdout.flush()
            stop.wait()
    finally:
        registry.close()


def _evidence(
    registry: Registry, cache: Path | None, manufacturer: Path | None, report_key: Path | None
) -> EvidenceFiles | None:
    """Returns what puts evidence together, if all that it needs is named.

    Raises:
        UsageError: Only a part of it is named, or cannot be used.
    """
    if cache is None and manufacturer is None and report_key is None:
        return None
    if cache is None or manufacturer is None or report_key is None:
        raise UsageError("evidence needs --cache, --manufacturer and --report-key; name all three or none")
    from verifier.console.evidence_files import EvidenceFiles
    from verifier.evidence.export import Source
    from verifier.report import signing
    from verifier.store.cache import Cache
    from weighbridge.cli.chip import description

    if not cache.is_dir():
        raise UsageError(f"{cache} is no directory; name the Verifier's cache")
    if not report_key.is_file():
        raise UsageError(f"{report_key} does not exist; evidence is signed with the key that signs reports")
    root = description.read_root(manufacturer)
    key = signing.load_key(report_key)
    return EvidenceFiles(
        Source(registry=registry, cache=Cache(cache, read_only=True), report_key=key, manufacturer=root)
    )
