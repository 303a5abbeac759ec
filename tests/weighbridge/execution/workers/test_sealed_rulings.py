"""What a sealed referee rules of a game that ends in time, of one that does not, and of one that fails."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.disputed import Party, cheat, record
from support.recording_store import RecordingStore
from support.sealed_disputes import Setting, claim_of, fitting

from weighbridge.attest.sealed_dispute import DisputeTerms, Seat, order_of
from weighbridge.attest.sealed_list import list_files
from weighbridge.attest.sealed_order import Order
from weighbridge.attest.sealed_ruling import SealedRuling
from weighbridge.execution import fork_server, worker_process
from weighbridge.execution.dispute import asking
from weighbridge.execution.dispute.asking import Judgement
from weighbridge.execution.dispute.game import CHALLENGER, DEFENDER
from weighbridge.execution.dispute.sealed_files import MAX_SHOWN
from weighbridge.execution.dispute.sealed_game import Processes, play
from weighbridge.execution.worker_process import Limits
from weighbridge.execution.workers.sealed_referee import MachineError, processes, ruled

OP, BALLAST = 21, 24
BOTH = (CHALLENGER, DEFENDER)


@pytest.fixture(scope="module")
def setting() -> Setting:
    assert worker_process.prepare()
    return Setting()


@pytest.fixture(scope="module")
def order(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> Order:
    root = tmp_path_factory.mktemp("files")
    (root / "claim").write_bytes(os.urandom(8))
    seats = [setting.seat(number, list_files(root, ["claim"])) for number in range(2)]
    return order_of(setting.terms, *seats)


def ruling(setting: Setting, order: Order, files: Any, seconds: float) -> SealedRuling:
    began = time.monotonic()
    found = ruled(setting.terms, order, files, began + seconds)
    assert time.monotonic() - began < max(seconds, 0) + 1
    assert found.order == order.digest
    return found


def test_a_game_that_ends_in_time_has_verdicts(setting: Setting, order: Order) -> None:
    found = ruling(setting, order, (None, None), 60)
    assert (found.status, found.challenger, found.defender) == ("complete", "forfeit", "forfeit")


def test_a_game_without_an_end_in_time_is_late_and_says_nothing(
    recordings: RecordingStore, setting: Setting, order: Order, tmp_path: Path
) -> None:
    """Whatever a party's files make the worker do, the ruling is there when it has to leave."""
    run = recordings.get("disputed", record)
    files = tuple(setting.given(tmp_path / str(each), run, claim_of(Party(run))) for each in BOTH)
    found = ruling(setting, order, files, -1)
    assert (found.status, found.challenger, found.defender) == ("late", "none", "none")


def test_a_game_that_fails_is_aborted_and_does_not_say_by_what(setting: Setting, order: Order) -> None:
    found = ruling(setting, order, ("no path", "no path"), 60)
    assert (found.status, found.challenger, found.defender) == ("aborted", "none", "none")


# -- real processes, one of which a party's run makes die or stall -----------------------------------------------------


@dataclass
class Heavy:
    """A dispute between an honest training and a false one, which takes long and much on its way to the step."""

    setting: Setting
    files: tuple[Path, Path]

    def ruled(self, **changed: Any) -> tuple[str, str, str]:
        terms = replace(self.setting.terms, **changed)
        order = order_of(terms, *(self._seat(terms, party) for party in BOTH))
        found = ruled(terms, order, self.files, time.monotonic() + 170)
        return found.status, found.challenger, found.defender

    def _seat(self, terms: DisputeTerms, party: int) -> Seat:
        return Seat.take(
            terms, self.setting.signing[party], nonce=os.urandom(32), key=os.urandom(32), commitment=os.urandom(32)
        )


@pytest.fixture(scope="module")
def heavy(recordings: RecordingStore, tmp_path_factory: pytest.TempPathFactory) -> Heavy:
    run, root = recordings.get("disputed", record), tmp_path_factory.mktemp("heavy")
    ballast = recordings.get("disputed-ballast", partial(record, ballast=BALLAST))
    liar = cheat(run, OP)
    false = fitting(ballast, root / "run", liar)
    setting = Setting((run, false))
    claims = [claim_of(Party(run)), claim_of(liar)]
    one, other = (setting.given(root / str(party), at, claims[party]) for party, at in enumerate((run, false)))
    assert worker_process.prepare()
    return Heavy(setting, (one, other))


def test_within_what_was_agreed_on_the_liar_is_false(heavy: Heavy) -> None:
    assert heavy.ruled() == ("complete", "admissible", "false")


def test_a_run_that_exceeds_the_agreed_memory_forfeits(heavy: Heavy) -> None:
    assert heavy.ruled(memory=60 << 20) == ("complete", "admissible", "forfeit")


def test_a_judgement_has_room_for_what_an_opening_shows(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fitted into the run fits into the judgement: a liar would have `undecided` of what does not."""
    had: list[Limits] = []

    def judge(*_: Any, limits: Limits) -> Judgement:
        had.append(limits)
        return Judgement("admissible", "dispute.follows", "as the test says")

    monkeypatch.setattr(asking, "judge", judge)
    processes(setting.terms).judge(CHALLENGER, None, b"")  # type: ignore[arg-type]
    assert 2 * (had[0].memory - setting.terms.memory) >= 4 * MAX_SHOWN, "address space is twice the memory of limits"


def until_killed(heavy: Heavy, seconds: int, kill: Callable[[], bool]) -> dict[int, str]:
    """Plays with real processes; that of the liar's opening has so many seconds, and is killed or stopped."""
    terms = heavy.setting.terms
    whole, short = processes(terms), processes(replace(terms, run_s=seconds))

    def opening(party: int, run: Path, step: int, leaf: int) -> bytes | None:
        if party == CHALLENGER:
            return whole.opening(party, run, step, leaf)
        threading.Thread(target=lambda: _until(kill), daemon=True).start()
        return short.opening(party, run, step, leaf)

    found = play(terms, heavy.files, Processes(record=whole.record, opening=opening, judge=whole.judge))
    return dict(found.verdicts)


def _until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)


def forked(of: int) -> list[int]:
    """Processes below another one."""
    found = []
    for task in Path(f"/proc/{of}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *forked(child)]
    return found


def servers() -> list[int]:
    """The processes that workers are forked from here, of those that have one."""
    return [each._process.pid for each in fork_server._FORK_SERVERS.values() if not each.is_idle]


def kill_worker(by: signal.Signals = signal.SIGKILL) -> bool:
    found = [worker for server in servers() for worker in forked(server)]
    for each in found:
        os.kill(each, by)
    return bool(found)


def stop_worker() -> bool:
    return kill_worker(signal.SIGSTOP)


def kill_server() -> bool:
    found = servers()
    for each in found:
        os.kill(each, signal.SIGKILL)
    return bool(found)


def test_a_run_that_stalls_forfeits_and_takes_nothing_of_the_other_ones_time(heavy: Heavy) -> None:
    assert until_killed(heavy, 5, stop_worker) == {CHALLENGER: "admissible", DEFENDER: "forfeit"}


def test_a_run_whose_process_dies_forfeits(heavy: Heavy) -> None:
    assert until_killed(heavy, 60, kill_worker) == {CHALLENGER: "admissible", DEFENDER: "forfeit"}


def test_a_machine_that_can_start_no_process_any_more_accuses_no_party(heavy: Heavy) -> None:
    """What workers are forked from is gone, as by the kernel for want of memory: both runs would seem to die."""
    try:
        with pytest.raises(MachineError):
            until_killed(heavy, 60, kill_server)
        assert heavy.ruled()[0] == "aborted"
    finally:
        assert worker_process.prepare()
