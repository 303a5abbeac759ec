"""Transcripts that are made to harm who decodes them: the Verifier's own process decodes none, and lives on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from redteam.harm import SURVIVES_WITHIN, sent_by
from support.clean_runs import END
from support.exactly import found
from support.hostile_files import HOSTILE, TAPE, hostile
from support.peaks import peak
from support.written_chips import Bench, WrittenChip

from verifier.checks.commitment import EVENT
from verifier.contact.uploads import Uploads
from verifier.store.cache import Cache
from weighbridge.attest.manifest import Manifest, open_manifest
from weighbridge.core.bounded import file_digest
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.transcript_facts import open_confined
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.tensor_file import TensorFile
from weighbridge.transcript.writer import DRAFT, MANIFEST


@pytest.fixture(scope="module")
def warm(bench: Bench, honest: Path) -> dict[str, Any]:
    """The report of an honest inspection, after which this process has loaded what inspections need."""
    return inspected(bench, honest, bench.at_end(honest), END)


def inspected(bench: Bench, directory: Path, chip: WrittenChip, step: int) -> dict[str, Any]:
    return bench.inspected(directory.parent, chip, service=sent_by(directory, step), apart=True)


def forbidden(*_: Any, **__: Any) -> Any:
    raise AssertionError("the Verifier's own process decodes what a Prover sent")


@pytest.mark.essential
def test_the_verifiers_own_process_decodes_nothing_of_a_transcript(
    bench: Bench, honest: Path, warm: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole inspection, with every decoder of transcripts out of order in the process that holds the keys."""
    chip = bench.at_end(honest)
    monkeypatch.setattr(Transcript, "open", forbidden)
    monkeypatch.setattr(Transcript, "__init__", forbidden)
    monkeypatch.setattr(Tape, "decode", staticmethod(forbidden))
    monkeypatch.setattr(StepRecord, "from_map", forbidden)
    monkeypatch.setattr(TensorFile, "__init__", forbidden)
    report = inspected(bench, honest, chip, END)
    assert found(report) == found(warm) == set(), report["findings"]
    assert report["counts"]["verified"] == 1


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_a_verifier_survives_files_that_were_made_to_harm_it(
    kind: str, bench: Bench, honest: Path, warm: dict[str, Any], tmp_path: Path
) -> None:
    """The Prover sends them over its service, signed and listed; the report has a finding, and nothing is explained."""
    path, content = HOSTILE[kind]
    directory = hostile(honest, tmp_path / "runs" / "hostile", path, content)
    chip = bench.written()
    chip.log.event(EVENT, file_digest(directory / DRAFT)[1])
    chip.shows([(8, b"a" * 32)], [], step=END - 1, op=0, head=bytes(32), flops=0)
    with peak() as took:
        report = inspected(bench, directory, chip, END - 1)
    assert "violation" in {each["severity"] for each in report["findings"]}, report["findings"]
    assert report["counts"]["verified"] == 0
    assert took.bytes < SURVIVES_WITHIN[0]
    assert took.seconds < SURVIVES_WITHIN[1]


@pytest.mark.parametrize("kind", sorted(HOSTILE))
def test_an_upload_of_such_files_is_refused(kind: str, honest: Path, tmp_path: Path) -> None:
    """Unless it is a file of which opening reads nothing: what does not fit its records is a finding of the check."""
    path, content = HOSTILE[kind]
    directory = hostile(honest, tmp_path / "hostile", path, content)
    manifest: Manifest = open_manifest((directory / MANIFEST).read_bytes())
    uploads = Uploads(Cache(tmp_path / "cache"))
    files = {name: (directory / name).read_bytes() for name in (MANIFEST, *(name for name, _, _ in manifest.files))}
    with peak() as took:
        try:
            with uploads.receiving("a" * 64, manifest.digest) as receiving:
                for name, data in files.items():
                    receiving.begin(name, len(data), 0)
                    receiving.write(data)
                uploads.finish(receiving, "a" * 64)
        except WeighbridgeError:
            assert uploads.whole() == []
        else:
            assert path.startswith(("rounding/", TAPE))
            assert [each.id for each in uploads.whole()] == [manifest.digest]
    assert took.bytes < SURVIVES_WITHIN[0]


def test_a_worker_that_exceeds_its_budget_is_a_finding(honest: Path) -> None:
    """Whatever ends a worker ends no more than that worker."""
    from dataclasses import replace

    from weighbridge.execution.transcript_facts import OPENING

    with pytest.raises(WeighbridgeError) as caught:
        open_confined(honest, opening=replace(OPENING, seconds=0))
    assert caught.value.reason == "replay.worker"
    assert open_confined(honest).steps == END
