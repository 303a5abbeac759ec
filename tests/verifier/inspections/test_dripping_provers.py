"""Inspections of a Prover that answers and then drips: it is soon given up, and only its own chip is not verified."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import clean_runs
from support.exactly import found
from support.station import ids
from support.workers_here import workers_here
from support.written_chips import Bench

from prover.service import ProverService
from verifier.contact import clients
from verifier.registry import Chip


class Drips(ProverService):
    """Explains its snapshots honestly, and hands out a byte every tenth of a second of what explains them."""

    def FetchTranscript(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        for piece in super().FetchTranscript(request, context):
            for at in range(len(piece.data)):
                one = type(piece)(path=piece.path, offset=piece.offset + at, data=piece.data[at : at + 1])
                yield one
                time.sleep(0.1)


class Waits(ProverService):
    """Hands out a transcript once another Prover was asked for one as well."""

    together = threading.Barrier(2, timeout=20)

    def FetchTranscript(self, request: Any, context: Any) -> Iterator[Any]:  # noqa: N802
        self.together.wait()
        yield from super().FetchTranscript(request, context)


def test_provers_are_asked_side_by_side(bench: Bench, honest: Path, tmp_path: Path) -> None:
    other = clean_runs.record(tmp_path / "other", seed=4)
    chips = [bench.at_end(honest), bench.at_end(other)]
    with bench.shown(honest.parent, Waits) as one, bench.shown(other.parent, Waits) as two, workers_here():
        for chip, address in zip(chips, (one, two), strict=True):
            bench.ueids[chip.ueid.hex()] = chip.ueid
            bench.registry.register(Chip(ueid=chip.ueid, address=bench.address, prover_address=address))
        report = bench.inspect(*(chip.ueid.hex() for chip in chips))
    assert found(report) == set(), report["findings"]
    assert all(chip["verified"] for chip in report["chips"])


def test_a_prover_that_drips_counts_as_silent_and_holds_no_other_chip_back(
    bench: Bench, honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "FETCH_IDLE_S", 2.0)
    other = clean_runs.record(tmp_path / "other", seed=4)
    prompt, dripping = bench.at_end(honest), bench.at_end(other)
    reports, seconds = list[dict[str, Any]](), list[float]()
    for service in (ProverService, Drips):
        with bench.shown(honest.parent) as one, bench.shown(other.parent, service) as two, workers_here():
            for chip, address in ((prompt, one), (dripping, two)):
                bench.ueids[chip.ueid.hex()] = chip.ueid
                bench.registry.register(Chip(ueid=chip.ueid, address=bench.address, prover_address=address))
            begun = time.monotonic()
            reports.append(bench.inspect(prompt.ueid.hex(), dripping.ueid.hex()))
            seconds.append(time.monotonic() - begun)
    calm, dripped = reports
    assert found(calm) == set(), calm["findings"]
    assert ids(dripped) == ["prover.unreachable"]
    assert {chip["ueid"]: chip["verified"] for chip in dripped["chips"]} == {
        prompt.ueid.hex(): True,
        dripping.ueid.hex(): False,
    }
    assert dripped["miss"]["p"] < calm["miss"]["p"]
    assert seconds[1] < seconds[0] + 20
