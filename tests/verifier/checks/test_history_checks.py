"""Weights, positions and tails: honest facts pass, and each lie about them is caught."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.snapshot_facts import LEAVES, make

from firmware_sim.device import Device
from verifier.checks import memory, positions, provenance, weights
from verifier.model.facts import Explanation, Opening, SnapshotFacts, TranscriptFacts
from verifier.model.policies import SnapshotPolicy
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.errors import Finding, UsageError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.transcript_facts import OpenedTranscript, open_confined
from weighbridge.transcript.chip_notes import ChipNotes
from weighbridge.transcript.writer import TranscriptWriter


def answer(snapshot: SnapshotFacts) -> ReplayResult:
    assert isinstance(snapshot.replayed, ReplayResult)
    return snapshot.replayed


def ids(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.id, finding.severity) for finding in findings]


# --- weights --------------------------------------------------------------------------------------------------------


def test_declared_weights_that_are_the_parameters(honest: SnapshotFacts) -> None:
    assert weights.check(honest) == []
    assert weights.check(replace(honest, replayed=replace(answer(honest), weights=None))) == []  # it ran on no chip


def test_other_memory_declared_as_weights(honest: SnapshotFacts) -> None:
    """A small region that never changes, in place of the model; all of it is memory that the transcript explains."""
    assert isinstance(honest.opening, Opening)
    decoy = replace(honest, opening=replace(honest.opening, weights=LEAVES[:1]))
    (finding,) = weights.check(decoy)
    assert (finding.id, finding.severity) == ("snapshot.weights.mismatch", "violation")
    assert finding.evidence == {"foreign": 8, "lacking": 100}


def test_undeclared_weights_are_asked_about(honest: SnapshotFacts) -> None:
    assert isinstance(honest.opening, Opening)
    bare = replace(honest, opening=replace(honest.opening, weights=[]))
    assert ids(weights.check(bare)) == [("snapshot.weights.mismatch", "warning")]
    claim = honest.explanation
    assert isinstance(claim, Explanation)
    assert weights.check(replace(bare, explanation=replace(claim, step=0))) == []


# --- positions ------------------------------------------------------------------------------------------------------


def at(snapshot: SnapshotFacts, transcript: OpenedTranscript, step: int, op: int, index: int) -> SnapshotFacts:
    claim = Explanation(transcript_id=transcript.digest, step=step, op=op)
    return replace(
        snapshot, index=index, explanation=claim, transcript=TranscriptFacts(id=transcript.digest, opened=transcript)
    )


@pytest.fixture(scope="module")
def repeated(tmp_path_factory: pytest.TempPathFactory, device: Device) -> OpenedTranscript:
    """A run whose records name two snapshots of one position, and a later one of an earlier position."""
    path = tmp_path_factory.mktemp("runs") / "run"
    writer = TranscriptWriter(path, draft={}, key=SigningKey.generate())
    tape = writer.put_tape(b"no tape")
    named = [[(device.ueid, 20, 0)], [(device.ueid, 10, 4), (device.ueid, 11, 4), (device.ueid, 12, 5)]]
    for step, snapshots in enumerate(named):
        writer.append_step(
            kind="step" if step else "init", tape=tape, values=[], host=[], rng={}, state=bytes(32), checksums=b"",
            rounding=b"log", batch={}, snapshots=snapshots,
        )  # fmt: skip
    writer.close()
    return open_confined(path)


def test_a_run_passes_its_positions_in_order(honest: SnapshotFacts, transcript: OpenedTranscript) -> None:
    snapshots = [at(honest, transcript, step, 4, 10 + step) for step in (2, 0, 1)]
    assert positions.check(snapshots) == []


def test_one_position_shown_twice_or_out_of_order(honest: SnapshotFacts, repeated: OpenedTranscript) -> None:
    shown = [at(honest, repeated, 1, 4, 10), at(honest, repeated, 1, 4, 11), at(honest, repeated, 1, 5, 12)]
    (finding,) = positions.check(shown)
    assert (finding.id, finding.severity) == ("snapshot.position.repeated", "violation")
    assert "entry 11" in finding.subject
    assert ids(positions.check([*shown[1:], at(honest, repeated, 0, 0, 20)])) == [
        ("snapshot.position.repeated", "violation")
    ]


def test_off_a_safepoint_one_operation_may_be_seen_twice(
    device: Device, manufacturer: CertificateAuthority, repeated: OpenedTranscript, transcript: OpenedTranscript
) -> None:
    claims = {"safepoint": False, "step": -1, "op": -1, "head": b"", "running": b""}
    off = make(device, manufacturer, transcript, **claims)
    assert positions.check([at(off, repeated, 1, 4, 10), at(off, repeated, 1, 4, 11)]) == []


# --- crash tails ----------------------------------------------------------------------------------------------------


def cut_off(path: Path, notes: ChipNotes | None = None) -> OpenedTranscript:
    """Two whole steps of a run that was cut off in the third."""
    writer = TranscriptWriter(path, draft={"name": path.name}, key=SigningKey.generate())
    tape = writer.put_tape(b"no tape")
    for step in range(2):
        writer.append_step(
            kind="step" if step else "init", tape=tape, values=[], host=[], rng={}, state=bytes(32), checksums=b"",
            rounding=b"log", batch={},
        )  # fmt: skip
    if notes is not None:
        writer.put_notes(notes)
    writer.close(complete=False)
    return open_confined(path)


def tail_of(device: Device, manufacturer: CertificateAuthority, run: OpenedTranscript, **claims: Any) -> SnapshotFacts:
    log: dict[str, Any] = {"step": 2, "op": 7, "head": run.head(1), **claims}
    op = log["op"] if log["op"] >= 0 else 7
    return at(replace(make_of(device, manufacturer, run, log), replayed=None), run, 2, op, 12)


def make_of(device: Device, manufacturer: CertificateAuthority, run: OpenedTranscript, claims: dict[str, Any]) -> Any:
    return make(device, manufacturer, run, **claims)


def test_a_crash_tail_accuses_nobody(device: Device, manufacturer: CertificateAuthority, tmp_path: Path) -> None:
    """Even if the Recorder had no time to note it: the chip signed the history that led to it."""
    for name, notes in (("noted", ChipNotes((), ((device.ueid, 12, 2, 7),))), ("unnoted", None)):
        snapshot = tail_of(device, manufacturer, cut_off(tmp_path / name, notes))
        assert provenance.is_tail(snapshot)
        assert ids(provenance.check(snapshot)) == [("snapshot.tail", "info")]
        assert memory.check(snapshot) == []


def test_a_tail_of_another_history_or_run(device: Device, manufacturer: CertificateAuthority, tmp_path: Path) -> None:
    run = cut_off(tmp_path / "run")
    other = tail_of(device, manufacturer, run, head=b"h" * 32)
    assert ("transcript.head.mismatch", "violation") in ids(provenance.check(other))
    untold = replace(tail_of(device, manufacturer, run), drafts=[])
    assert ("snapshot.position.mismatch", "violation") in ids(provenance.check(untold))
    elsewhere = tail_of(device, manufacturer, run, op=8)
    elsewhere = replace(elsewhere, explanation=Explanation(transcript_id=run.digest, step=2, op=7))
    assert ("snapshot.position.mismatch", "violation") in ids(provenance.check(elsewhere))


def test_a_hidden_run_is_no_tail(device: Device, manufacturer: CertificateAuthority, tmp_path: Path) -> None:
    """Off a safepoint there is no history to go by: such a snapshot must have been noted."""
    claims = {"safepoint": False, "step": -1, "op": -1, "head": b"", "running": b""}
    hidden = tail_of(device, manufacturer, cut_off(tmp_path / "run"), **claims)
    assert ids(provenance.check(hidden)) == [("snapshot.position.mismatch", "violation")]


def test_many_tails_are_asked_about(device: Device, manufacturer: CertificateAuthority, tmp_path: Path) -> None:
    tails = [
        replace(tail_of(device, manufacturer, cut_off(tmp_path / str(number))), index=12 + number)
        for number in range(2)
    ]
    same = [tails[0], replace(tails[0], index=14)]  # one crash, however many snapshots its last step had
    assert positions.check(same) == []
    assert ids(positions.check(tails)) == [("snapshot.tail.many", "warning")]
    assert positions.check(tails, SnapshotPolicy(tails=2)) == []


# --- memory off a safepoint -----------------------------------------------------------------------------------------


@pytest.fixture
def within(device: Device, manufacturer: CertificateAuthority, transcript: OpenedTranscript) -> SnapshotFacts:
    """A snapshot within an operation that turns the storages of 8 bytes into others and touches 40 bytes."""
    claims = {"safepoint": False, "step": -1, "op": -1, "head": b"", "running": b""}
    snapshot = make(device, manufacturer, transcript, **claims)
    later = [(8, ("c" * 64)), (8, ("c" * 64)), (100, (b"b" * 32).hex())]
    snapshot.after = replace(answer(snapshot), live=later)
    answer(snapshot).touched = 40
    return snapshot


def holding(snapshot: SnapshotFacts, *leaves: tuple[int, bytes]) -> memory.Accounting:
    found = memory.accounting(replace(snapshot, opening=Opening(salt=bytes(32), leaves=list(leaves))))
    assert found is not None
    return found


def test_within_an_operation_old_and_new_are_explained(within: SnapshotFacts) -> None:
    old, new, kept = (8, b"a" * 32), (8, b"\xcc" * 32), (100, b"b" * 32)
    for leaves in ([old, old, kept], [new, new, kept], [old, new, kept], [kept]):
        found = holding(within, *leaves)
        assert (found.missing, found.unexplained, found.temporary) == (0, 0, 0)


def test_within_an_operation_what_it_does_not_touch_must_be_there(within: SnapshotFacts) -> None:
    found = holding(within, (8, b"a" * 32), (8, b"a" * 32))
    assert (found.missing, found.missing_storages) == (100, 1)


@pytest.mark.parametrize(("size", "temporary"), [(640, 640), (641, 0)])
def test_buffers_of_the_operation_have_limited_room(within: SnapshotFacts, size: int, temporary: int) -> None:
    """A hidden model does not pass as a buffer; a buffer is not accused, but counts as not verified."""
    found = holding(within, *LEAVES, (size, b"w" * 32))
    assert (found.temporary, found.unexplained) == (temporary, size - temporary)


@pytest.mark.parametrize("field", ["unexplained_share", "tails", "unserved_share"])
def test_a_policy_has_no_negative_caps(field: str) -> None:
    with pytest.raises(UsageError, match=field):
        SnapshotPolicy(**{field: -1})
