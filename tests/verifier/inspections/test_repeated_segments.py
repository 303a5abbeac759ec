"""Runs that repeat segments while they go on: an honest one, from the draft to the report, with real chips."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.repeating import WitnessedStation, trained
from support.station import ids
from support.workers_here import workers_here

from verifier.model.policies import SegmentPolicy
from verifier.report import consistency
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.supplements import folder_of


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WitnessedStation]:
    """Chips, their witness and a beacon."""
    with WitnessedStation(tmp_path_factory.mktemp("station")) as station:
        yield station


@pytest.fixture(scope="module")
def prover(station: WitnessedStation) -> str:
    """The address of the Prover's service."""
    return station.prover()


@pytest.mark.parametrize("logs", ["on-demand", "sketch"])
def test_an_honest_run_repeats_while_it_goes_on_and_is_clean(station: WitnessedStation, prover: str, logs: str) -> None:
    """Each segment is due. The Prover's service hands out what the Recorder made, and the report says so."""
    chip = station.watched(logs, prover)
    trained(station.runs / logs, chip.socket, station.repeats(), logs=logs)
    assert len(list(folder_of(station.runs / logs).iterdir())) == 4
    assert not (station.runs / f"{logs}.repeats.json").exists()
    assert {bool(each.sketches) for each in Transcript.open(station.runs / logs).records()} == {logs == "sketch"}
    with workers_here():
        report = station.inspect(
            logs, given={"witness": station.witness, "beacon": station.beacon},
            segments=SegmentPolicy(random=1, largest=0, recognise=0), replay_env={"OMP_NUM_THREADS": "1"},
        )  # fmt: skip
    assert set(ids(report)) <= {"data.not_precommitted"}, report["findings"]
    (told,) = report["evidence"]["repeats"]
    assert [(each["begin"], each["end"], each["state"]) for each in told["segments"]] == [
        (0, 1, "repeated"), (1, 4, "repeated"),
    ]  # fmt: skip
    assert (told["declared"]["share"], told["beacon_known"], told["abandoned"]) == (1.0, True, [])
    assert report["chips"][0]["verified"] is True
    assert consistency.check(report) == []
