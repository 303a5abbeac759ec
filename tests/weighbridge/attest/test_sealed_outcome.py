"""An outcome opens for its aggregator, as that of its order and worker, and in no other way."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from nacl.public import PublicKey, SealedBox
from support.sealed_orders import sealed_order

from weighbridge.attest.sealed_order import Order, SealedWorkerError
from weighbridge.attest.sealed_outcome import OUTCOME_LIMIT, AggregatorKey, seal
from weighbridge.attest.worker_signer import WorkerSigner
from weighbridge.core.errors import UsageError

BODY = b'{"verdict": "match"}'
KEY, SIGNER = AggregatorKey(os.urandom(32)), WorkerSigner()
PUBLIC = SIGNER.public


@pytest.fixture
def order() -> Order:
    return sealed_order(aggregator=KEY.public)


def refused(sealed: bytes, order: Order, signer: bytes = PUBLIC, key: AggregatorKey = KEY) -> None:
    with pytest.raises(SealedWorkerError) as caught:
        key.open(sealed, order, signer)
    assert caught.value.reason == "sealed.outcome"


def test_an_outcome_opens(order: Order) -> None:
    assert KEY.open(seal(BODY, order, SIGNER), order, PUBLIC) == BODY
    assert KEY.open(seal(b"", order, SIGNER), order, PUBLIC) == b""


@pytest.mark.finding("sealed.outcome")
def test_an_old_outcome_is_not_played_back(order: Order) -> None:
    old = seal(BODY, order, SIGNER)
    for field in ("verifier_nonce", "prover_nonce", "commitment", "prover", "measurement"):
        refused(old, replace(order, **{field: os.urandom(len(getattr(order, field)))}))
    refused(old, replace(order, steps=(3, 10)))


def test_an_outcome_of_another_worker_is_refused(order: Order) -> None:
    refused(seal(BODY, order, WorkerSigner()), order)
    refused(seal(BODY, order, SIGNER), order, bytes(32))


def test_no_other_party_reads_or_makes_one(order: Order) -> None:
    sealed = seal(BODY, order, SIGNER)
    assert BODY not in sealed
    refused(sealed, order, key=AggregatorKey(os.urandom(32)))
    refused(SealedBox(PublicKey(KEY.public)).encrypt(bytes(64) + BODY), order)


def test_an_altered_one_is_refused(order: Order) -> None:
    sealed = seal(BODY, order, SIGNER)
    for at in range(len(sealed)):
        refused(sealed[:at] + bytes([sealed[at] ^ 1]) + sealed[at + 1 :], order)
    for each in (b"", sealed[:-1], sealed + b"\x00", bytes(OUTCOME_LIMIT + 200)):
        refused(each, order)


def test_one_that_is_too_large_is_not_made(order: Order) -> None:
    with pytest.raises(SealedWorkerError):
        seal(bytes(OUTCOME_LIMIT + 1), order, SIGNER)


def test_a_key_file_is_the_owners(tmp_path: Path) -> None:
    path = tmp_path / "aggregator"
    assert AggregatorKey.load(path).public == AggregatorKey.load(path).public
    path.chmod(0o644)
    with pytest.raises(UsageError):
        AggregatorKey.load(path)
    (tmp_path / "short").write_bytes(b"x")
    (tmp_path / "short").chmod(0o600)
    for wrong in (tmp_path / "short", tmp_path / "none" / "key"):
        with pytest.raises(UsageError):
            AggregatorKey.load(wrong)
