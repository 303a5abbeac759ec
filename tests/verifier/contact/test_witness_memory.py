"""A witness of many chips keeps few trees in memory, and answers as if it had them all."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.chip_logs import LogBuilder, make_device

from verifier.contact import witness as witnesses
from verifier.contact.witness import Witness
from verifier.registry import Chip, Registry
from weighbridge.attest import tlog
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core import merkle


def test_trees_are_forgotten_and_recomputed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witnesses, "MAX_TREES", 3)
    maker = CertificateAuthority.create("Manufacturer")
    registry = Registry(tmp_path / "registry.db")
    signer = tlog.NoteSigner("test/witness", tlog.WITNESS, bytes(32))
    own = Witness(registry, maker.certificate, signer)
    logs = [LogBuilder(make_device(tmp_path / f"chip-{number}", maker)).boot() for number in range(8)]
    for log in logs:
        registry.register(Chip(ueid=log.device.ueid, address="localhost:1"))
    for _ in range(2):
        for log in logs:
            ueid = log.device.ueid
            held, nonce = own.nonce(ueid)
            proof = merkle.Tree(map(merkle.leaf_hash, log.entries)).consistency_proof(held.size)
            own.receive(ueid, log.checkpoint(), log.head(nonce), proof, log.entries[held.size :])
            assert len(own._trees) <= 3
            log.event("later", bytes(32))
    for log in logs:
        note = own.held(log.device.ueid).checkpoint
        assert own.compare(note) == (True, note)
        assert tlog.parse_checkpoint(tlog.parse_note(note).text).size == 2
