"""A nonce buys one job, and the log of starts shows each that was asked for."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from support.sealed_orders import sealed_order

from weighbridge.attest.sealed_order import Order, SealedWorkerError
from weighbridge.attest.sealed_starts import append, read_starts


def refused(path: Path, order: Order, reason: str) -> None:
    before = path.read_bytes()
    with pytest.raises(SealedWorkerError) as caught:
        append(path, order)
    assert (caught.value.reason, path.read_bytes()) == (reason, before)


def test_every_start_is_in_the_log(tmp_path: Path) -> None:
    path = tmp_path / "starts"
    assert read_starts(path) == []
    orders = [sealed_order() for _ in range(3)]
    starts = [append(path, order) for order in orders]
    assert read_starts(path) == starts
    assert [(each.index, each.order) for each in starts] == [(i, o.digest.hex()) for i, o in enumerate(orders)]
    assert [each.previous for each in starts[1:]] == [each.head.hex() for each in starts[:-1]]


@pytest.mark.finding("sealed.nonce")
def test_a_nonce_buys_no_second_job(tmp_path: Path) -> None:
    """Neither party's, in neither place: also not with a fresh nonce of the other's."""
    path, order = tmp_path / "starts", sealed_order()
    append(path, order)
    one, two = order.verifier_nonce, order.prover_nonce
    again = [order, sealed_order(verifier_nonce=one), sealed_order(prover_nonce=two), sealed_order(prover_nonce=one)]
    for each in [*again, sealed_order(verifier_nonce=two)]:
        refused(path, each, "sealed.nonce")
    same = os.urandom(32)
    refused(path, sealed_order(verifier_nonce=same, prover_nonce=same), "sealed.nonce")
    append(path, sealed_order())


def test_two_at_once_get_one_job(tmp_path: Path) -> None:
    path, order = tmp_path / "starts", sealed_order()
    done: list[str] = []

    def ask() -> None:
        try:
            append(path, order)
            done.append("started")
        except SealedWorkerError as error:
            done.append(error.reason)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == ["sealed.nonce"] * 7 + ["started"]


@pytest.mark.finding("sealed.starts")
def test_a_damaged_log_starts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "starts"
    for _ in range(3):
        append(path, sealed_order())
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    changed = json.loads(lines[1]) | {"time": 0}
    damaged = [
        whole[:-1], whole[:-9], lines[0] + lines[2], lines[1] + lines[0] + lines[2], b"\n" + whole, b"{}\n", b"\xff\n",
        lines[0] + json.dumps(changed).encode() + b"\n" + lines[2], whole + lines[2], b"[" * 2000 + b"\n",
        b"[1]\n", whole.replace(b": ", b":"),
    ]  # fmt: skip
    for each in damaged:
        path.write_bytes(each)
        refused(path, sealed_order(), "sealed.starts")
    path.write_bytes(whole)
    append(path, sealed_order())


def test_a_log_that_was_cut_shows_in_the_place_of_the_next_start(tmp_path: Path) -> None:
    """Which attestations state: that the log was set back is seen by the party that keeps them, not by the log."""
    path = tmp_path / "starts"
    first, second = append(path, sealed_order()), append(path, sealed_order())
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    again = append(path, sealed_order())
    assert (again.index, again.previous) == (second.index, first.head.hex())
    assert again.head != second.head
