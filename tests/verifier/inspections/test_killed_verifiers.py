"""A Verifier that is killed with SIGKILL in an inspection, and comes back, reports what an undisturbed one does.

Chips, trainings and Prover are real processes. `benchmarks/soak_verifier_kills.py` does this often; in `make test`,
`test_service` kills one Verifier.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from support import postgres
from support.kills import Verifier, essence
from support.populated_station import populate
from support.station import Station

from verifier import units
from verifier.registry import Registry

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """An honest run, an undeclared one, and a dead chip."""
    with Station(tmp_path_factory.mktemp("station")) as station:
        populate(station, {"honest": "declared", "hidden": "hidden"})
        yield station


@pytest.fixture(scope="module")
def calm(station: Station) -> tuple[dict[str, object], list[str]]:
    """What an undisturbed Verifier reports, and the lines that it says."""
    verifier = Verifier(station, "calm")
    verifier.start()
    inspection = verifier.begin()
    said = [line for line in verifier.watch(inspection) if not line.passing]
    report = verifier.report(inspection)
    assert verifier.stop() == 0
    assert {finding["id"] for finding in report["findings"]} >= {"chip.unreachable", "snapshot.unexplained"}
    assert [chip["site"] for chip in report["chips"] if chip["verified"]] == ["honest"]
    return report, [line.message for line in said]


@pytest.mark.soak
def test_a_killed_verifier_reports_what_an_undisturbed_one_does(
    station: Station, calm: tuple[dict[str, object], list[str]]
) -> None:
    report, lines = calm
    verifier = Verifier(station, "killed")
    inspection, stages = verifier.disturbed(random.Random(3), 2, len(lines))
    assert len(stages) == 2
    assert essence(verifier.report(inspection)) == essence(report)
    said = verifier.watch(inspection)
    assert [line.stage for line in said].count("resume") == 2
    replays = lines.count("replayed honest")
    # Up to the snapshot, and two segments whole. A snapshot that was not taken at a safepoint may lie inside an
    # operation; the Verifier then replays one operation further.
    assert replays in (3, 4)
    assert [line.message for line in said].count("replayed honest") == replays, "no replay is done twice"
    assert verifier.stop() == 0
    registry = Registry(verifier.db)
    assert units.unfinished(registry.session) == []
    registry.close()


@pytest.mark.soak
def test_an_inspection_goes_on_after_an_orderly_end_in_the_middle_of_a_replay(
    station: Station, calm: tuple[dict[str, object], list[str]]
) -> None:
    verifier = Verifier(station, "stopped")
    verifier.start()
    inspection = verifier.begin()
    assert verifier.watch(inspection, lambda said: said[-1].stage == "replay")[-1].stage == "replay"
    assert verifier.stop() == 0
    verifier.start()
    assert verifier.watch(inspection)[-1].stage == "done"
    assert essence(verifier.report(inspection)) == essence(calm[0])
    assert verifier.stop() == 0


@pytest.mark.postgres
def test_the_same_on_postgresql(station: Station, calm: tuple[dict[str, object], list[str]]) -> None:
    if not postgres.installed():
        pytest.skip("no PostgreSQL on this machine")
    report, lines = calm
    with postgres.server() as url:
        options = ["--witness-key", str(station.root / "postgres.key")]
        verifier = Verifier(station, "postgres", db=url, options=options)
        inspection, stages = verifier.disturbed(random.Random(5), 2, len(lines))
        assert stages
        assert essence(verifier.report(inspection)) == essence(report)
        second = Verifier(station, "second", db=url, options=options)
        with pytest.raises(AssertionError, match="ended with 2"):
            second.start()  # the first one has the database
        assert verifier.stop() == 0
