"""What other workers made is taken where it is a match, and nothing else of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.sealed_here import examined, given, said, statuses
from support.station import Station

from verifier.farm import local_farm
from verifier.model import fact_codec
from verifier.model.replay_task import Outcome, Task
from verifier.registry import Registry
from verifier.sealed import parts
from verifier.sealed.case import Case
from verifier.sealed.session import Examined
from verifier.store.cache import Cache
from weighbridge.attest.sealed_part import PartResults
from weighbridge.core.digests import cbor
from weighbridge.core.errors import ChipError, ReplayWorkerError, WeighbridgeError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.worker_process import Limits


def part(station: Station, case: Case, at: Path, number: int, *, ends: bool = False) -> PartResults:
    """What a part of two makes, with all of the Prover's files."""
    at.mkdir()
    files, registry = given(station, case, at / "files"), Registry(at / "registry")
    try:
        return parts.make(
            case, files, registry, Cache(at / "cache"), station.verifier, number=number, count=2,
            limits=Limits(seconds=300), cancelled=lambda: ends,
        )  # fmt: skip
    finally:
        registry.close()


@pytest.fixture(scope="module")
def two(station: Station, case: Case, tmp_path_factory: pytest.TempPathFactory) -> Mapping[int, PartResults]:
    """What both parts of the session make."""
    root = tmp_path_factory.mktemp("parts")
    return {number: part(station, case, root / str(number), number) for number in (1, 2)}


@pytest.mark.parametrize("came", [(1, 2), (2,), ()])
def test_a_session_finds_the_same_with_what_parts_made(
    station: Station,
    case: Case,
    honest: Examined,
    two: Mapping[int, PartResults],
    came: tuple[int, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It makes no replay that a part made, and each one that none did: a part that does not come costs time alone."""
    taken = parts.taken({number: two[number] for number in came}, Limits(seconds=300))
    made, begun = taken.replays, list[str]()
    everything = {key.hex() for each in two.values() for key in each.replays}
    assert len(made) == sum(len(two[number].replays) for number in came)
    execute = local_farm.execute

    def noted(task: Task, *others: Any, **more: Any) -> Outcome:
        begun.append(task.key)
        return execute(task, *others, **more)

    monkeypatch.setattr(local_farm, "execute", noted)
    found = examined(station, case, given(station, case, tmp_path / "files"), made)
    assert set(begun) & everything == everything - set(made)
    assert (statuses(found.report), said(found.report)) == (statuses(honest.report), said(honest.report))
    assert found.report["probability"] == honest.report["probability"]
    assert found.report["counts"] == honest.report["counts"]


def test_parts_share_the_replays(two: Mapping[int, PartResults]) -> None:
    one, other = (set(each.replays) for each in two.values())
    assert one
    assert other
    assert not one & other


def test_a_part_whose_time_is_over_gives_what_it_has(station: Station, case: Case, tmp_path: Path) -> None:
    assert part(station, case, tmp_path / "late", 1, ends=True).replays == {}


def found_with(result: ReplayResult | WeighbridgeError) -> PartResults:
    return PartResults(memory=9, seconds=9, replays={bytes(32): cbor(fact_codec.outcome_to(Outcome(result, 1.0)))})


def test_a_part_neither_accuses_nor_excuses() -> None:
    """A Prover whose machine fails where the session's would find something gets nothing by it."""
    match = ReplayResult("match", (0, 3), "ab" * 32)
    enough = Limits(memory=9, seconds=9)
    assert parts.taken({1: found_with(match)}, enough).replays == {"00" * 32: Outcome(match, 1.0)}
    judged = replace(match, unit={"could": 90, "judged": 90, "unjudged_bits": 0.0})
    assert parts.taken({1: found_with(judged)}, enough).replays == {"00" * 32: Outcome(judged, 1.0)}
    failed = replace(match, recognition_failed="out of memory")
    others: list[ReplayResult | WeighbridgeError] = [
        replace(match, verdict="mismatch"), replace(match, verdict="inconclusive"), failed,
        ReplayWorkerError("out of memory"), replace(match, unit={"could": 90, "judged": 89, "unjudged_bits": 0.1}),
    ]  # fmt: skip
    for each in others:
        assert parts.taken({1: found_with(each)}, enough) == parts.Taken()
    for value in (b"", b"\xff", cbor([]), cbor([{}, 1.0]), cbor([{"steps": [0, 1]}, 1.0]), cbor(["a", "b"])):
        results = PartResults(memory=9, seconds=9, replays={bytes(32): value})
        assert parts.taken({1: results}, enough) == parts.Taken()


def test_a_part_with_less_memory_or_time_is_refused() -> None:
    """Otherwise a Prover would choose what a replay has no room to find."""
    results = found_with(ReplayResult("match", (0, 3), "ab" * 32))
    for limits in (Limits(memory=10, seconds=9), Limits(memory=9, seconds=10)):
        taken = parts.taken({1: results, 2: ChipError("refused")}, limits)
        assert taken.replays == {}
        assert taken.to_json() == {"replays": 0, "refused": {"1": "sealed.worker", "2": ChipError.code}}
