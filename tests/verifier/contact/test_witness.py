"""The witness: an honest log is taken in and vouched for; every other history is refused, and kept as evidence."""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.chip_logs import LogBuilder, make_device
from support.damage import flipped

from firmware_sim.device import Device
from verifier.contact.witness import Witness, load_signer
from verifier.registry import Chip, Registry
from weighbridge.attest import tlog
from weighbridge.attest.identity import CertificateAuthority
from weighbridge.attest.tlog import LOG, WITNESS, Note, NoteSigner
from weighbridge.core import merkle
from weighbridge.core.errors import ProofError, TokenError, UsageError, WeighbridgeError

MANUFACTURER = CertificateAuthority.create("Manufacturer")
SIGNER = NoteSigner("verifier.example/w1", WITNESS, b"w" * 32)
NOW = 1_800_000_000.0


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Device:
    return make_device(tmp_path_factory.mktemp("chip"), MANUFACTURER)


@pytest.fixture
def log(device: Device) -> LogBuilder:
    builder = LogBuilder(device).boot()
    for number in range(4):
        builder.event(f"event {number}", bytes(32))
    return builder


def witness(path: Path, *devices: Device, signer: NoteSigner = SIGNER) -> Witness:
    registry = Registry(path / "registry.db")
    for each in devices:
        registry.register(Chip(ueid=each.ueid, address="localhost:1"))
    return Witness(registry, MANUFACTURER.certificate, signer, clock=lambda: NOW)


def report(witness: Witness, log: LogBuilder, **changes: object) -> bytes:
    """Reports a log as an honest chip would, but for `changes`."""
    ueid = log.device.ueid
    held, nonce = witness.nonce(ueid)
    tree = merkle.Tree(map(merkle.leaf_hash, log.entries))
    sent: dict[str, object] = {
        "ueid": ueid,
        "checkpoint": log.checkpoint(),
        "token": log.head(nonce),
        "proof": tree.consistency_proof(held.size) if held.size <= len(tree) else [],
        "data": log.entries[held.size :],
    }
    return witness.receive(**(sent | changes))  # type: ignore[arg-type]


def refused(witness: Witness, log: LogBuilder, **changes: object) -> str:
    """Reports, asserts that it is refused and that nothing changed, and returns why."""
    before = witness.held(log.device.ueid)
    with pytest.raises(WeighbridgeError) as caught:
        report(witness, log, **changes)
    assert witness.held(log.device.ueid) == before
    assert len(witness.entries(log.device.ueid, 0, 1000)) == before.size
    return caught.value.reason


def test_an_honest_log_is_held_and_vouched_for(tmp_path: Path, device: Device, log: LogBuilder) -> None:
    own = witness(tmp_path, device)
    for _ in range(3):
        note = tlog.parse_note(report(own, log))
        assert note.verify(SIGNER.key) == [int(NOW)]
        assert note.verify(log.log_signer.key) == [0]
        assert tlog.parse_checkpoint(note.text).size == len(log.entries)
        held = own.held(device.ueid)
        assert (held.size, held.checkpoint, held.read_ms) == (len(log.entries), note.encode(), int(NOW * 1000))
        log.event("later", bytes(32))
        log.boot()
    assert own.entries(device.ueid, 0, 1000) == log.entries[:-2]
    assert own.refused(device.ueid) == []


def test_what_is_held_outlives_the_process(tmp_path: Path, device: Device, log: LogBuilder) -> None:
    report(witness(tmp_path, device), log)
    log.event("later", bytes(32))
    again = witness(tmp_path, device)
    report(again, log)
    assert again.entries(device.ueid, 0, 1000) == log.entries


def test_a_report_of_nothing_new_is_vouched_for_again(tmp_path: Path, device: Device, log: LogBuilder) -> None:
    own = witness(tmp_path, device)
    assert report(own, log) == report(own, log)


def test_removed_entries_are_refused_and_kept_as_evidence(tmp_path: Path, device: Device, log: LogBuilder) -> None:
    own = witness(tmp_path, device)
    held = report(own, log)
    shorter = replace(log, entries=log.entries[:3])
    assert refused(own, shorter) == "chip.log.rolled_back"
    (evidence,) = own.refused(device.ueid)
    assert (evidence.reason, evidence.held, evidence.checkpoint) == (
        "chip.log.rolled_back",
        held,
        shorter.checkpoint(),
    )


def test_a_counter_ahead_of_the_log_is_refused_at_first_sight(tmp_path: Path, device: Device, log: LogBuilder) -> None:
    """The chip itself says that it acknowledged more: it was given an older image of its memory."""
    own = witness(tmp_path, device)
    _, nonce = own.nonce(device.ueid)
    with pytest.raises(TokenError) as caught:
        own.receive(device.ueid, log.checkpoint(), log.head(nonce, counter=9), [], log.entries)
    assert caught.value.reason == "chip.log.rolled_back"


def test_a_fork_is_refused_whatever_its_proof(tmp_path: Path, device: Device, log: LogBuilder) -> None:
    own = witness(tmp_path, device)
    other = copy.deepcopy(log.entries)
    report(own, log)
    fork = LogBuilder(device, entries=other[:4], boot_count=1, boot_seed=log.boot_seed)
    fork.event("another history", bytes(32))
    assert refused(own, fork) == ProofError.code
    fork.event("that goes on", bytes(32))
    assert refused(own, fork) == ProofError.code
    assert refused(own, fork, proof=[]) == ProofError.code
    honest = merkle.consistency_proof(list(map(merkle.leaf_hash, [*log.entries, b"x"])), 5)
    assert refused(own, fork, proof=honest) == ProofError.code
    assert len(own.refused(device.ueid)) == 4


def test_reordered_removed_and_doubled_entries_are_refused(tmp_path: Path, device: Device, log: LogBuilder) -> None:
    """Altered firmware may sign a root over anything; the entries themselves say where they belong."""
    own = witness(tmp_path, device)
    honest = log.entries
    for altered in (
        [honest[0], honest[2], honest[1], *honest[3:]],
        [*honest[:2], *honest[3:]],
        [*honest[:3], honest[2], *honest[3:]],
    ):
        assert refused(own, replace(log, entries=altered)) == "chip.log.counter"
    log.resign(2, time_ms=1)
    assert refused(own, log) == "chip.log.chain"


def test_entries_that_are_not_under_the_root_are_refused(tmp_path: Path, device: Device, log: LogBuilder) -> None:
    own = witness(tmp_path, device)
    assert refused(own, log, data=log.entries[:-1]) == "chip.log.incomplete"
    assert refused(own, log, data=[*log.entries, log.entries[-1]]) == "chip.log.incomplete"
    other = copy.deepcopy(log)
    other.entries.pop()
    other.event("in its place", bytes(32))
    assert refused(own, log, data=other.entries) == "chip.log.head"
    altered = [*log.entries[:-1], flipped(log.entries[-1])]
    assert refused(own, log, data=altered) == "chip.token"
    assert report(own, log)


def test_only_the_chip_itself_reports(tmp_path: Path, device: Device, log: LogBuilder) -> None:
    """An old head, another chip's, a foreign manufacturer's, an unregistered chip's, and another log key."""
    other = LogBuilder(make_device(tmp_path / "other", MANUFACTURER)).boot()
    own = witness(tmp_path, device, other.device)
    assert refused(own, log, token=log.head(b"n" * 32)) == "chip.nonce.mismatch"
    assert refused(own, log, token=log.entries[0]) == "chip.nonce.mismatch"
    assert refused(own, log, token=b"no token") == "chip.token"
    assert refused(own, log, token=other.head(own.nonce(device.ueid)[1])) == "chip.identity.mismatch"
    assert refused(own, other, ueid=device.ueid) == "chip.nonce.mismatch"
    foreign = LogBuilder(make_device(tmp_path / "foreign", CertificateAuthority.create("Other"))).boot()
    given = own.nonce(device.ueid)[1]
    with pytest.raises(WeighbridgeError) as caught:
        own.receive(device.ueid, foreign.checkpoint(), foreign.head(given), [], foreign.entries)
    assert caught.value.reason == "identity.chain"
    with pytest.raises(UsageError):
        own.nonce(foreign.device.ueid)
    forged = Note(tlog.parse_note(log.checkpoint()).text, (NoteSigner("x", LOG, bytes(32)).sign("x"),))
    assert refused(own, log, checkpoint=forged.encode()) == "chip.note.signature"
    assert refused(own, log, checkpoint=other.checkpoint()) == "chip.note.signature"
    shorter = replace(log, entries=log.entries[:2])
    assert refused(own, log, checkpoint=shorter.checkpoint()) == "chip.log.head"


def test_a_nonce_serves_once(tmp_path: Path, device: Device, log: LogBuilder) -> None:
    own = witness(tmp_path, device)
    _, nonce = own.nonce(device.ueid)
    sent = (device.ueid, log.checkpoint(), log.head(nonce), [], log.entries)
    own.receive(*sent)
    with pytest.raises(TokenError) as caught:
        own.receive(*sent)
    assert caught.value.reason == "chip.nonce.mismatch"


def test_what_others_ask_and_send_uses_up_no_nonce(tmp_path: Path, device: Device, log: LogBuilder) -> None:
    """Between a chip's question and its report, a rival asks ten thousand times and reports rubbish."""
    other = LogBuilder(make_device(tmp_path / "other", MANUFACTURER)).boot()
    own = witness(tmp_path, device, other.device)
    _, nonce = own.nonce(device.ueid)
    for _ in range(10_000):
        own.nonce(device.ueid)
    signed = log.head(nonce)
    spoilt = signed[:-1] + bytes([signed[-1] ^ 1])
    for token in (b"", b"rubbish", other.head(nonce), log.entries[0], spoilt):
        with pytest.raises(WeighbridgeError):
            own.receive(device.ueid, log.checkpoint(), token, [], log.entries)
    own.receive(device.ueid, log.checkpoint(), log.head(nonce), [], log.entries)


def test_a_lost_answer_does_not_stop_a_chip(tmp_path: Path, device: Device, log: LogBuilder) -> None:
    """It asks again and may use either nonce, as long as it used no later one."""
    own = witness(tmp_path, device)
    first, second = (own.nonce(device.ueid)[1] for _ in range(2))
    own.receive(device.ueid, log.checkpoint(), log.head(first), [], log.entries)
    proof = merkle.Tree(map(merkle.leaf_hash, log.entries)).consistency_proof(0)
    with pytest.raises(UsageError):  # It was given when nothing was held.
        own.receive(device.ueid, log.checkpoint(), log.head(second), proof, log.entries)
    report(own, log)
    third, fourth = (own.nonce(device.ueid)[1] for _ in range(2))
    proof = merkle.Tree(map(merkle.leaf_hash, log.entries)).consistency_proof(len(log.entries))
    own.receive(device.ueid, log.checkpoint(), log.head(fourth), proof, [])
    with pytest.raises(TokenError) as caught:
        own.receive(device.ueid, log.checkpoint(), log.head(third), proof, [])
    assert caught.value.reason == "chip.nonce.mismatch"


def test_evidence_of_one_chip_has_an_end(
    tmp_path: Path, device: Device, log: LogBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("verifier.contact.witness.MAX_EVIDENCE", 2)
    own = witness(tmp_path, device)
    report(own, log)
    for size in (1, 2, 3):
        assert refused(own, replace(log, entries=log.entries[:size])) == "chip.log.rolled_back"
    assert len(own.refused(device.ueid)) == 2


def test_nothing_is_read_of_a_report_that_cannot_be_right(tmp_path: Path, device: Device, log: LogBuilder) -> None:
    """Head, registration and history are judged before any entry is taken, and each entry before the next."""
    own = witness(tmp_path, device)
    foreign = LogBuilder(make_device(tmp_path / "foreign", MANUFACTURER)).boot()
    with pytest.raises(UsageError):
        own.begin(foreign.device.ueid, foreign.checkpoint(), foreign.head(bytes(32)), [])
    with pytest.raises(TokenError):
        own.begin(device.ueid, log.checkpoint(), log.head(b"n" * 32), [])
    incoming = own.begin(device.ueid, log.checkpoint(), log.head(own.nonce(device.ueid)[1]), [])
    incoming.add(log.entries[:1])
    for wrong in (log.entries[:1], log.entries[2:3], [bytes(1 << 20)], [*log.entries[1:], log.entries[0]]):
        with pytest.raises(WeighbridgeError):
            incoming.add(wrong)
        assert incoming.data == log.entries[:1]
    incoming.add(log.entries[1:])
    own.end(incoming)
    assert own.held(device.ueid).size == len(log.entries)


def test_two_readers_at_once_accuse_nobody(tmp_path: Path, device: Device, log: LogBuilder) -> None:
    """A report that was begun before another was taken in is asked for again, and is no evidence of anything."""
    own = witness(tmp_path, device)
    _, nonce = own.nonce(device.ueid)
    begun = (device.ueid, log.checkpoint(), log.head(nonce), [], list(log.entries))
    later = copy.deepcopy(log)
    later.event("later", bytes(32))
    opened = own.open(device.ueid, later.checkpoint(), later.head(b"x" * 32))
    own.take_in(opened, 0, [], later.entries)
    with pytest.raises(UsageError):
        own.receive(*begun)
    assert own.refused(device.ueid) == []


def test_a_fork_shown_to_two_verifiers_comes_out(tmp_path: Path, device: Device, log: LogBuilder) -> None:
    """Each was shown a good log. A checkpoint that they exchange as a file is enough to see that the logs differ."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one = witness(tmp_path / "one", device)
    two = witness(tmp_path / "two", device, signer=NoteSigner("other.example/w", WITNESS, b"o" * 32))
    report(one, log)
    report(two, log)
    (tmp_path / "checkpoint").write_bytes(two.held(device.ueid).checkpoint)
    same, own = one.compare((tmp_path / "checkpoint").read_bytes())
    assert same
    assert own == one.held(device.ueid).checkpoint
    fork = copy.deepcopy(log)
    log.event("shown to the first", bytes(32))
    fork.event("shown to the second", bytes(32))
    report(one, log)
    report(two, fork)
    for mine, other in ((one, two), (two, one)):
        same, own = mine.compare(other.held(device.ueid).checkpoint)
        assert not same
        assert own != other.held(device.ueid).checkpoint
    log.event("the first is ahead", bytes(32))
    report(one, log)
    assert not one.compare(two.held(device.ueid).checkpoint)[0]
    with pytest.raises(UsageError, match="read the chip's log first"):
        two.compare(one.held(device.ueid).checkpoint)


def test_only_signed_checkpoints_of_known_chips_are_compared(tmp_path: Path, device: Device, log: LogBuilder) -> None:
    own = witness(tmp_path, device)
    with pytest.raises(UsageError):
        own.compare(log.checkpoint())
    report(own, log)
    text = tlog.parse_note(log.checkpoint()).text
    stranger = NoteSigner(tlog.origin(device.ueid), LOG, b"x" * 32)
    with pytest.raises(WeighbridgeError) as caught:
        own.compare(Note(text, (stranger.sign(text),)).encode())
    assert caught.value.reason == "chip.note.signature"
    elsewhere = NoteSigner(tlog.origin(b"u" * 17), LOG, b"x" * 32)
    text = tlog.Checkpoint(elsewhere.key.name, 1, bytes(32)).text
    with pytest.raises(UsageError):
        own.compare(Note(text, (elsewhere.sign(text),)).encode())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    checkpoint=st.binary(max_size=80),
    token=st.binary(max_size=80),
    proof=st.lists(st.binary(max_size=33), max_size=4),
    data=st.lists(st.binary(max_size=80), max_size=4),
    good=st.sets(st.sampled_from(["checkpoint", "token", "proof", "data"])),
)
def test_hostile_reports_raise_only_our_errors(
    tmp_path: Path,
    device: Device,
    log: LogBuilder,
    checkpoint: bytes,
    token: bytes,
    proof: list[bytes],
    data: list[bytes],
    good: set[str],
) -> None:
    own = witness(tmp_path, device)
    hostile = {"checkpoint": checkpoint, "token": token, "proof": proof, "data": data}
    with suppress(WeighbridgeError):
        report(own, log, **{name: value for name, value in hostile.items() if name not in good})
    with suppress(WeighbridgeError):
        own.compare(checkpoint)


def test_the_witness_key_is_made_once(tmp_path: Path) -> None:
    first, again = load_signer(tmp_path / "key"), load_signer(tmp_path / "key")
    assert first.key == again.key
    assert tlog.parse_key((tmp_path / "key.pub").read_text().strip()) == first.key
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    (tmp_path / "key").write_bytes(b"short")
    with pytest.raises(UsageError):
        load_signer(tmp_path / "key")
    with pytest.raises(UsageError):
        load_signer(tmp_path / "missing" / "key")
