"""The checks of one snapshot: honest facts pass, and each lie about provenance, memory or replay is caught."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.chip_logs import SALT
from support.damage import flipped
from support.snapshot_facts import LEAVES, make
from support.untrained_transcripts import write_transcript

from firmware_sim.device import Device
from verifier.checks import commitment, committed_data, memory, provenance
from verifier.checks import replay_outcome as replay_check
from verifier.model.facts import Explanation, Opening, SnapshotFacts, TranscriptFacts
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.work import Work
from weighbridge.core.digests import Leaf
from weighbridge.core.errors import ChipError, Finding, ProverError, ReplayWorkerError, TranscriptError
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.transcript_facts import OpenedTranscript, open_confined
from weighbridge.transcript.resumption_notes import Resumption
from weighbridge.transcript.tape import Tape


def everything(snapshot: SnapshotFacts) -> list[Finding]:
    return [
        *provenance.check(snapshot),
        *commitment.check(snapshot),
        *replay_check.check(snapshot),
        *memory.check(snapshot),
    ]


def ids(snapshot: SnapshotFacts) -> list[str]:
    return [finding.id for finding in everything(snapshot)]


def test_an_honest_snapshot_passes_every_check(honest: SnapshotFacts) -> None:
    assert everything(honest) == []


def test_a_snapshot_that_nobody_explains(honest: SnapshotFacts) -> None:
    bare = replace(honest, explanation=None, transcript=None, opening=None, replayed=None)
    assert ids(bare) == ["snapshot.unexplained"]
    undeclared = replace(bare, chip=replace(bare.chip, prover_address=""))
    assert "no Prover is declared" in everything(undeclared)[0].message


def test_a_prover_that_does_not_answer(honest: SnapshotFacts) -> None:
    silent = replace(honest, explanation=ProverError("nobody there"), transcript=None, opening=None, replayed=None)
    assert ids(silent) == ["prover.unreachable"]


@pytest.mark.finding("snapshot.confidential")
def test_a_snapshot_of_a_confidential_boot(honest: SnapshotFacts) -> None:
    """It is unverified and not unexplained: no party was asked."""
    bare = replace(honest, confidential=True, transcript=None, opening=None, replayed=None)
    (found,) = everything(replace(bare, explanation=provenance.withheld(bare)))
    assert (found.id, found.severity) == ("snapshot.confidential", "warning")


@pytest.mark.finding("chip.confidential")
def test_only_the_boot_entry_excuses_a_refusal(honest: SnapshotFacts) -> None:
    """A Prover and a chip that say so of an ordinary boot are asked why they answer nothing."""
    false = ProverError("It is confidential.", code="snapshot.confidential")
    told = replace(honest, explanation=false, transcript=None, opening=None, replayed=None)
    assert [each.severity for each in everything(told)] == ["violation"]
    refusing = replace(honest, opening=ChipError("It is confidential.", code="chip.confidential"), replayed=None)
    assert [(each.id, each.severity) for each in memory.check(refusing)] == [("chip.confidential", "violation")]


@pytest.mark.parametrize(("step", "op"), [(1, 4), (2, 5)])
def test_a_claim_of_another_position_than_the_chip_signed(honest: SnapshotFacts, step: int, op: int) -> None:
    assert honest.transcript is not None
    lie = replace(honest, explanation=Explanation(transcript_id=honest.transcript.id, step=step, op=op))
    assert "snapshot.position.mismatch" in ids(lie)


@pytest.mark.parametrize("step", [-1, 3, 4, 1 << 40])
def test_a_claim_of_a_position_that_does_not_exist(honest: SnapshotFacts, step: int) -> None:
    assert honest.transcript is not None
    lie = replace(honest, explanation=Explanation(transcript_id=honest.transcript.id, step=step, op=4))
    assert set(ids(lie)) == {"snapshot.position.mismatch"}


def test_a_snapshot_that_the_transcript_does_not_name(honest: SnapshotFacts, device: Device) -> None:
    """Or else the transcript of one run explains every later run of the same program, on this and other chips."""
    again = replace(honest, index=13)
    assert ids(again) == ["snapshot.position.mismatch"]
    other = replace(honest, chip=replace(honest.chip, ueid=device.ueid[:-1] + bytes([device.ueid[-1] ^ 1])))
    assert ids(other) == ["snapshot.position.mismatch"]


def test_another_history_before_the_same_position(
    honest: SnapshotFacts, device: Device, manufacturer: CertificateAuthority, transcript: OpenedTranscript
) -> None:
    assert ids(make(device, manufacturer, transcript, head=b"h" * 32)) == ["transcript.head.mismatch"]


def test_other_operations_within_the_step(
    device: Device, manufacturer: CertificateAuthority, transcript: OpenedTranscript
) -> None:
    assert ids(make(device, manufacturer, transcript, running=b"x" * 32)) == ["snapshot.running.mismatch"]


def test_off_a_safepoint_only_replay_and_memory_decide(
    device: Device, manufacturer: CertificateAuthority, transcript: OpenedTranscript
) -> None:
    claims = {"safepoint": False, "step": -1, "op": -1, "head": b"", "running": b""}
    snapshot = make(device, manufacturer, transcript, **claims)
    assert ids(snapshot) == []
    assert isinstance(snapshot.replayed, ReplayResult)
    snapshot.replayed.live = []
    assert ids(snapshot) == ["snapshot.memory.unexplained"]


def test_off_a_safepoint_a_claimed_position_is_held_to(
    device: Device, manufacturer: CertificateAuthority, transcript: OpenedTranscript
) -> None:
    claims = {"safepoint": False, "running": b""}
    assert ids(make(device, manufacturer, transcript, **claims)) == []
    assert ids(make(device, manufacturer, transcript, **claims, op=5)) == ["snapshot.position.mismatch"]
    assert ids(make(device, manufacturer, transcript, **claims, head=b"h" * 32)) == ["transcript.head.mismatch"]


@pytest.mark.parametrize("safepoint", [True, False])
def test_a_name_that_a_crash_prevented(
    device: Device, manufacturer: CertificateAuthority, tmp_path: Path, safepoint: bool
) -> None:
    """A position in steps that were recomputed needs no name, if it was claimed and this chip was told of the run."""
    write_transcript(tmp_path / "run", ueid=device.ueid, resumptions=[Resumption(2, 1)])
    crashed = open_confined(tmp_path / "run")
    claims = {} if safepoint else {"safepoint": False, "running": b""}
    snapshot = replace(make(device, manufacturer, crashed, **claims), index=13)
    assert ids(snapshot) == []
    assert "snapshot.position.mismatch" in ids(replace(snapshot, drafts=[]))
    unclaimed = make(device, manufacturer, crashed, safepoint=False, step=-1, op=-1, head=b"", running=b"")
    assert ids(replace(unclaimed, index=13)) == ["snapshot.position.mismatch"]


def test_a_program_that_has_just_begun_has_nothing_to_explain(
    device: Device, manufacturer: CertificateAuthority, transcript: OpenedTranscript
) -> None:
    """But one that took everything off the chip after much work has."""
    nothing = {"safepoint": False, "step": -1, "op": -1, "head": b"", "running": b"", "leaves": 0, "bytes": 0}
    for claims, expected in (({}, "snapshot.empty"), ({"flops": 10**12}, "snapshot.unexplained")):
        snapshot = make(device, manufacturer, transcript, **nothing, **claims)
        bare = replace(snapshot, explanation=None, transcript=None, opening=None, replayed=None)
        assert ids(bare) == [expected]


def test_time_and_kernels_are_no_beginning_however_few_flops_they_count(
    device: Device, manufacturer: CertificateAuthority, transcript: OpenedTranscript
) -> None:
    """Work in code that counts nothing takes its time; and firmware that does not tell it excuses nothing."""
    nothing = {"safepoint": False, "step": -1, "op": -1, "head": b"", "running": b"", "leaves": 0, "bytes": 0}
    snapshot = make(device, manufacturer, transcript, **nothing)
    bare = replace(snapshot, explanation=None, transcript=None, opening=None, replayed=None)
    assert ids(replace(bare, work=Work(kernels=1, busy_ns=59 * 10**9))) == ["snapshot.empty"]
    for long in (Work(kernels=1, busy_ns=61 * 10**9), None):
        assert ids(replace(bare, work=long)) == ["snapshot.unexplained"]
    many = make(device, manufacturer, transcript, **nothing, kernels=100_001)
    assert ids(replace(many, explanation=None, transcript=None, opening=None, replayed=None)) == [
        "snapshot.unexplained"
    ]


def test_a_run_that_loads_given_weights(device: Device, manufacturer: CertificateAuthority, tmp_path: Path) -> None:
    """No tape says what was in memory meanwhile; but it may not have trained."""
    write_transcript(tmp_path / "run", ueid=device.ueid, tape=Tape().encode())
    tuned = open_confined(tmp_path / "run")
    claims = {"step": 0, "op": 4, "head": tuned.draft_digest}
    for flops, expected in ((10**6, "snapshot.setup"), (10**12, "snapshot.memory.unexplained")):
        snapshot = make(device, manufacturer, tuned, **claims, flops=flops)
        snapshot = replace(snapshot, index=10, explanation=Explanation(transcript_id=tuned.digest, step=0, op=4))
        assert isinstance(snapshot.replayed, ReplayResult)
        snapshot.replayed.live = []
        assert ids(snapshot) == [expected]


def test_a_transcript_that_was_committed_to_too_late_or_never(honest: SnapshotFacts) -> None:
    for drafts in ([], [(1, b"of another transcript".ljust(32))]):
        assert ids(replace(honest, drafts=drafts)) == ["transcript.commitment.missing"]


def test_an_opening_that_is_not_what_was_signed(honest: SnapshotFacts) -> None:
    forged = [
        Opening(salt=SALT, leaves=LEAVES[:2], weights=LEAVES[2:]),
        Opening(salt=SALT, leaves=[*LEAVES[:2], (100, b"c" * 32)], weights=LEAVES[2:]),
        Opening(salt=b"s" * 32, leaves=LEAVES, weights=LEAVES[2:]),
        Opening(salt=SALT, leaves=[(16, b"a" * 32), *LEAVES[2:]], weights=LEAVES[2:]),
        Opening(salt=SALT, leaves=LEAVES, weights=LEAVES[:1]),
        Opening(salt=SALT, leaves=LEAVES),
    ]
    for opening in forged:
        assert ids(replace(honest, opening=opening)) == ["snapshot.opening.mismatch"]


def test_a_chip_that_does_not_open_its_snapshot(honest: SnapshotFacts) -> None:
    closed = replace(honest, opening=TranscriptError("no", code="chip.unreachable"), replayed=None)
    assert ids(closed) == ["chip.unreachable"]


def test_storages_that_the_transcript_does_not_account_for(honest: SnapshotFacts) -> None:
    assert isinstance(honest.replayed, ReplayResult)
    assert honest.replayed.live is not None
    honest.replayed.live.pop()  # one of two equal storages
    (finding,) = everything(honest)
    assert finding.id == "snapshot.memory.unexplained"
    counted = (finding.evidence["explained"], finding.evidence["unexplained"], finding.evidence["missing"])
    assert counted == (108, 8, 0)


def test_storages_that_the_chip_did_not_hold(honest: SnapshotFacts) -> None:
    assert isinstance(honest.replayed, ReplayResult)
    assert honest.replayed.live is not None
    honest.replayed.live.append((4, "ee" * 32))
    assert ids(honest) == ["snapshot.memory.missing"]


def test_only_a_small_share_is_a_mere_warning(honest: SnapshotFacts) -> None:
    assert isinstance(honest.replayed, ReplayResult)
    assert honest.replayed.live is not None
    for size, severity in ((1, "warning"), (2, "violation")):  # of 116 + size bytes
        replayed = replace(honest.replayed, live=[*honest.replayed.live, (size, "ee" * 32)])
        assert [finding.severity for finding in everything(replace(honest, replayed=replayed))] == [severity]


def test_altered_content_is_both_missing_and_unexplained(honest: SnapshotFacts) -> None:
    assert isinstance(honest.replayed, ReplayResult)
    assert honest.replayed.live is not None
    honest.replayed.live[0] = (100, "ee" * 32)
    assert ids(honest) == ["snapshot.memory.missing", "snapshot.memory.unexplained"]


def test_a_replay_that_differs_names_step_and_operation(honest: SnapshotFacts) -> None:
    place = {"step": 2, "op": 3, "operation": "aten.mm.default", "expected": "1", "found": "2"}
    said = Finding(id="replay.mismatch", message="differs", evidence=place)
    differs = ReplayResult(verdict="mismatch", steps=(2, 2), state="00" * 32, findings=[said], first_difference=place)
    (finding,) = everything(replace(honest, replayed=differs))
    assert (finding.id, finding.evidence["step"], finding.evidence["op"]) == ("replay.mismatch", 2, 3)
    # A worker that forgets to say so, or plays it down, does not get away with it.
    for findings in ([], [replace(said, severity="info")]):
        silent = replace(honest, replayed=replace(differs, findings=findings))
        assert "violation" in [finding.severity for finding in everything(silent)]


def test_a_replay_worker_that_died(honest: SnapshotFacts) -> None:
    (finding,) = everything(replace(honest, replayed=ReplayWorkerError("it died")))
    assert (finding.id, finding.severity) == ("replay.worker", "warning")  # perhaps we have too little memory
    unknown = TranscriptError("other rules", code="replay.rules.unknown")
    assert [f.severity for f in everything(replace(honest, replayed=unknown))] == ["warning"]
    altered = TranscriptError("altered", code="transcript.file.altered")
    assert [f.severity for f in everything(replace(honest, replayed=altered))] == ["violation"]


def test_an_unreadable_transcript_is_reported_once_for_all_its_snapshots(honest: SnapshotFacts) -> None:
    broken = TranscriptFacts(id="0" * 64, opened=TranscriptError("altered", code="transcript.file.altered"))
    snapshot = replace(honest, transcript=broken, opening=None, replayed=None)
    assert ids(snapshot) == []
    assert [finding.id for finding in committed_data.check(broken)] == ["transcript.file.altered"]


def test_data_without_commitment_is_a_note_and_altered_batches_are_found(tmp_path: Path) -> None:
    identifier = write_transcript(tmp_path / "run")
    facts = TranscriptFacts(id=identifier, opened=open_confined(tmp_path / "run"))
    assert [(finding.id, finding.severity) for finding in committed_data.check(facts)] == [
        ("data.not_precommitted", "info")
    ]
    facts = TranscriptFacts(id=identifier, opened=open_confined(tmp_path / "run"))
    for path in (tmp_path / "run" / "batches").iterdir():
        path.write_bytes(flipped(path.read_bytes()))  # after it was opened
    assert "violation" in [finding.severity for finding in committed_data.check(facts)]


@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([b"a" * 32, b"b" * 32]))),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from([b"a" * 32, b"b" * 32]))),
)
def test_accounting_adds_up(chip: list[Leaf], replay: list[Leaf]) -> None:
    found = memory.account(chip, replay)
    assert found.explained + found.unexplained == sum(size for size, _ in chip)
    assert found.explained + found.missing == sum(size for size, _ in replay)
    assert memory.account(replay, chip).missing == found.unexplained
    assert memory.account(chip, chip).unexplained_storages == 0
    with_data = memory.account(chip, replay, replay)
    assert with_data.explained + with_data.declared + with_data.unexplained == sum(size for size, _ in chip)
    assert with_data.missing == 0


def test_batches_may_be_there_or_not(honest: SnapshotFacts) -> None:
    """The batch before may linger, the next may be loaded already, and a kernel may not have read this one yet."""
    assert isinstance(honest.replayed, ReplayResult)
    batches = [LEAVES[2], (50, b"n" * 32)]
    unread = replace(honest.replayed, live=[*(honest.replayed.live or []), (50, (b"n" * 32).hex())])
    assert ids(replace(honest, replayed=unread, batches=batches)) == []
    lingering = replace(honest.replayed, live=[(8, (b"a" * 32).hex())] * 2)
    assert ids(replace(honest, replayed=lingering, batches=batches)) == []
    assert ids(replace(honest, replayed=lingering)) == ["snapshot.memory.unexplained"]
