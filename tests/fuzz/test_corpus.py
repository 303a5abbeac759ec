"""What fuzzing has found keeps the laws: each file of the committed corpus goes through its target once."""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.seeds import seeds
from fuzz.targets import TARGETS, keeps_the_laws
from support.peaks import peak

CORPUS = Path(__file__).parent / "corpus"


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_keeps_the_laws(name: str) -> None:
    files = sorted((CORPUS / name).iterdir())
    assert files, f"the corpus has nothing for {name}; run `make fuzz KEEP=1`"
    with peak() as took:
        for file in files:
            keeps_the_laws(name, file.read_bytes())
    assert took.bytes < 500e6


@pytest.fixture(scope="module")
def made() -> dict[str, list[bytes]]:
    return seeds()


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_accepts_what_is_honest(name: str, made: dict[str, list[bytes]]) -> None:
    """Fuzzing begins in the code behind the first check, and a target that refuses everything tests nothing."""
    accepted = [keeps_the_laws(name, data) for data in made[name]]
    assert any(accepted) or name in PARTLY, name


PARTLY = {
    "opened_record": "the seeds' Merkle path leads to another root",
    "report": "a report needs an inspection",
    "upload": "no manifest verifies",
}
"""Targets whose honest input needs a key or a root that no seed has."""


def test_every_corpus_has_a_target() -> None:
    assert {each.name for each in CORPUS.iterdir()} == set(TARGETS)
