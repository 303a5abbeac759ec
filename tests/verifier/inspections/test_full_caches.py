"""An inspection whose cache is full: what is unused makes room, and if nothing can, no Prover is blamed for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.exactly import found
from support.served_pieces import pieces
from support.untrained_transcripts import write_transcript
from support.written_chips import Bench

from verifier.store.cache import Cache
from verifier.store.cache_room import Budget, StorageError


def test_what_a_prover_filled_the_cache_with_before_makes_room(bench: Bench, honest: Path, tmp_path: Path) -> None:
    """The attack: transcripts of former inspections fill the disk, and an honest Prover's cannot be fetched."""
    size = sum(each.stat().st_size for each in honest.rglob("*") if each.is_file())
    old = write_transcript(tmp_path / "old", name="old")
    cache = Cache(tmp_path / "cache", budget=Budget(total=size + 1))
    cache.get(old, pieces(tmp_path / "old"))
    cache.room.hold("new")
    report = bench.inspected(bench.runs, bench.at_end(honest), cache=cache)
    assert found(report) == set(), report["findings"]
    assert report["verdict"] == "clean"
    assert [cache.has(name) for name in (old, report["transcripts"][0]["id"])] == [False, True]
    assert cache.room.used <= size + 1


@pytest.mark.parametrize(
    ("budget", "option"), [(Budget(total=1000), "--cache-bytes"), (Budget(reserve=1 << 60), "--cache-reserve")]
)
def test_without_room_the_inspection_fails_and_says_what_to_do(
    bench: Bench, honest: Path, tmp_path: Path, budget: Budget, option: str
) -> None:
    with pytest.raises(StorageError, match=option) as caught:
        bench.inspected(bench.runs, bench.at_end(honest), cache=Cache(tmp_path, budget=budget))
    assert str(tmp_path) in str(caught.value)
