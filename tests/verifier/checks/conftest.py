"""What the checks of snapshots work on, with nothing against it."""

from __future__ import annotations

import pytest
from support.snapshot_facts import make
from support.untrained_transcripts import write_transcript

from firmware_sim.device import Device
from verifier.model.facts import SnapshotFacts
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.execution.transcript_facts import OpenedTranscript, open_confined


@pytest.fixture(scope="module")
def transcript(tmp_path_factory: pytest.TempPathFactory, device: Device) -> OpenedTranscript:
    """A transcript in which the chip took a snapshot in each step."""
    path = tmp_path_factory.mktemp("runs") / "run"
    write_transcript(path, ueid=device.ueid)
    return open_confined(path)


@pytest.fixture
def honest(device: Device, manufacturer: CertificateAuthority, transcript: OpenedTranscript) -> SnapshotFacts:
    """A snapshot at step 2, operation 4, explained, opened and replayed, of a committed transcript."""
    return make(device, manufacturer, transcript)
