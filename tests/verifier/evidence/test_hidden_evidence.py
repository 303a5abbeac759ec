"""Evidence of a snapshot that a confidential boot hides, and the console's page of it: they say what is not there."""

from __future__ import annotations

import html
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.inspected_station import Inspected, inspected_hidden

from verifier.console.journey import findings_about, stations
from verifier.evidence import bundle, verification
from verifier.evidence.export import Source
from verifier.evidence.verification import Claim, Reader
from verifier.registry import Registry
from verifier.report import signing
from verifier.store.cache import Cache
from weighbridge.attest.certificates import load_certificate
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.cli.main import run

WINDOW = 64


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Inspected:
    return inspected_hidden(tmp_path_factory.mktemp("hidden"))


def export(source: Inspected, out: Path, *what: str) -> Path:
    arguments = ["evidence", "export", source.inspections[0], "--out", str(out), *what, "--db", str(source.db)]
    assert run([*arguments, "--cache", str(source.cache), "--manufacturer", str(source.manufacturer)]) == 0
    return out


def row(source: Inspected) -> dict[str, Any]:
    found: dict[str, Any] = source.chip("secret")["snapshots"][0]
    return found


@pytest.fixture(scope="module")
def files(source: Inspected, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of the snapshot, and of the finding that names the chip."""
    root = tmp_path_factory.mktemp("evidence")
    snapshot = ("--snapshot", f"{source.ueids['secret']}:{row(source)['index']}")
    return {
        "snapshot": export(source, root / "snapshot.zip", *snapshot),
        "finding": export(source, root / "finding.zip", "--finding", str(source.finding("snapshot.confidential"))),
    }


def reader(source: Inspected) -> Reader:
    manufacturer = load_certificate(source.manufacturer.read_bytes())
    return Reader(key=bytes.fromhex(source.key.read_text().strip()), manufacturer=manufacturer)


def verified(source: Inspected, file: Path, root: Path) -> dict[str, Claim]:
    root.mkdir()
    claims = verification.verify(bundle.read(file, root), root, reader(source))
    return {each.name: each for each in claims}


@pytest.mark.parametrize("name", ["snapshot", "finding"])
def test_it_verifies_as_far_as_it_goes(source: Inspected, files: dict[str, Path], name: str, tmp_path: Path) -> None:
    claims = verified(source, files[name], tmp_path / "read")
    assert [each for each in claims.values() if each.outcome == "failed"] == []
    assert {claims[each].outcome for each in ("statement", "report", "subject", "draw", "log", "page")} == {"verified"}
    if name == "snapshot":
        assert "hidden" in claims["snapshot"].says
        assert claims["replay"].outcome == "verified"
        assert "unverified" in claims["replay"].says
        assert "hidden" in claims["replay"].says


def test_a_report_that_makes_up_what_is_hidden_is_found(
    source: Inspected, files: dict[str, Path], tmp_path: Path
) -> None:
    """A Verifier that states sizes of a snapshot that it never saw contradicts the chip's token."""
    root = tmp_path / "read"
    root.mkdir()
    opened = bundle.read(files["snapshot"], root)
    assert opened
    statement, signers = bundle.open_statement(opened[bundle.STATEMENT].read_bytes())
    there = verification._Bundle(root, statement, signers)
    trusting = reader(source)
    verification._report(there, trusting)
    verification._log(there, trusting)
    assert "hidden" in verification._snapshot(there, trusting)
    there.snapshot()["bytes"] = 4096  # type: ignore[index]
    with pytest.raises(verification._WrongError) as caught:
        verification._snapshot(there, trusting)
    assert {each.id for each in caught.value.findings} == {"evidence.mismatch"}


def test_its_page_says_that_nothing_was_asked(files: dict[str, Path]) -> None:
    with zipfile.ZipFile(files["snapshot"]) as archive:
        text = " ".join(re.sub(r"<[^>]+>", " ", html.unescape(archive.read("index.html").decode())).split())
    assert "memory that the chip recorded hidden" in text
    assert "confidential boot" in text
    assert "it asked, and got no answer" not in text
    assert "the chip's opening of the snapshot" in text.partition("What is not in this bundle")[2].lower()


def test_nothing_of_the_run_is_in_it(source: Inspected, files: dict[str, Path], tmp_path: Path) -> None:
    """Neither files of the transcript, nor any window of them."""
    for name, file in files.items():
        (root := tmp_path / name).mkdir()
        content = [path.read_bytes() for path in bundle.read(file, root).values()]
        assert not any("transcript" in str(path) or "opening" in str(path) for path in root.rglob("*"))
        for path in (source.root / "secret").rglob("*"):
            data = path.read_bytes() if path.is_file() else b""
            windows = [data[at : at + WINDOW] for at in range(0, len(data) - WINDOW + 1, WINDOW)]
            assert not any(window in each for window in windows if any(window) for each in content), path


def test_the_consoles_page_says_that_it_is_hidden(source: Inspected) -> None:
    report, chip = source.reports[0], source.chip("secret")
    way = {each.name.partition(" of ")[0]: each for each in stations(report, chip, row(source), None, "ab" * 32)}
    assert "hides" in way["Log entry"].says
    assert "asked no Prover" in way["Transcript"].says
    assert way["Verdict"].says == "This snapshot is unverified."
    assert {each.tone for name, each in way.items() if name not in ("Chip", "Replay")} == {"warn"}
    values = [value for each in way.values() for _, value in each.facts]
    assert not any("None" in value for value in values)
    found = findings_about(report, chip, row(source))
    assert "snapshot.confidential" in [each["id"] for each in found]
    open_one = {**row(source), "bytes": 4096}
    assert "snapshot.confidential" not in [each["id"] for each in findings_about(report, chip, open_one)]
    assert replace(way["Verdict"], says="").facts == ()


def test_the_console_serves_its_page_and_its_evidence(source: Inspected, tmp_path: Path) -> None:
    """Over TLS, to an operator, of the Verifier's own database."""
    pytest.importorskip("fastapi", reason="install the extra [console]")
    from support.console_station import ConsoleStation

    from verifier.console import pages
    from verifier.console.evidence_files import EvidenceFiles
    from verifier.console.reading import Reading
    from verifier.console.serving import served
    from verifier.console.sign_in import Door

    station = source.root / "station"
    (tmp_path / "credentials").mkdir()
    (tmp_path / "credentials" / "inspector").symlink_to(station / "operator" / "credentials")
    reading = Registry(source.db, read_only=True)
    taken = Source(
        registry=reading, cache=Cache(source.cache, read_only=True),
        report_key=signing.load_key(source.db.with_name(source.db.name + ".report-key")),
        manufacturer=load_certificate(source.manufacturer.read_bytes()),
    )  # fmt: skip
    app = pages.create(Reading(reading), EvidenceFiles(taken))
    authority = CertificateAuthority.load(station / "authority")
    index, ueid = row(source)["index"], source.ueids["secret"]
    try:
        with served(app, Door(station / "verifier" / "credentials"), "127.0.0.1:0") as address:
            console = ConsoleStation(tmp_path, authority, reading, {}, address)
            page = console.ask(f"/inspections/{source.inspections[0]}/snapshots/{ueid}/{index}")
            whole = console.ask(f"/inspections/{source.inspections[0]}")
            file = console.ask(f"/inspections/{source.inspections[0]}/evidence?chip={ueid}&entry={index}")
    finally:
        reading.close()
    assert (page.status, whole.status, file.status) == (200, 200, 200)
    text = html.unescape(page.text)
    assert "hides what that was" in text
    assert "asked no Prover" in text
    assert "snapshot.confidential" in text
    assert "None" not in re.sub(r"<p>None\.</p>", "", text)
    (tmp_path / "evidence.zip").write_bytes(file.body)
    claims = verified(source, tmp_path / "evidence.zip", tmp_path / "read")
    assert [each for each in claims.values() if each.outcome == "failed"] == []
