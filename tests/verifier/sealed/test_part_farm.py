"""A part makes no replay that draws what it looks at: a Prover could repeat it until the draw spares a false run."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import sketched
from support.forging import forge
from support.snapshot_facts import make

from firmware_sim.device import Device
from verifier.model.collected import Collected
from verifier.model.replay_task import Task
from verifier.sealed.parts import PartFarm, matches
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.core.errors import ReplayWorkerError
from weighbridge.execution.transcript_facts import open_confined
from weighbridge.transcript.reader import Transcript


@pytest.mark.parametrize("logs", ["sketch", "full"])
def test_a_part_compares_no_sketches(
    device: Device, manufacturer: CertificateAuthority, tmp_path: Path, logs: str
) -> None:
    """One of three sketches is another step's, which some replays see and others do not."""
    run = sketched.record(tmp_path / "recorded" / "run", logs=logs)
    if logs == "sketch":
        named = Transcript.open(run).named_log(3)
        run = forge(run, tmp_path / "run", lambda step, _, fields: fields.update(rounding=named) if step == 1 else None)
    collected = Collected()
    collected.snapshots.append(make(device, manufacturer, open_confined(run)))
    farm, task = PartFarm(1, 1, collected), Task(key="ab" * 32, name="run", path=run, steps=(0, 2))
    ((_, found),) = farm.run([task], lambda *_: None)
    assert matches(found) == (logs == "full")
    assert list(farm.made) == ([] if logs == "sketch" else [task.key])
    assert isinstance(found.result, ReplayWorkerError) == (logs == "sketch")
