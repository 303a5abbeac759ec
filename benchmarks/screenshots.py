"""Pictures of a report and of the console for the documents: docs/figures/report.png and console-*.png.

Runs two real inspections of three chips (an honest run, a hidden one, one that was altered), serves the console over
them, and photographs pages in the system's Chromium. Takes about two minutes: `python -m benchmarks.screenshots`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright
from support.browser import NONE, program
from support.inspected_station import Inspected, inspected

from verifier.console import pages
from verifier.console.evidence_files import EvidenceFiles
from verifier.console.reading import Reading
from verifier.console.search import snapshot_path
from verifier.console.serving import served
from verifier.console.sign_in import Door
from verifier.evidence.export import Source
from verifier.registry import Registry
from verifier.report import signing
from verifier.report.page import render_html
from verifier.store.cache import Cache
from weighbridge.attest.certificates import load_certificate

FIGURES = Path(__file__).parents[1] / "docs" / "figures"
MOST_BYTES = 200_000
_WIDTH, _HEIGHT = 1280, 940


@contextmanager
def console(source: Inspected) -> Iterator[str]:
    """Serves the console of a station whose services have ended; yields its origin."""
    registry = Registry(source.db, read_only=True)
    evidence = Source(
        registry=registry, cache=Cache(source.cache, read_only=True),
        report_key=signing.load_key(source.key.with_suffix("")),
        manufacturer=load_certificate(source.manufacturer.read_bytes()),
    )  # fmt: skip
    app = pages.create(Reading(registry), EvidenceFiles(evidence))
    try:
        with served(app, Door(source.db.parent / "credentials"), "localhost:0") as address:
            yield f"https://{address}"
    finally:
        registry.close()


def photograph(page: Any, address: str, name: str, *, height: int = _HEIGHT) -> None:
    """Writes one picture of the upper part of a page.

    Raises:
        ValueError: It is too large for the repository.
    """
    page.set_viewport_size({"width": _WIDTH, "height": height})
    page.goto(address)
    file = FIGURES / f"{name}.png"
    page.screenshot(path=file)
    if file.stat().st_size > MOST_BYTES:
        raise ValueError(f"{file} has {file.stat().st_size} bytes; show less on it")
    print(f"{file.name}: {file.stat().st_size} bytes")


def take(source: Inspected) -> None:
    """Takes all pictures.

    Args:
        source: A station after its inspections.
    """
    report, inspection = source.reports[0], source.inspections[0]
    altered = source.chip("altered")
    chromium = program()
    if chromium is None:
        raise SystemExit(NONE)
    own = source.root / "station" / "operator" / "credentials"
    with console(source) as origin, sync_playwright() as playwright, tempfile.TemporaryDirectory() as name:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        certificate = {"origin": origin, "certPath": own / "certificate.pem", "keyPath": own / "key.pem"}
        context = browser.new_context(ignore_https_errors=True, client_certificates=[certificate])
        page = context.new_page()
        (Path(name) / "report.html").write_text(render_html(report), encoding="utf-8")
        photograph(page, (Path(name) / "report.html").as_uri(), "report")
        photograph(page, f"{origin}/", "console-fleet", height=820)
        photograph(page, f"{origin}/inspections/{inspection}", "console-inspection")
        path = snapshot_path(inspection, altered["ueid"], altered["snapshots"][0]["index"])
        photograph(page, origin + path, "console-mismatch", height=1300)
        browser.close()


def main() -> None:
    """Makes a station and takes all pictures."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--station", type=Path, help="directory for the station, which stays; taken again if it is there"
    )
    given = parser.parse_args().station
    if given is None:
        with tempfile.TemporaryDirectory() as name:
            take(inspected(Path(name)))
        return
    kept = given / "inspected.json"
    if not kept.exists():
        made = inspected(given)
        kept.write_text(json.dumps({"inspections": made.inspections, "reports": made.reports, "ueids": made.ueids}))
    take(Inspected(given.resolve(), **json.loads(kept.read_text())))


if __name__ == "__main__":
    main()
