"""Several processes write to one registry, some are killed: log and tables never differ, and nothing said is lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import postgres
from support.custody_trade import Trade, ueid

from verifier.registry import Registry, load_key
from verifier.registry.reconstruction import compare, replay_log
from weighbridge.core.errors import UsageError

ROOT = Path(__file__).resolve().parents[3]
COUNT, MANY = 30, 40_000


def start(db: str, first: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "support.register_many", db, str(first), str(count)]
    environment = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def agrees(registry: Registry) -> bool:
    replayed = replay_log(registry.log.entries())
    return replayed.findings == [] and compare(registry, replayed) == []


def together(trade: Trade, db: str) -> None:
    """Two processes register chips while this one submits statements; one of them is killed on the way."""
    processes = [start(db, 1000, MANY), start(db, 50_000, COUNT)]
    said: list[list[int]] = [[], []]
    for place, process in enumerate(processes):
        assert process.stdout is not None
        said[place].append(int(process.stdout.readline()))
    killed, other = processes
    killed.kill()
    for number in range(2):
        trade.supply([number])
    for place, process in enumerate(processes):
        assert process.stdout is not None
        said[place] += [int(line) for line in process.stdout.read().splitlines()]
        process.wait()
    assert other.returncode == 0
    assert len(said[1]) == COUNT
    assert 1 <= len(said[0]) < MANY
    known = {chip.ueid for chip in trade.registry.everything()}
    assert known >= {ueid(number) for number in [*said[0], *said[1], *range(2)]}
    assert len(known) <= len(said[0]) + 1 + COUNT + 2  # what was killed may not have said its last
    assert agrees(trade.registry)


def test_processes_on_one_file(tmp_path: Path) -> None:
    trade = Trade(tmp_path)
    together(trade, str(tmp_path / "registry.db"))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    if not postgres.installed():
        pytest.skip("initdb and postgres are not installed")
    with postgres.server() as url:
        yield url


@pytest.mark.postgres
def test_processes_on_one_postgresql_server(url: str, tmp_path: Path) -> None:
    trade = Trade(tmp_path, url)
    together(trade, url)
    with pytest.raises(UsageError, match="right key file"):
        Registry(url, load_key(tmp_path / "another"))
    assert Registry(url).root() == trade.registry.root()
