"""Inspections of parties whose keys were stolen: what answers with a revoked certificate counts as silent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.exactly import found
from support.station import ids
from support.workers_here import workers_here
from support.written_chips import Bench, WrittenChip

from verifier.registry import Chip
from weighbridge.attest import role_certificate
from weighbridge.attest.identity import Credentials
from weighbridge.cli.inspect.operator import VerifierUnreachableError, connect
from weighbridge.rpc import endpoints


def revoke(bench: Bench, credentials: Credentials) -> None:
    """Revokes a certificate; the Verifier has the new list."""
    bench.authority.revoke([role_certificate.read(credentials.certificate).serial])
    bench.verifier = bench.authority.issue_role("verifier", "v")


def inspected(bench: Bench, runs: Path, prover: Credentials, chip: WrittenChip) -> dict[str, Any]:
    with bench.shown(runs, credentials=prover) as address, workers_here():
        bench.ueids[chip.ueid.hex()] = chip.ueid
        bench.registry.register(Chip(ueid=chip.ueid, address=bench.address, prover_address=address))
        return bench.inspect(chip.ueid.hex())


def test_a_revoked_prover_and_a_revoked_chip_host_are_not_asked(bench: Bench, honest: Path) -> None:
    prover, thief = (bench.authority.issue_role("prover", "p") for _ in range(2))
    chip = bench.at_end(honest)
    revoke(bench, thief)
    calm = inspected(bench, honest.parent, prover, chip)
    assert found(calm) == set(), calm["findings"]
    stolen = inspected(bench, honest.parent, thief, chip)
    assert ids(stolen) == ["prover.unreachable"]
    assert "prover p is revoked" in stolen["findings"][0]["message"]
    assert not stolen["chips"][0]["verified"]
    assert stolen["miss"]["p"] < calm["miss"]["p"]
    revoke(bench, bench.host)
    assert ids(inspected(bench, honest.parent, prover, chip)) == ["chip.unreachable"]


def test_an_operator_is_told_that_its_verifier_is_revoked(bench: Bench, tmp_path: Path) -> None:
    good, thief = (bench.authority.issue_role("verifier", name) for name in ("good", "thief"))
    revoke(bench, thief)
    bench.authority.issue_role("operator", "o").save(tmp_path / "operator")
    for credentials in (good, thief):
        server, address = endpoints.server(credentials, allow={})
        server.start()
        if credentials is good:
            with connect(address, tmp_path / "operator"):
                pass
        else:
            with (
                pytest.raises(VerifierUnreachableError, match="thief is revoked"),
                connect(address, tmp_path / "operator"),
            ):
                pass
        server.stop(0)
