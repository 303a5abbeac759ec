"""The cache directory stays within its budget: what was used longest ago goes, what is in use or was uploaded stays."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.served_pieces import pieces
from support.untrained_transcripts import write_transcript

from verifier.store.cache import Cache, FetchLimits
from verifier.store.cache_room import Budget, Room, StorageError
from weighbridge.core.errors import TranscriptError, UsageError


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Path]]:
    """Four transcripts of one size: identifier and directory."""
    root = tmp_path_factory.mktemp("runs")
    return [(write_transcript(root / name, name=name), root / name) for name in "abcd"]


def size(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def fetch(cache: Cache, run: tuple[str, Path], at: int) -> None:
    """Fetches a transcript, and sets when that was: clocks of file systems are coarse."""
    cache.get(run[0], pieces(run[1]))
    os.utime(cache.root / run[0], (at, at))


def there(cache: Cache, runs: Sequence[tuple[str, Path]]) -> str:
    return "".join(path.name for identifier, path in runs if cache.has(identifier))


def test_what_was_used_longest_ago_makes_room(tmp_path: Path, runs: list[tuple[str, Path]]) -> None:
    budget = Budget(total=2 * max(size(path) for _, path in runs) + 10)
    cache = Cache(tmp_path, budget=budget)
    for at, run in enumerate(runs[:2], 1000):
        fetch(cache, run, at)
    assert cache.find(runs[0][0]) is not None  # used again
    fetch(cache, runs[2], 1002)
    assert there(cache, runs) == "ac"
    cache = Cache(tmp_path, budget=budget)  # after a restart everything is known from the disk
    assert cache.room.used == size(tmp_path)
    fetch(cache, runs[3], 1003)
    assert there(cache, runs) == "ad", "what was used last stays"
    assert cache.room.used == size(tmp_path) <= 2 * max(size(path) for _, path in runs) + 10
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(runs[place][0] for place in (0, 3))


def test_what_a_running_inspection_uses_stays_also_after_a_restart(
    tmp_path: Path, runs: list[tuple[str, Path]]
) -> None:
    """The attack: a Prover's many transcripts push those out that the inspection has not replayed yet."""
    budget = Budget(total=2 * max(size(path) for _, path in runs) + 10)
    cache = Cache(tmp_path, budget=budget)
    cache.room.hold("one")
    fetch(cache, runs[0], 1000)
    fetch(cache, runs[1], 1001)
    for again in (cache, Cache(tmp_path, budget=budget)):
        with pytest.raises(StorageError, match=r"--cache-bytes.*raise that budget") as caught:
            again.get(runs[2][0], pieces(runs[2][1]))
        assert str(tmp_path) in str(caught.value)
        assert there(again, runs) == "ab"
        assert not list(tmp_path.glob("partial-*"))
        assert again.room.held() == ["one"]
    again.room.release("one")
    fetch(again, runs[2], 1002)
    assert there(again, runs) == "bc"
    assert again.room.held() == []


def test_the_end_of_an_inspection_prunes_what_a_smaller_budget_does_not_hold(
    tmp_path: Path, runs: list[tuple[str, Path]]
) -> None:
    for at, run in enumerate(runs, 1000):
        fetch(Cache(tmp_path), run, at)
    cache = Cache(tmp_path, budget=Budget(total=size(runs[3][1]) + 10))
    (tmp_path / f"job-{'0' * 64}" / "rank-0").mkdir(parents=True)
    cells = tmp_path / f"job-{'0' * 64}-cells"
    cells.mkdir()
    (cells / "chunk").write_bytes(bytes(5000))
    os.utime(cells, (999, 999))
    cache.room.hold("one")
    assert cache.find(runs[0][0]) is not None
    assert there(cache, runs) == "abcd"
    cache.room.release("one")
    assert there(cache, runs) == "a"
    assert [path.name for path in tmp_path.iterdir()] == [runs[0][0]]


def test_uploaded_transcripts_are_neither_counted_nor_pruned(tmp_path: Path, runs: list[tuple[str, Path]]) -> None:
    cache = Cache(tmp_path, budget=Budget(total=max(size(path) for _, path in runs) + 10))
    shutil.copytree(runs[0][1], tmp_path / "uploaded")
    cache.room.spare(runs[0][0])
    cache.adopt(tmp_path / "uploaded", runs[0][0])
    assert cache.room.used == 0
    for at, run in enumerate(runs[1:], 1000):
        fetch(cache, run, at)
    assert there(cache, runs) == "ad"


def test_nothing_is_fetched_below_the_reserve(tmp_path: Path, runs: list[tuple[str, Path]]) -> None:
    free = shutil.disk_usage(tmp_path).free
    full = Cache(tmp_path / "full", budget=Budget(reserve=free * 2))
    with pytest.raises(StorageError, match=r"must stay free \(--cache-reserve\).*give --cache another one") as caught:
        full.get(runs[0][0], pieces(runs[0][1]))
    assert str(tmp_path / "full") in str(caught.value)
    assert list((tmp_path / "full").iterdir()) == []
    assert Cache(tmp_path / "half", budget=Budget(reserve=free // 2)).get(runs[0][0], pieces(runs[0][1]))


def test_a_prover_is_blamed_for_its_own_size_only(tmp_path: Path, runs: list[tuple[str, Path]]) -> None:
    """A transcript above the limit for one is refused as that Prover's; the budget is never a Prover's fault."""
    limited = Cache(tmp_path, FetchLimits(total=size(runs[0][1]) - 1), budget=Budget(total=1 << 40))
    with pytest.raises(TranscriptError) as caught:
        limited.get(runs[0][0], pieces(runs[0][1]))
    assert caught.value.reason == "transcript.fetch.oversized"


@pytest.mark.parametrize("wrong", [{"total": 0}, {"total": -1}, {"reserve": -1}])
def test_a_budget_that_refuses_everything_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="a cache needs"):
        Budget(**wrong)


STEPS = st.lists(
    st.tuples(st.sampled_from(["store", "use", "hold", "release", "restart"]), st.integers(0, 5), st.integers(1, 40)),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_whatever_happens_the_budget_holds_and_nothing_in_use_is_lost(
    steps: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Laws: what is counted is what is there; it is within the budget; what is held and was there still is."""
    root = tmp_path_factory.mktemp("room")
    room, held, clock = Room(root, Budget(total=100)), set[str](), 0
    for verb, number, length in steps:
        name, clock = f"{number}" * 64, clock + 1
        if verb == "store" and not (root / name).exists():
            try:
                room.use(name)
                room.arriving(length, length)
            except StorageError:
                assert room.used + length > 100
                continue
            (root / name).mkdir()
            (root / name / "file").write_bytes(bytes(length))
            room.stored(name)
        elif verb == "use" and (root / name).exists():
            room.use(name)
        elif verb == "hold":
            room.hold("one")
        elif verb == "release":
            room.release("one")
            held.clear()
        elif verb == "restart":
            room = Room(root, Budget(total=100))
        if (root / name).exists() and (root / "held" / "one" / name).exists():
            held.add(name)
        assert all((root / each).exists() for each in held)
        assert room.used == sum(size(path) for path in root.iterdir() if len(path.name) == 64) <= 100
