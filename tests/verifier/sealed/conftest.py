"""A station whose case is examined in this process, once for each module that asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.outcomes import drawing, start
from support.populated_station import populate
from support.sealed_here import examined, given, inspectorate
from support.station import Station

from verifier.contact.witness import Witness
from verifier.model.agreed_population import AgreedPopulation
from verifier.sealed.case import Case
from verifier.sealed.making import make
from verifier.sealed.population import population_of
from verifier.sealed.session import Examined
from weighbridge.attest.outcome_agreement import Agreement

JOBS = {"honest": "declared", "hidden": "hidden"}


@pytest.fixture(scope="module")
def station(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """An honest run, an undeclared one, an idle chip, and one that is dead."""
    with Station(tmp_path_factory.mktemp("station")) as station:
        populate(station, JOBS, "idle")
        yield station


@pytest.fixture(scope="module")
def population(station: Station) -> AgreedPopulation:
    """The chips that both parties agree on, before there is a nonce."""
    root = station.manufacturer.certificate
    return population_of(station.registry, Witness(station.registry, root), station.verifier, root)


@pytest.fixture(scope="module")
def agreement(population: AgreedPopulation) -> Agreement:
    """What both parties agreed on."""
    return start(drawing(population, 4)).agreement


@pytest.fixture(scope="module")
def case(station: Station, agreement: Agreement, population: AgreedPopulation) -> Case:
    """All four chips."""
    return make(agreement, population, inspectorate(station, "case-cache"))


@pytest.fixture(scope="module")
def honest(station: Station, case: Case, tmp_path_factory: pytest.TempPathFactory) -> Examined:
    """A session with all that the Prover has."""
    return examined(station, case, given(station, case, tmp_path_factory.mktemp("all") / "files"))
