# ruff: noqa: N802 (gRPC names the methods)
"""Each finding about the data of a run, alone in the report of an inspection."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cbor2
import pytest
from support.clean_runs import RECORDS, record
from support.exactly import exactly, found
from support.forging import resign
from support.written_chips import Bench

from protos.weighbridge.v1 import prover_pb2
from prover.service import ProverService
from verifier.model.policies import SegmentPolicy, TranscriptPolicy
from weighbridge.core.digests import cbor
from weighbridge.transcript.data import DataCommitment
from weighbridge.transcript.writer import DRAFT, LEAVES, ORDER

EVERY = SegmentPolicy(random=0, largest=0, records=len(RECORDS))


def test_an_honest_run_that_opens_its_records_has_no_findings(bench: Bench, honest: Path) -> None:
    report = bench.inspected(bench.runs, bench.at_end(honest), segments=EVERY)
    assert found(report) == set(), report["findings"]
    (opened,) = report["evidence"]["records"]
    assert opened["opened"] == len(RECORDS)


@pytest.mark.finding("data.not_precommitted")
def test_data_that_nobody_committed_to(bench: Bench, tmp_path: Path) -> None:
    run = record(tmp_path / "runs" / "run", data=None)
    exactly(bench.inspected(tmp_path / "runs", bench.at_end(run)), "data.not_precommitted")


def committed_afterwards(honest: Path, run: Path, data: DataCommitment) -> Path:
    """A run whose commitment was written to order, beside step records that stayed as they were."""
    shutil.copytree(honest, run)
    draft = cbor2.loads((run / DRAFT).read_bytes())
    (run / DRAFT).write_bytes(cbor({**draft, "data": data.summary()}))
    (run / LEAVES).write_bytes(data.leaves)
    (run / ORDER).write_bytes(data.order_bytes())
    resign(run)
    return run


@pytest.mark.finding("data.order.differs")
def test_another_order_than_the_committed_one(bench: Bench, honest: Path, tmp_path: Path) -> None:
    data = DataCommitment.over(RECORDS, list(reversed(range(len(RECORDS)))))
    run = committed_afterwards(honest, tmp_path / "runs" / "run", data)
    exactly(bench.inspected(tmp_path / "runs", bench.at_end(run)), "data.order.differs")


@pytest.mark.finding("data.record.differs")
def test_other_records_than_the_committed_ones(bench: Bench, honest: Path, tmp_path: Path) -> None:
    others = [{name: tensor + 1 for name, tensor in each.items()} for each in RECORDS]
    run = committed_afterwards(honest, tmp_path / "runs" / "run", DataCommitment.over(others, range(len(RECORDS))))
    exactly(bench.inspected(tmp_path / "runs", bench.at_end(run)), "data.record.differs")


STRICT = TranscriptPolicy(order="violation")


@pytest.mark.finding("data.order.chosen")
def test_an_order_that_the_prover_chose(bench: Bench, honest: Path) -> None:
    exactly(bench.inspected(bench.runs, bench.at_end(honest), transcripts=STRICT), "data.order.chosen")


class Hiding(ProverService):
    """Does not open the first of the records that it is asked for."""

    def OpenRecords(self, request: Any, context: Any) -> Iterator[prover_pb2.OpenRecordsResponse]:
        opened = super().OpenRecords(request, context)
        next(opened)
        yield from opened


@pytest.mark.finding("data.record.unopened")
def test_a_record_that_nobody_shows(bench: Bench, honest: Path) -> None:
    report = bench.inspected(bench.runs, bench.at_end(honest), service=Hiding, segments=EVERY)
    exactly(report, "data.record.unopened")
