"""What a sealed referee rules of a game that ends in time, of one that does not, and of one that fails."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from support.disputed import Party, record
from support.recording_store import RecordingStore
from support.sealed_disputes import Setting, claim_of

from weighbridge.attest.sealed_dispute import order_of
from weighbridge.attest.sealed_list import list_files
from weighbridge.attest.sealed_order import Order
from weighbridge.attest.sealed_ruling import SealedRuling
from weighbridge.execution.worker_process import Limits
from weighbridge.execution.workers.sealed_referee import ruled

LIMITS = Limits(2 << 30, 120)


@pytest.fixture(scope="module")
def setting() -> Setting:
    return Setting()


@pytest.fixture(scope="module")
def order(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> Order:
    root = tmp_path_factory.mktemp("files")
    (root / "claim").write_bytes(os.urandom(8))
    seats = [setting.seat(number, list_files(root, ["claim"])) for number in range(2)]
    return order_of(setting.terms, *seats)


def ruling(setting: Setting, order: Order, files: Any, seconds: float) -> SealedRuling:
    began = time.monotonic()
    found = ruled(setting.terms, order, files, LIMITS, began + seconds)
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
    files = tuple(setting.given(tmp_path / str(each), run, claim_of(Party(run))) for each in range(2))
    found = ruling(setting, order, files, -1)
    assert (found.status, found.challenger, found.defender) == ("late", "none", "none")


def test_a_game_that_fails_is_aborted_and_does_not_say_by_what(setting: Setting, order: Order) -> None:
    found = ruling(setting, order, ("no path", "no path"), 60)
    assert (found.status, found.challenger, found.defender) == ("aborted", "none", "none")
