"""Memory that no snapshot can show: what programs usually hold passes, and more is stated, with its bound."""

from __future__ import annotations

import pytest
from support.snapshot_facts import make

from firmware_sim.device import Device
from verifier.checks import unobserved_memory
from verifier.model.policies import SnapshotPolicy
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.execution.transcript_facts import OpenedTranscript

GIB = 1 << 30


@pytest.mark.finding("snapshot.memory.unobserved")
@pytest.mark.parametrize(
    ("seen", "unseen", "told"),
    [(116, GIB, False), (116, 4 * GIB, False), (116, 4 * GIB + 1, True), (9 * GIB, 9 * GIB, False),
     (9 * GIB, 10 * GIB, True)],
)  # fmt: skip
def test_memory_that_no_snapshot_can_show_is_stated(
    device: Device, manufacturer: CertificateAuthority, transcript: OpenedTranscript, seen: int, unseen: int, told: bool
) -> None:
    snapshot = make(device, manufacturer, transcript, bytes=seen, unobserved=unseen)
    found = unobserved_memory.check(snapshot)
    assert [(each.id, each.severity) for each in found] == [("snapshot.memory.unobserved", "info")] * told
    assert all(each.evidence["unobserved"] == unseen for each in found)
    assert unobserved_memory.check(snapshot, SnapshotPolicy(unobserved_bytes=1e18)) == []
