"""A Verifier's database, cache and keys after two inspections of three chips: an honest, a hidden, an altered run."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from support.station import JOB, ROOT

from weighbridge.cli.demo.cases import Case
from weighbridge.cli.demo.command import train
from weighbridge.cli.demo.station import station

ALTERED = (Case("altered", "digits", "altered", 4, "replay.mismatch", "declared, trained on other data"),)
_DAY_FLOPS = 8.64e19


@dataclass(frozen=True)
class Inspected:
    """What the station left.

    Attributes:
        root: Its directory.
        inspections: Their identifiers, in order; the second draws the same chips.
        reports: Their reports.
        ueids: Of the chips, by name.
    """

    root: Path
    inspections: list[str]
    reports: list[dict[str, Any]]
    ueids: dict[str, str]

    @property
    def db(self) -> Path:
        """The Verifier's database; its keys lie beside it."""
        return self.root / "station" / "verifier" / "registry.sqlite"

    @property
    def cache(self) -> Path:
        """The Verifier's cache."""
        return self.root / "station" / "verifier" / "cache"

    @property
    def manufacturer(self) -> Path:
        """The manufacturer's root certificate."""
        return self.root / "station" / "manufacturer" / "authority.pem"

    @property
    def key(self) -> Path:
        """File with the Verifier's public key for reports."""
        return self.db.with_name(self.db.name + ".report-key.pub")

    def chip(self, name: str) -> dict[str, Any]:
        """Returns the row of a chip in the first report."""
        return next(chip for chip in self.reports[0]["chips"] if chip["ueid"] == self.ueids[name])

    def finding(self, identifier: str) -> int:
        """Returns the number of the first finding with this identifier in the first report."""
        return next(n for n, each in enumerate(self.reports[0]["findings"]) if each["id"] == identifier)


def inspected_hidden(root: Path) -> Inspected:
    """Runs a station with one chip in a confidential boot, which trains, and inspects it in the ordinary way.

    Args:
        root: A fresh directory.
    """
    made = station(
        root / "station", runs=root, chips=["secret"], rate_per_day=0.1, clock_speed=3600.0, confidential=True
    )
    with made as running:
        (chip,) = running.chips
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(JOB), "declared", str(chip.socket), str(root / "secret")]
        subprocess.run(command, check=True, cwd=ROOT, env=environment, timeout=600)
        identifier = running.operator.start(
            samples=1, seed=b"", flops_threshold=_DAY_FLOPS * 30, chip_flops_per_day=_DAY_FLOPS, period_days=30,
            snapshot_rate_per_day=0.1, cutoff_s=5,
        )  # fmt: skip
        assert [update.stage for update in running.operator.watch(identifier)][-1] == "done"
        return Inspected(root, [identifier], [running.operator.report(identifier)], {"secret": chip.ueid.hex()})


def inspected(root: Path) -> Inspected:
    """Runs a station, two inspections with committed draws, and stops it.

    Args:
        root: A fresh directory.
    """
    names = ["honest", "hidden", "altered"]
    with station(root / "station", runs=root, chips=names, rate_per_day=0.1, clock_speed=3600.0) as running:
        sockets = {chip.name: str(chip.socket) for chip in running.chips}
        environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        for mode, name in (("declared", "honest"), ("hidden", "hidden")):
            command = [sys.executable, str(JOB), mode, sockets[name], str(root / name)]
            subprocess.run(command, check=True, cwd=ROOT, env=environment, timeout=600)
        train(running, ALTERED, root, "cpu", Console(file=io.StringIO()))
        inspections = []
        for _ in range(2):
            identifier = running.operator.start(
                samples=3, seed=b"", flops_threshold=_DAY_FLOPS * 30, chip_flops_per_day=_DAY_FLOPS, period_days=30,
                snapshot_rate_per_day=0.1, replay_env={"ATEN_CPU_CAPABILITY": "default"}, random_segments=0,
                largest_segments=0, cutoff_s=5,
            )  # fmt: skip
            assert [update.stage for update in running.operator.watch(identifier)][-1] == "done"
            inspections.append(identifier)
        reports = [running.operator.report(each) for each in inspections]
        return Inspected(root, inspections, reports, {chip.name: chip.ueid.hex() for chip in running.chips})
