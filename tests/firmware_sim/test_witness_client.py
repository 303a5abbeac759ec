"""Chips that report to a witness: what waits, what goes on, what is released, and that nothing is ever lost."""

import contextlib
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.soak_chip import COUNTERS, NOTHING, Rig, ask, connect
from firmware_sim import ChipProcess
from firmware_sim.frames import Connection
from firmware_sim.nvlog import MIN_CAPACITY
from firmware_sim.reporting_policy import Reporting
from verifier.checks import chip_identity, chip_log, chip_witness
from verifier.contact.clients import ChipClient
from verifier.contact.log_reading import acknowledge, read_log
from verifier.contact.witness import Witness, load_signer
from verifier.model.facts import LogFacts
from verifier.registry import Chip
from weighbridge.attest import role_certificate, tlog
from weighbridge.core.errors import ChipError, UsageError, WeighbridgeError
from weighbridge.rpc.own_credentials import put_list

NOBODY = "127.0.0.1:9"  # the discard port: no service listens there


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def event(connection: Connection, name: str = "x") -> dict[str, Any]:
    answer = ask(connection, {"do": "event", "name": name, "digest": bytes(32)})
    assert answer is not None
    return answer


def snapshot(connection: Connection) -> dict[str, Any]:
    ask(connection, {"do": "force"})
    answer = ask(connection, {"do": "snapshot", **NOTHING, **COUNTERS})
    assert answer is not None
    return answer


def read(rig: Rig, chip: ChipProcess, witness: Witness | None = None) -> LogFacts:
    rig.registry.register(Chip(ueid=rig.ueid, address=chip.address))
    found = rig.registry.chip(rig.ueid)
    return read_log(found, rig.credentials, rig.manufacturer.certificate, witness or rig.witness)


def findings(log: LogFacts) -> list[str]:
    return [each.id for each in (*chip_identity.check(log), *chip_log.check(log))]


@contextlib.contextmanager
def waiting(act: Callable[[], dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Does something in a thread, asserts that it is not answered before the block ends, and joins it."""
    answers: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: answers.append(act()), daemon=True)
    thread.start()
    time.sleep(0.5)
    assert answers == []
    yield answers
    thread.join(30)
    assert len(answers) == 1


def test_a_chip_waits_until_the_witness_has_the_snapshot(rig: Rig) -> None:
    """Without an answer the workload stands; when the witness is there, all is reported and it goes on."""
    with rig.serve() as address:
        pass  # A port that is free again: no service is there yet.
    with rig.chip(report="wait", witness=address) as chip:
        connection = connect(chip)
        assert event(connection)["ok"]
        with waiting(lambda: snapshot(connection)) as answers, rig.serve(address):
            for _ in range(100):
                if answers:
                    break
                time.sleep(0.1)
        assert answers[0]["index"] == 2
        held = rig.witness.held(rig.ueid)
        assert held.size == 3
        assert rig.witness.key is not None
        assert tlog.parse_note(held.checkpoint).verify(rig.witness.key)
        assert event(connection)["ok"]  # Events do not wait.
        assert findings(read(rig, chip)) == []


def test_a_chip_reports_nothing_to_a_witness_whose_certificate_is_revoked(rig: Rig) -> None:
    """The chip has the new list without a restart, and goes on once the witness has another certificate."""
    with rig.serve() as address:
        pass  # a port that is free again
    with rig.chip(report="wait", witness=address) as chip:
        connection = connect(chip)
        with rig.serve(address):
            assert snapshot(connection)["ok"]
            rig.authority.revoke([role_certificate.read(rig.credentials.certificate).serial])
            put_list(rig.path / "credentials", rig.authority.revocations)
            answers: list[dict[str, Any]] = []
            thread = threading.Thread(target=lambda: answers.append(snapshot(connection)), daemon=True)
            thread.start()
            time.sleep(1.5)
            assert (answers, rig.witness.held(rig.ueid).size) == ([], 2)
        rig.credentials = rig.authority.issue_role("verifier", "verifier")
        with rig.serve(address):
            thread.join(60)
        assert answers[0]["ok"]
        assert rig.witness.held(rig.ueid).size == 3


def test_a_witness_that_never_answers_costs_time_and_no_entry(rig: Rig) -> None:
    """After its patience the chip says why; the snapshot is kept over a power cut, and no workload goes on before."""
    with rig.chip(report="wait", witness=NOBODY, patience_s=1.0) as chip:
        connection = connect(chip)
        answer = snapshot(connection)
        assert answer["error"] == "chip.witness.silent"
        assert event(connection)["error"] == "chip.witness.silent"
        chip.kill()
        chip.start()
        connection = connect(chip)
        hello = ask(connection, {"do": "hello"})
        assert hello is not None
        assert hello["error"] == "chip.witness.silent"
        chip.stop()
    with rig.serve() as address, rig.chip(report="wait", witness=address) as chip:
        connection = connect(chip)
        hello = ask(connection, {"do": "hello"})
        assert hello is not None
        assert hello["ok"]
        log = read(rig, chip)
    kinds = [each.verified.token.kind for each in log.entries if not isinstance(each.verified, WeighbridgeError)]
    assert kinds == ["boot", "snapshot", "boot", "boot", "event"]  # the last is that a workload is attached
    assert findings(log) == []


def test_a_chip_that_is_read_instead_of_reporting_waits_too(rig: Rig) -> None:
    """Whether the chip pushes or the Verifier comes: the cosignature is what counts."""
    with rig.chip(report="wait") as chip:
        connection = connect(chip)
        with waiting(lambda: snapshot(connection)) as answers:
            acknowledge(read(rig, chip), rig.credentials, rig.witness)
        assert answers[0]["ok"]


def test_another_witness_makes_no_room(rig: Rig, tmp_path: Path) -> None:
    """The chip accepts only the key that it was started with, and only its own log."""
    (tmp_path / "other").mkdir()
    other = Witness(rig.registry, rig.manufacturer.certificate, load_signer(tmp_path / "other" / "key"))
    with rig.chip() as chip, ChipClient(chip.address, rig.credentials) as client:
        log = read(rig, chip, other)
        assert log.report is not None
        foreign = other.take_in(log.report, 0, [], [each.data for each in log.entries])
        rig.witness._trees.clear()
        with pytest.raises(tlog.NoteError) as caught:
            client.add_cosignature(foreign)
        assert caught.value.reason == "chip.note.signature"
        signer = load_signer(rig.path / "witness-key")
        for text in (
            tlog.Checkpoint(tlog.origin(b"u" * 17), 1, bytes(32)).text,
            tlog.Checkpoint(tlog.origin(rig.ueid), 1, bytes(32)).text,
            tlog.Checkpoint(tlog.origin(rig.ueid), 99, bytes(32)).text,
        ):
            with pytest.raises(ChipError) as fork:
                client.add_cosignature(tlog.Note(text, (signer.sign(text, 5),)).encode())
            assert fork.value.reason == "chip.log.fork"
        with pytest.raises(WeighbridgeError):
            client.add_cosignature(b"garbage")


def test_a_full_nvram_stops_the_workload_until_it_is_reported(rig: Rig) -> None:
    """No entry is dropped or overwritten to make room; what the witness has may go, and its hashes stay."""
    with rig.chip(patience_s=3.0) as chip:
        connection = connect(chip)
        count = 0
        while "error" not in (answer := event(connection, f"event {count}")):
            count += 1
            assert count < MIN_CAPACITY // 1000, "the NVRAM never fills up"
        assert answer["error"] == "chip.log.full"
        with ChipClient(chip.address, rig.credentials) as client, waiting(lambda: event(connection)) as answers:
            log = read(rig, chip)
            assert len(log.entries) == count + 1  # And the boot; what was refused was not logged.
            assert findings(log) == []
            acknowledge(log, rig.credentials, rig.witness)
        assert answers[0]["index"] == count + 1
        assert snapshot(connection)["index"] == count + 2
        with ChipClient(chip.address, rig.credentials) as client:
            with pytest.raises(ChipError) as caught:
                list(client.entries(1))
            assert caught.value.reason == "chip.log.released"
            assert client.consistency_proof(1, count + 3)
        later = read(rig, chip)
        assert findings(later) == []
        assert len(later.entries) == count + 3
    with rig.chip() as chip:  # It starts again on what is left.
        assert findings(read(rig, chip)) == []


def test_a_chip_on_an_older_image_serves_no_workload_and_says_so(rig: Rig, tmp_path: Path) -> None:
    """Yesterday's NVRAM is put back; the counter is not part of it. The chip cannot hide it from the next Verifier."""
    nvram = tmp_path / "chip" / "nvram"
    with rig.chip() as chip:
        chip.stop()
        shutil.copytree(nvram, tmp_path / "yesterday")
        chip.start()
        connection = connect(chip)
        event(connection)
        chip.stop()
        shutil.move(nvram, tmp_path / "today")
        shutil.copytree(tmp_path / "yesterday", nvram)
        chip.start()
        hello = ask(connect(chip), {"do": "hello"})
        assert hello is not None
        assert hello["error"] == "chip.log.rolled_back"
        assert findings(read(rig, chip)) == ["chip.log.rolled_back"]  # at first contact
        assert rig.witness.refused(rig.ueid)[0].reason == "chip.log.rolled_back"
        chip.stop()
        shutil.rmtree(nvram)
        shutil.move(tmp_path / "today", nvram)
        chip.start()
        log = read(rig, chip)
        assert findings(log) == []
        assert [each.id for each in chip_witness.check(log, rig.witness.key)] == ["chip.log.rolled_back"]
        acknowledge(log, rig.credentials, rig.witness)
        assert chip_witness.check(read(rig, chip), rig.witness.key) == []  # It is reported once.


def test_both_stores_set_back_are_caught_at_the_next_contact(rig: Rig, tmp_path: Path) -> None:
    """Restoring the counter with the log leaves a chip that knows nothing; the witness remembers."""
    with rig.chip() as chip:
        chip.stop()
        shutil.copytree(tmp_path / "chip", tmp_path / "backup")
        chip.start()
        connection = connect(chip)
        for _ in range(3):
            event(connection)
        log = read(rig, chip)
        assert findings(log) == []
        acknowledge(log, rig.credentials, rig.witness)
        chip.stop()
        shutil.rmtree(tmp_path / "chip")
        shutil.copytree(tmp_path / "backup", tmp_path / "chip")
        chip.start()
        assert findings(read(rig, chip)) == ["chip.log.rolled_back"]
        connection = connect(chip)
        for _ in range(9):  # Made as long as it was, it is another history.
            event(connection)
        assert findings(read(rig, chip)) == ["chip.log.changed"]
        assert len(rig.witness.refused(rig.ueid)) == 2


def test_proofs_of_a_real_chip_verify(rig: Rig) -> None:
    from weighbridge.core import merkle

    with rig.chip() as chip, ChipClient(chip.address, rig.credentials) as client:
        connection = connect(chip)
        for _ in range(6):
            event(connection)
        hashes = [merkle.leaf_hash(entry) for entry in client.entries(7)]
        for index in range(7):
            proof = client.inclusion_proof(index, 7)
            merkle.verify_inclusion(hashes[index], index, 7, proof, merkle.root(hashes))
        merkle.verify_consistency(3, 7, client.consistency_proof(3, 7), merkle.root(hashes[:3]), merkle.root(hashes))
        for wrong in (lambda: client.inclusion_proof(7, 7), lambda: client.consistency_proof(3, 1 << 40)):
            with pytest.raises(UsageError):
                wrong()


def test_a_mode_that_cannot_work_is_refused() -> None:
    key = tlog.NoteSigner("log", tlog.LOG, bytes(32)).key
    for wrong in ({"mode": "wait"}, {"witness": key}, {"patience_s": -1.0}, {"patience_s": float("nan")}):
        with pytest.raises(UsageError):
            Reporting(**wrong)  # type: ignore[arg-type]


def test_an_event_whose_time_counts_is_reported_at_once_and_its_first_time_is_known(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the witness's answer is lost, and the next one comes a hundred seconds later by its clock."""
    taken, lost, answered = rig.witness.end, list[int](), list[int]()

    def end(incoming: Any) -> bytes:
        note = taken(incoming)
        if incoming.report.checkpoint.size >= 3 and not lost:
            lost.append(incoming.report.checkpoint.size)
            monkeypatch.setattr(rig.witness, "_clock", lambda: time.time() + 100)
            raise WeighbridgeError("the answer is lost")
        answered.append(incoming.report.checkpoint.size)
        return note

    monkeypatch.setattr(rig.witness, "end", end)
    with rig.serve() as address, rig.chip(report="log", witness=address) as chip:
        connection = connect(chip)

        def witnessed(index: int) -> int | None:
            answer = ask(connection, {"do": "witnessed", "index": index})
            assert answer is not None
            return None if answer["time_s"] is None else int(answer["time_s"])

        plain, counts = event(connection)["index"], event(connection, "segment")["index"]
        deadline = time.monotonic() + 30
        while witnessed(counts) is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert lost, "the first answer about it never came"
        first = next(contact for contact in rig.witness.contacts(rig.ueid) if contact.size > counts)
        assert witnessed(counts) == first.time_s < time.time() + 50
        assert witnessed(plain) is not None
        # The report that brought it goes on, with whatever is in the log when its own checkpoint is made.
        while max(answered, default=0) <= counts:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        later = event(connection)["index"]
        time.sleep(1.0)
        assert witnessed(later) is None, "other events wait for a reason to report"


def test_a_report_does_not_tell_which_name_a_hidden_event_has(rig: Rig) -> None:
    """In a confidential boot each event is reported at once: if only some were, their times would name them."""
    with rig.serve() as address, rig.chip(report="log", witness=address, confidential=True) as chip:
        connection = connect(chip)
        for name in ("x", "segment", "manifest-draft", "regenerated 3"):
            index, deadline = event(connection, name)["index"], time.monotonic() + 30
            while rig.witness.held(rig.ueid).size <= index:
                assert time.monotonic() < deadline, name
                time.sleep(0.05)


def test_a_log_that_another_call_takes_in_meanwhile_is_read_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chip that reports by itself, or another inspection, is no finding."""
    with rig.chip() as chip:
        connection = connect(chip)
        assert event(connection)["ok"]
        opened, before = Witness.open, rig.witness.held(rig.ueid).size

        def overtaken(self: Witness, ueid: bytes, checkpoint: bytes, token: bytes) -> Any:
            monkeypatch.setattr(Witness, "open", opened)
            acknowledge(read(rig, chip), rig.credentials, rig.witness)
            return opened(self, ueid, checkpoint, token)

        monkeypatch.setattr(Witness, "open", overtaken)
        log = read(rig, chip)
        assert rig.witness.held(rig.ueid).size > before
        assert log.history is None
        assert findings(log) == []
