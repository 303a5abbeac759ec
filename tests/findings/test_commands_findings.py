"""Findings that a command shows when it cannot do what it was asked for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.clean_runs import forged
from support.exactly import refused
from support.forging import at_step
from support.written_chips import Bench

from verifier.model.reference_values import FirmwarePolicy
from verifier.service import serve
from weighbridge.cli.inspect.operator import connect


@pytest.mark.finding("replay.comparison")
def test_a_run_that_does_not_replay_cannot_be_compared(honest: Path, tmp_path: Path) -> None:
    """Its checksums are of something else than its tape computes, so what it had there is not known."""
    liar = forged(honest, tmp_path / "liar", at_step(1, lambda _, f: f.update(checksums=bytes(8) + f["checksums"][8:])))
    assert refused("compare", honest, liar) == "replay.comparison"


@pytest.mark.finding("inspection.failed")
def test_an_inspection_whose_verifier_lost_its_disk(bench: Bench, honest: Path, tmp_path: Path) -> None:
    """A file lies where the directory of fetched transcripts was; the Prover is not blamed for it."""
    chip = bench.at_end(honest)
    root = bench.manufacturer.certificate
    with (
        bench.shown(bench.runs) as prover,
        serve(
            db=str(tmp_path / "registry.db"),
            cache=tmp_path / "cache",
            credentials=bench.verifier,
            manufacturer=root,
            firmware=FirmwarePolicy.of([bench.root / "firmware.img"], root),
        ) as address,
        connect(address, bench.root / "operator") as operator,
    ):
        operator.register(ueid=chip.ueid, chip=bench.address, prover=prover, owner="", site="", chip_type="")
        shutil.rmtree(tmp_path / "cache")
        (tmp_path / "cache").write_text("in the way")
        identifier = operator.start(
            samples=1, seed=bytes(16), flops_threshold=2.0, chip_flops_per_day=1.0, period_days=2.0,
            snapshot_rate_per_day=1.0,
        )  # fmt: skip
        options = ("--verifier", address, "--credentials", bench.root / "operator")
        assert refused("inspect", "watch", identifier, *options) == "inspection.failed"
