# ruff: noqa: N802 (gRPC names the methods)
"""Each finding about the files of a transcript, alone in the report of an inspection."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.clean_runs import END
from support.exactly import exactly, found, refused
from support.forging import resign
from support.written_chips import Bench, WrittenChip

from protos.weighbridge.v1 import prover_pb2
from prover.service import ProverService
from verifier.store.cache import Cache, FetchLimits
from weighbridge.core.bounded import DEFAULT_LIMITS
from weighbridge.numerics.rounding import rounding_log
from weighbridge.transcript.state import read_checkpoint, write_checkpoint
from weighbridge.transcript.steps import checkpoint_path, pack_logs, read_logs
from weighbridge.transcript.tensor_file import TensorFile, write_tensors
from weighbridge.transcript.writer import MANIFEST


@pytest.fixture(scope="module")
def chip(bench: Bench, honest: Path) -> WrittenChip:
    return bench.at_end(honest)


def test_an_honest_run_has_no_findings(bench: Bench, chip: WrittenChip) -> None:
    report = bench.inspected(bench.runs, chip)
    assert found(report) == set(), report["findings"]
    assert report["counts"]["verified"] == 1


# -- what lies on the Prover's disk ------------------------------------------------------------------------------------


def last(run: Path, folder: str) -> Path:
    """The last file of a folder of a transcript."""
    return max((run / folder).iterdir())


def altered(run: Path) -> None:
    file = last(run, "batches")
    data = file.read_bytes()
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def missing(run: Path) -> None:
    last(run, "tapes").unlink()


def unlisted(run: Path) -> None:
    (run / "notes.txt").write_text("beside")


def longer(run: Path) -> None:
    with last(run, "batches").open("ab") as file:
        file.write(b"\0")


def no_manifest(run: Path) -> None:
    (run / MANIFEST).write_bytes(b"{}")


def unsigned(run: Path) -> None:
    """Another time of signing, under the old signature."""
    envelope = json.loads((run / MANIFEST).read_bytes())
    statement = json.loads(base64.b64decode(envelope["payload"]))
    statement["predicate"]["created"] = "2020-01-01T00:00:00Z"
    payload = json.dumps(statement, sort_keys=True, separators=(",", ":"))
    envelope["payload"] = base64.b64encode(payload.encode()).decode()
    (run / MANIFEST).write_text(json.dumps(envelope, sort_keys=True, separators=(",", ":")))


def without_logs(run: Path) -> None:
    """The Prover signs a transcript of which a part is left out."""
    last(run, "rounding").unlink()
    resign(run)


def other_log(run: Path) -> None:
    """The Prover signs other logs beside the old records; and so on."""
    file = last(run, "rounding")
    logs = read_logs(file, DEFAULT_LIMITS)
    entries = rounding_log.decode(logs[-1], max_entries=1 << 20)
    logs[-1] = rounding_log.encode(entries[1:]) if entries else b"\1" + logs[-1]
    file.write_bytes(pack_logs(logs))
    resign(run)


def other_batch(run: Path) -> None:
    file = last(run, "batches")
    old = TensorFile(file)
    tensors = {name: old.read(name).clone() for name in old}
    tensors["2/batch/y"] = (tensors["2/batch/y"] + 1) % 4
    write_tensors(file, tensors)
    resign(run)


def other_weights(run: Path) -> None:
    file = run / checkpoint_path(1)
    old = read_checkpoint(file, DEFAULT_LIMITS)
    name = "model.4.weight"
    write_checkpoint(file, replace(old, storages={**old.storages, name: torch.zeros_like(old.storages[name])}))
    resign(run)


@pytest.mark.parametrize(
    ("tamper", "expected"),
    [
        pytest.param(tamper, expected, marks=pytest.mark.finding(expected))
        for tamper, expected in (
            (altered, "transcript.file.altered"),
            (missing, "transcript.file.missing"),
            (unlisted, "transcript.file.unlisted"),
            (longer, "transcript.file.oversized"),
            (no_manifest, "transcript.manifest.malformed"),
            (unsigned, "transcript.manifest.signature"),
            (without_logs, "transcript.malformed"),
            (other_log, "transcript.rounding.differs"),
            (other_batch, "transcript.batch.differs"),
            (other_weights, "transcript.checkpoint.differs"),
        )
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_was_done_to_the_files(
    bench: Bench, honest: Path, chip: WrittenChip, tmp_path: Path, tamper: Callable[[Path], None], expected: str
) -> None:
    shutil.copytree(honest, tmp_path / "runs" / "run")
    tamper(tmp_path / "runs" / "run")
    report = bench.inspected(tmp_path / "runs", chip)
    exactly(report, expected)
    assert report["counts"]["verified"] == 0


# -- what a Prover's service sends -------------------------------------------------------------------------------------


class Unknown(ProverService):
    """Names a transcript that it does not have."""

    def Explain(self, request: Any, context: Any) -> prover_pb2.ExplainResponse:
        return prover_pb2.ExplainResponse(explained=True, transcript_id="0" * 64, step=END, op=0)


class Another(ProverService):
    """Sends another transcript than was asked for."""

    def FetchTranscript(self, request: Any, context: Any) -> Iterator[prover_pb2.FetchTranscriptResponse]:
        request.id = next(each.id for each in self._archive.transcripts() if each.id != request.id)
        yield from super().FetchTranscript(request, context)


class Outside(ProverService):
    """Sends a file that would lie outside the Verifier's directory."""

    def FetchTranscript(self, request: Any, context: Any) -> Iterator[prover_pb2.FetchTranscriptResponse]:
        yield prover_pb2.FetchTranscriptResponse(path="../../authorized_keys", offset=0, data=b"ssh", last=True)


class Gap(ProverService):
    """Leaves out the beginning of a file."""

    def FetchTranscript(self, request: Any, context: Any) -> Iterator[prover_pb2.FetchTranscriptResponse]:
        for piece in super().FetchTranscript(request, context):
            piece.offset += 7
            yield piece


@pytest.mark.parametrize(
    ("service", "expected"),
    [
        pytest.param(service, expected, marks=pytest.mark.finding(expected))
        for service, expected in (
            (Unknown, "transcript.unknown"),
            (Another, "transcript.fetch.id"),
            (Outside, "transcript.fetch.path"),
            (Gap, "transcript.fetch.order"),
        )
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_a_prover_sends(
    bench: Bench, honest: Path, chip: WrittenChip, tmp_path: Path, service: type[ProverService], expected: str
) -> None:
    shutil.copytree(honest, tmp_path / "runs" / "run")
    shutil.copytree(honest, tmp_path / "runs" / "other")
    resign(tmp_path / "runs" / "other", complete=False)
    exactly(bench.inspected(tmp_path / "runs", chip, service=service), expected)


@pytest.mark.finding("transcript.fetch.oversized")
def test_more_than_the_verifier_fetches(bench: Bench, chip: WrittenChip, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", FetchLimits(total=10_000))
    exactly(bench.inspected(bench.runs, chip, cache=cache), "transcript.fetch.oversized")


@pytest.mark.finding("transcript.write")
def test_a_copy_where_nothing_can_be_written(honest: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert refused("transcript", "export", honest, tmp_path / "file" / "out") == "transcript.write"
