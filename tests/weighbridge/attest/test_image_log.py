"""A log of images only grows: a reader that saw more, or other entries, finds out."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from support.endorsed_images import ENDORSERS, KEYS, LOG, WITNESS, entry, release

from weighbridge.attest import image_log, tiles, tlog
from weighbridge.attest.image_release import Endorsed, endorse
from weighbridge.attest.sealed_order import SealedWorkerError
from weighbridge.core import merkle
from weighbridge.core.errors import UsageError


def refused(code: str, *arguments: object) -> None:
    with pytest.raises(SealedWorkerError) as caught:
        image_log.require_grown(*arguments)  # type: ignore[arg-type]
    assert caught.value.reason == code


def unreadable(at: Path, key: tlog.NoteKey = LOG.key) -> None:
    with pytest.raises(SealedWorkerError) as caught:
        image_log.read(at, key)
    assert caught.value.reason == "sealed.image.unlogged"


def bears_the_witness(at: Path) -> bool:
    return WITNESS.key.name in [each.name for each in image_log.read(at, LOG.key).note.signatures]


def test_a_log_is_read_as_it_was_written(tmp_path: Path) -> None:
    for number in range(5):
        assert len(image_log.append(tmp_path / "log", LOG, entry(number)).entries) == number + 1
    found = image_log.read(tmp_path / "log", LOG.key)
    assert [Endorsed.from_cbor(each) for each in found.entries] == [entry(number) for number in range(5)]
    assert found.checkpoint == tlog.Checkpoint(LOG.key.name, 5, found.root(5))


def test_what_was_seen_of_a_log_that_grew_is_its_beginning(tmp_path: Path) -> None:
    seen = [image_log.append(tmp_path / "log", LOG, entry(number)) for number in range(4)]
    for each in seen:
        assert image_log.require_grown(seen[-1], each.note.encode(), LOG.key) == each.checkpoint


@pytest.mark.finding("sealed.image.fork")
def test_a_log_that_forked_is_found(tmp_path: Path) -> None:
    """It shows an endorsed image of its own to one victim, and a log without that to all others."""
    for number in range(2):
        image_log.append(tmp_path / "log", LOG, entry(number))
    shutil.copytree(tmp_path / "log", tmp_path / "shown")
    public = [image_log.append(tmp_path / "log", LOG, entry(number)) for number in (2, 3)]
    victim = image_log.append(tmp_path / "shown", LOG, entry(99))
    for one, other in ((public[0], victim), (public[1], victim), (victim, public[0]), (victim, public[1])):
        refused("sealed.image.fork", one, other.note.encode(), LOG.key)


def test_a_log_that_lost_entries_is_found(tmp_path: Path) -> None:
    first = image_log.append(tmp_path / "log", LOG, entry(0))
    second = image_log.append(tmp_path / "log", LOG, entry(1))
    refused("sealed.image.fork", first, second.note.encode(), LOG.key)


def test_a_checkpoint_that_the_log_did_not_sign_accuses_no_log(tmp_path: Path) -> None:
    found = image_log.append(tmp_path / "log", LOG, entry(0))
    own = tlog.NoteSigner(LOG.key.name, tlog.LOG, os.urandom(32))
    made = tlog.Checkpoint(LOG.key.name, 1, bytes(32)).text
    refused("sealed.image.unlogged", found, tlog.Note(made, (own.sign(made),)).encode(), LOG.key)
    refused("sealed.image.unlogged", found, b"", LOG.key)


def test_a_log_with_other_entries_than_it_signed_is_refused(tmp_path: Path) -> None:
    at = tmp_path / "log"
    for number in range(3):
        image_log.append(at, LOG, entry(number))
    bundle = at / "tile" / "entries" / "000.p" / "3"
    whole = bundle.read_bytes()
    bundle.write_bytes(whole.replace(b"0.1.0", b"0.1.1", 1))
    unreadable(at)
    bundle.write_bytes(whole[:-1])
    unreadable(at)
    bundle.write_bytes(whole)
    hashes = at / "tile" / "0" / "000.p" / "3"
    hashes.write_bytes(bytes(96))
    unreadable(at)
    unreadable(tmp_path / "none")
    unreadable(at, tlog.NoteSigner(LOG.key.name, tlog.LOG, os.urandom(32)).key)


def test_nothing_false_or_double_is_entered(tmp_path: Path) -> None:
    at = tmp_path / "log"
    image_log.append(at, LOG, entry(0, 1))
    with pytest.raises(UsageError):
        image_log.append(at, LOG, entry(0, 1))
    with pytest.raises(SealedWorkerError):
        image_log.append(at, LOG, Endorsed(release(1), entry(0).signatures))
    with pytest.raises(SealedWorkerError):  # another key continues no log
        image_log.append(at, tlog.NoteSigner(LOG.key.name, tlog.LOG, os.urandom(32)), entry(1))
    assert len(image_log.read(at, LOG.key).entries) == 1
    image_log.append(at, LOG, entry(0, 3))  # more signatures are another entry
    assert image_log.read(at, LOG.key).proof(release(0).measurement, KEYS).index == 1


def test_an_entry_with_a_false_signature_hides_no_other(tmp_path: Path) -> None:
    """A log's keeper can enter one by other means than ours, with a key that was agreed on named in it."""
    at = tmp_path / "log"
    image_log.append(at, LOG, entry(0, 1))
    false = Endorsed(release(0), tuple((key, bytes(64)) for key in KEYS))
    real = Endorsed.signers
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Endorsed, "signers", lambda each: real(each) if each != false else [])
        image_log.append(at, LOG, false)
    found = image_log.read(at, LOG.key)
    assert len(found.entries) == 2
    assert found.proof(release(0).measurement, KEYS).index == 0


@pytest.mark.finding("sealed.image.unlogged")
def test_what_is_not_in_the_log_is_not_proven(tmp_path: Path) -> None:
    found = image_log.append(tmp_path / "log", LOG, entry(0))
    with pytest.raises(SealedWorkerError) as caught:
        found.proof(release(1).measurement, KEYS)
    assert caught.value.reason == "sealed.image.unlogged"


def test_a_cosignature_is_over_what_the_witness_saw(tmp_path: Path) -> None:
    at = tmp_path / "log"
    seen = image_log.append(at, LOG, entry(0))
    cosigned = image_log.cosign(at, seen, WITNESS, 5)
    assert image_log.read(at, LOG.key).note.verify(WITNESS.key) == [5]
    assert cosigned.note.verify(LOG.key) == [0]
    image_log.append(at, LOG, entry(1))
    with pytest.raises(UsageError, match="grown meanwhile"):
        image_log.cosign(at, seen, WITNESS, 6)


def test_a_monitor_goes_on_from_what_it_saw(tmp_path: Path) -> None:
    at, seen = tmp_path / "log", tmp_path / "seen"
    for number in range(3):
        image_log.append(at, LOG, entry(number))
        found, before = image_log.watch(at, LOG.key, seen)
        assert (len(found.entries), before) == (number + 1, number)
        assert seen.read_bytes() == found.note.encode()


def test_a_witness_cosigns_nothing_beside_what_it_cosigned(tmp_path: Path) -> None:
    """The log's keeper asks it for both forks, at once or one after the other, also by way of other processes."""
    image_log.append(tmp_path / "a", LOG, entry(0))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for name, number in (("a", 1), ("b", 2)):
        image_log.append(tmp_path / name, LOG, entry(number))

    def cosigned(name: str) -> bool:
        with suppress(SealedWorkerError):
            image_log.watch(tmp_path / name, LOG.key, tmp_path / "seen", witness=WITNESS, time_s=5)
        return bears_the_witness(tmp_path / name)

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(cosigned, ("a", "b"))) == 1
    assert sum(map(cosigned, ("a", "b"))) == 1


def test_a_monitor_that_was_shown_another_log_keeps_what_it_saw(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    other = image_log.append(tmp_path / "other", LOG, entry(9))
    image_log.append(tmp_path / "log", LOG, entry(0))
    for number in (0, 1):  # before it saw anything, and after
        before = seen.read_bytes() if seen.exists() else None
        with pytest.raises(SealedWorkerError) as caught:
            image_log.watch(tmp_path / "log", LOG.key, seen, [other.note.encode()])
        assert caught.value.reason == "sealed.image.fork"
        assert (seen.read_bytes() if seen.exists() else None) == before
        if not number:
            image_log.watch(tmp_path / "log", LOG.key, seen)


def test_a_log_with_a_false_endorsement_is_not_cosigned(tmp_path: Path) -> None:
    """Its keeper signed what `append` would not have entered."""
    false = Endorsed(release(1), entry(0).signatures).to_cbor()
    text = tlog.Checkpoint(LOG.key.name, 1, merkle.root([merkle.leaf_hash(false)])).text
    tiles.write(tmp_path / "log", [false], tlog.Note(text, (LOG.sign(text),)).encode(), b"")
    with pytest.raises(SealedWorkerError) as caught:
        image_log.watch(tmp_path / "log", LOG.key, tmp_path / "seen", witness=WITNESS, time_s=5)
    assert caught.value.reason == "sealed.image.endorsement"
    assert not (tmp_path / "seen").exists()
    assert not bears_the_witness(tmp_path / "log")


def test_images_that_are_entered_at_once_are_all_there(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: image_log.append(tmp_path / "log", LOG, entry(number)), range(6)))
    found = image_log.read(tmp_path / "log", LOG.key)
    assert {Endorsed.from_cbor(each).release for each in found.entries} == {release(number) for number in range(6)}


def test_a_log_that_spans_tiles_is_proven(tmp_path: Path) -> None:
    """Written at once, as appending one by one takes a while."""
    many = [endorse(release(number), ENDORSERS[0]).to_cbor() for number in range(300)]
    root = merkle.root([merkle.leaf_hash(each) for each in many])
    text = tlog.Checkpoint(LOG.key.name, len(many), root).text
    tiles.write(tmp_path / "log", many, tlog.Note(text, (LOG.sign(text),)).encode(), b"")
    found = image_log.append(tmp_path / "log", LOG, entry(1000))
    for number in (0, 255, 256, 299, 1000):
        made = found.proof(release(number).measurement, KEYS)
        tlog.verify_proof(made, made.extra or b"", LOG.key)


def test_a_witness_writes_through_no_link_and_waits_for_no_pipe_of_the_logs_keeper(tmp_path: Path) -> None:
    """The keeper links the names that a witness writes to what the witness has, or has it wait and hold its lock."""
    own, links, pipe, at = tmp_path / "own", tmp_path / "links", tmp_path / "pipe", tmp_path / "log"
    own.write_bytes(b"a key")
    for each in (links, pipe, at):
        image_log.append(each, LOG, entry(0))
    (links / f".checkpoint.{os.getpid()}").symlink_to(own)
    image_log.watch(links, LOG.key, tmp_path / "seen", witness=WITNESS, time_s=5)
    assert (bears_the_witness(links), own.read_bytes()) == (True, b"a key")
    for name, make in (("links", lambda path: path.symlink_to(tmp_path / "new")), ("pipe", os.mkfifo)):
        (tmp_path / name / ".lock").unlink()
        make(tmp_path / name / ".lock")
        with pytest.raises(UsageError, match="cannot write the log"):
            image_log.watch(tmp_path / name, LOG.key, tmp_path / "seen", witness=WITNESS, time_s=6)
    assert not (tmp_path / "new").exists()
    image_log.watch(at, LOG.key, tmp_path / "seen", witness=WITNESS, time_s=7)
    assert bears_the_witness(at)


def test_a_witness_keeps_to_its_first_sight_of_an_empty_log_and_sets_its_name_right(tmp_path: Path) -> None:
    """The keeper shows no entry, then others; and puts a false cosignature of the witness there before it looks."""
    at, seen, false = tmp_path / "log", tmp_path / "seen", tlog.Signature(WITNESS.key.name, WITNESS.key.id, bytes(72))

    def shows(*numbers: int) -> None:
        shutil.rmtree(at, ignore_errors=True)
        entries = [entry(number).to_cbor() for number in numbers]
        root = merkle.root([merkle.leaf_hash(each) for each in entries])
        text = tlog.Checkpoint(LOG.key.name, len(entries), root).text
        tiles.write(at, entries, tlog.Note(text, (false, LOG.sign(text), false)).encode(), b"")

    for numbers in ((), (0, 1)):
        shows(*numbers)
        image_log.watch(at, LOG.key, seen, witness=WITNESS, time_s=5)
        assert image_log.read(at, LOG.key).note.verify(WITNESS.key) == [5]
    for numbers in ((0,), (0, 2), (), (1, 0, 2)):
        shows(*numbers)
        with pytest.raises(SealedWorkerError) as caught:
            image_log.watch(at, LOG.key, seen, witness=WITNESS, time_s=6)
        assert caught.value.reason == "sealed.image.fork"


@pytest.mark.parametrize("others", [62, 63])
def test_a_witness_makes_no_log_unreadable(tmp_path: Path, others: int) -> None:
    """The keeper fills a checkpoint with signatures, and has the witness add the one that no reader takes."""
    note = image_log.append(tmp_path / "log", LOG, entry(0)).note
    for number in range(others):
        note = note.with_signature(tlog.NoteSigner(f"w{number}", tlog.WITNESS, os.urandom(32)).sign(note.text, 1))
    (tmp_path / "log" / "checkpoint").write_bytes(note.encode())
    with suppress(tlog.NoteError):
        image_log.watch(tmp_path / "log", LOG.key, tmp_path / "seen", witness=WITNESS, time_s=5)
    assert bears_the_witness(tmp_path / "log") == (others == 62)
