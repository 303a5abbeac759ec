"""Findings about custody and draws in the reports of inspections, each alone: all chips are idle and in order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from support.exactly import exactly, found
from support.kills import Verifier
from support.station import Station

from protos.weighbridge.v1 import verifier_pb2
from verifier.registry import Chip, Party, Registry, load_key
from weighbridge.attest.custody_statements import FIELDS, Kind, Statement, encode_key, sign

SAID: dict[str, tuple[tuple[Kind, str], ...]] = {
    "registry.gap": (("installed", "thief"),),
    "registry.order": (("installed", "acme"),),
    "registry.duplicate": (("made", "fab"), ("made", "fab")),
    "registry.reappeared": (("lost", "acme"), ("installed", "acme")),
}
"""What is said of the one chip that a finding is about, and by whom; the chip is installed, and acme's."""


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """An honest chip, and one for each of the findings about custody."""
    with Station(tmp_path_factory.mktemp("station")) as station:
        for name in ("honest", *SAID):
            chip = station.chip(name)
            station.registry.register(Chip(ueid=station.ueids[name], address=chip.address, site=name, owner="acme"))
        speak(station, station.root / "registry.db")
        yield station


def speak(station: Station, path: Path) -> None:
    """Submits what is said of the chips."""
    registry = Registry(path, load_key(path.with_name("registry-key")))
    keys = {}
    for name, role in (("fab", "manufacturer"), ("acme", "owner"), ("thief", "owner")):
        keys[name] = Ed25519PrivateKey.generate()
        party = Party(name=name, roles=(role,), key=encode_key(keys[name].public_key()))
        registry.statements.declare(party)
    time_s = count(registry.now() - 100)
    for chip, sayings in SAID.items():
        for kind, by in sayings:
            statement = Statement(
                kind=kind,
                registry=registry.name,
                by=by,
                time_s=next(time_s),
                site=chip if "site" in FIELDS[kind] else "",
                chip_type="simulated" if "chip_type" in FIELDS[kind] else "",
                chips=(station.ueids[chip],),
            )
            registry.submit(sign(statement, keys[by]))
    registry.close()


def test_a_chip_of_which_nothing_is_said_has_none(station: Station) -> None:
    assert found(station.inspect("honest")) == set()


@pytest.mark.parametrize("identifier", [pytest.param(each, marks=pytest.mark.finding(each)) for each in SAID])
def test_what_is_said_of_a_drawn_chip_cannot_be(station: Station, identifier: str) -> None:
    report = station.inspect(identifier)
    exactly(report, identifier)
    assert report["counts"]["verified"] == 1  # it still answers


@pytest.mark.finding("draw.abandoned")
def test_a_verifier_that_is_killed_in_a_draw_says_so(station: Station) -> None:
    """What the draw would have been can be worked out by everybody; the inspection then draws again."""
    verifier = Verifier(station, "killed")
    verifier.start()
    request = verifier_pb2.StartInspectionRequest(
        samples=1,
        flops_threshold=2.0,
        chip_flops_per_day=1.0,
        period_days=2.0,
        snapshot_rate_per_day=1.0,
        cutoff_s=4.0,
    )
    inspection = str(verifier.call("StartInspection", request).inspection_id)
    assert "asking" in verifier.watch(inspection, lambda said: "asking" in said[-1].message)[-1].message
    verifier.kill()
    verifier.start()
    assert verifier.watch(inspection)[-1].stage == "done"
    exactly(verifier.report(inspection), "draw.abandoned")
    assert verifier.stop() == 0
