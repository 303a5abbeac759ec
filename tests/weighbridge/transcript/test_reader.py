import math
import os
import shutil
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from support.untrained_transcripts import (
    RECORDS,
    TAPE,
    VALUES,
    append,
    batch,
    commitment,
    log,
    start,
    state,
    write_whole,
)

from weighbridge.attest.manifest import Predicate, SigningKey, sign_manifest
from weighbridge.core import digests
from weighbridge.core.bounded import Limits, compress
from weighbridge.core.errors import TranscriptError, UsageError, WeighbridgeError
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.state import checkpoint_digest, write_checkpoint
from weighbridge.transcript.steps import pack_logs, rounding_path
from weighbridge.transcript.tensor_file import TensorFile, write_tensors
from weighbridge.transcript.writer import MANIFEST


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("transcript") / "run"
    write_whole(path)
    return path


@pytest.fixture
def run(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "run"))


def files(path):
    return sorted(entry.relative_to(path).as_posix() for entry in path.rglob("*") if entry.is_file())


def forged(path, target, data):
    """Replaces one file, and lists and signs the result, as a dishonest Prover could."""
    manifest = Transcript.open(path).manifest
    (path / target).write_bytes(data)
    listed = {name: (size, digest) for name, size, digest in manifest.files}
    listed[target] = (len(data), digests.bytes_digest(data).hex())
    claims = {field.name: getattr(manifest, field.name) for field in fields(Predicate)}
    claims["files"] = tuple((name, *listed[name]) for name in sorted(listed))
    (path / MANIFEST).write_bytes(sign_manifest(Predicate(**claims), SigningKey.generate()))


def test_what_was_written_is_read(original):
    transcript = Transcript.open(original)
    assert transcript.steps == 5
    assert transcript.checkpoint_steps == [1]
    assert transcript.manifest.complete
    assert (transcript.manifest.rounded, transcript.manifest.logged) == (500, 10)
    assert transcript.draft["seed"] == 7
    assert transcript.digest == digests.bytes_digest((original / MANIFEST).read_bytes()).hex()
    ids = commitment().ids().tolist()
    for step in (4, 0, 2, 1, 3):
        record = transcript.step(step)
        expected = batch(ids[2 * step - 2 : 2 * step]) if step else {}
        found = transcript.batch(step)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in found)
        assert transcript.undeclared(step)["scale"].item() == 0.5 * step
        assert transcript.rounding(step) == log(step)
        assert record.records == (ids[2 * step - 2 : 2 * step] if step else [])
        assert record.snapshots == [(b"\x01" * 17, 40 + step, 3)]
        assert record.rng == {"cpu": (4 * step, 4 * step + 4)}
    assert transcript.tape(transcript.step(0).tape) == TAPE
    checkpoint = transcript.checkpoint(1)
    assert checkpoint.views == state(1).views
    assert checkpoint.rng == {"cpu": 4}
    assert torch.equal(checkpoint.storages["a"], state(1).storages["a"])
    assert transcript.check_data() == []


def test_values_keep_their_type_and_bits(original):
    record = Transcript.open(original).step(1)
    assert [type(value) for value in record.values] == [type(value) for value in VALUES]
    assert [math.copysign(1, value) for value in record.values] == [math.copysign(1, value) for value in VALUES]
    assert record.values == VALUES
    assert math.isnan(record.host[0])


def test_heads_chain_records_from_the_draft(original):
    transcript = Transcript.open(original)
    head = digests.bytes_digest((original / "draft.cbor").read_bytes())
    assert transcript.head(-1) == head == transcript.draft_digest
    for record in transcript.records():
        head = digests.chain(head, record.digest())
        assert transcript.head(record.step) == head
    assert head.hex() == transcript.manifest.head


def test_no_step_outside(original):
    transcript = Transcript.open(original)
    for read in (transcript.step, transcript.batch, transcript.rounding, transcript.head, transcript.checkpoint):
        with pytest.raises(TranscriptError):
            read(5)
        with pytest.raises(TranscriptError):
            read(-2)


def test_any_flipped_byte_is_found(original, run):
    codes = {}
    for name in files(original):
        data = bytearray((original / name).read_bytes())
        for position in sorted({0, len(data) // 3, len(data) // 2, len(data) - 1}):
            changed = data.copy()
            changed[position] ^= 0x01
            (run / name).write_bytes(changed)
            with pytest.raises(WeighbridgeError) as error:
                Transcript.open(run)
            codes.setdefault(name, set()).add(error.value.reason)
        (run / name).write_bytes(data)
    assert {"transcript.file.altered"} == set().union(*(codes[name] for name in codes if name != MANIFEST))
    assert codes[MANIFEST] <= {"transcript.manifest.malformed", "transcript.manifest.signature"}
    Transcript.open(run)


def test_every_byte_of_the_manifest_counts(original, run):
    data = (original / MANIFEST).read_bytes()
    for position in range(0, len(data), 7):
        changed = bytearray(data)
        changed[position] ^= 1 << position % 8
        (run / MANIFEST).write_bytes(changed)
        with pytest.raises(TranscriptError):
            Transcript.open(run)


def test_truncated_missing_and_oversized_files(original, run):
    for name in files(original):
        data = (original / name).read_bytes()
        special = name == MANIFEST
        for change, code in (
            (data[: len(data) // 2], "transcript.manifest.malformed" if special else "transcript.file.altered"),
            (b"", "transcript.manifest.malformed" if special else "transcript.file.altered"),
            (data + b"\x00", "transcript.manifest.malformed" if special else "transcript.file.oversized"),
            (None, "transcript.file.missing"),
        ):
            (run / name).unlink()
            if change is not None:
                (run / name).write_bytes(change)
            with pytest.raises(TranscriptError) as error:
                Transcript.open(run)
            assert error.value.reason == code, name
            (run / name).write_bytes(data)
    Transcript.open(run)


@pytest.mark.parametrize("name", ["extra", "steps/extra", "steps/00000009.cbor.zst", ".hidden", "a/b/c", "journal/x"])
def test_a_foreign_file_is_unlisted(run, name):
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).write_bytes(b"x")
    with pytest.raises(TranscriptError) as error:
        Transcript.open(run)
    assert error.value.reason == "transcript.file.unlisted"


def test_links_are_refused_even_to_the_right_content(run, tmp_path):
    target = run / "draft.cbor"
    target.rename(tmp_path / "draft.cbor")
    target.symlink_to(tmp_path / "draft.cbor")
    with pytest.raises(TranscriptError) as error:
        Transcript.open(run)
    assert error.value.reason == "transcript.file.altered"
    target.unlink()
    shutil.copy(tmp_path / "draft.cbor", target)
    (run / "link").symlink_to("draft.cbor")
    with pytest.raises(TranscriptError) as error:
        Transcript.open(run)
    assert error.value.reason == "transcript.file.unlisted"
    (run / "link").unlink()
    (run / MANIFEST).rename(tmp_path / MANIFEST)
    (run / MANIFEST).symlink_to(tmp_path / MANIFEST)
    with pytest.raises(TranscriptError) as error:
        Transcript.open(run)
    assert error.value.reason == "transcript.file.altered"


def content(transcript):
    """Reads everything that a replay reads: by name, what it is, or why it cannot be read."""
    reads = [(transcript.tape, digests.bytes_digest(TAPE))]
    for read in (transcript.step, transcript.batch, transcript.undeclared, transcript.rounding):
        reads += [(read, step) for step in range(transcript.steps)]
    reads += [(transcript.checkpoint, step) for step in transcript.checkpoint_steps]
    found = {}
    for read, place in reads:
        try:
            found[read.__name__, place] = repr(read(place))
        except WeighbridgeError:
            found[read.__name__, place] = None
    return found


@pytest.mark.parametrize("kind", ["another", "cut", "grown", "link", "pipe"])
def test_files_that_change_once_they_were_compared_change_nothing(run, tmp_path, kind):
    """Whoever shares a directory with its reader swaps files after the manifest's digests have been compared."""
    honest = content(Transcript.open(run))
    assert None not in honest.values()
    opened = Transcript.open(run)
    writer = start(tmp_path / "another", data=None)
    elsewhere = replace(state(2), step=1)
    append(writer, [], state=checkpoint_digest(elsewhere))
    writer.checkpoint(elsewhere)
    for _ in range(opened.steps - 1):
        append(writer, [1, 2], values=VALUES[::-1], rounding=b"")
    writer.close()
    for name in files(run):
        place, other = run / name, tmp_path / "another" / name
        if kind == "another" and other.exists():
            shutil.copy(other, place)
        elif kind in ("cut", "grown"):
            with place.open("r+b") as file:
                file.truncate(place.stat().st_size // 2 if kind == "cut" else 1 << 33)  # a hole, no bytes on the disk
        elif kind in ("link", "pipe"):
            place.unlink()
            place.symlink_to("/dev/zero") if kind == "link" else os.mkfifo(place)
    changed = content(opened)
    assert {name: each for name, each in changed.items() if each is not None}.items() <= honest.items()
    assert None in changed.values()


def test_limits_hold(run):
    packed = max(path.stat().st_size for path in (run / "steps").iterdir())
    for limits, code in (
        (Limits(manifest=10), "transcript.file.oversized"),
        (Limits(files=3), "transcript.file.oversized"),
        (Limits(steps=4), "transcript.file.oversized"),
        (Limits(file=100), "transcript.file.oversized"),
        (Limits(records=packed), "format.malformed"),
    ):
        with pytest.raises(WeighbridgeError) as error:
            Transcript.open(run, limits=limits)
        assert error.value.reason == code
    transcript = Transcript.open(run, limits=Limits(tape=4))
    with pytest.raises(WeighbridgeError):
        transcript.tape(transcript.step(0).tape)


def test_a_directory_without_a_manifest(tmp_path):
    with pytest.raises(TranscriptError) as error:
        Transcript.open(tmp_path)
    assert error.value.reason == "transcript.file.missing"
    with pytest.raises(TranscriptError):
        Transcript.open(tmp_path / "nowhere")


def test_a_signed_lie_about_a_rounding_log_is_found(run):
    forged(run, rounding_path(1), pack_logs([log(1), log(3)]))
    transcript = Transcript.open(run)
    assert transcript.rounding(1) == log(1)
    with pytest.raises(TranscriptError) as error:
        transcript.rounding(2)
    assert error.value.reason == "transcript.rounding.differs"


def test_a_signed_zstd_bomb_is_refused(run):
    forged(run, rounding_path(1), compress(bytes(1 << 24)))
    transcript = Transcript.open(run, limits=Limits(rounding=1 << 20))
    with pytest.raises(WeighbridgeError):
        transcript.rounding(1)


def test_a_signed_other_checkpoint_is_found(run, tmp_path):
    other = state(1)
    other.storages["a"][3] ^= 1
    write_checkpoint(tmp_path / "c", other)
    forged(run, "checkpoints/00000001.safetensors", (tmp_path / "c").read_bytes())
    with pytest.raises(TranscriptError) as error:
        Transcript.open(run).checkpoint(1)
    assert error.value.reason == "transcript.checkpoint.differs"


def test_a_signed_other_batch_is_a_finding(run, tmp_path):
    file = TensorFile(run / "batches/00000001.safetensors")
    tensors = {name: file.read(name) for name in file}
    tensors["2/batch/label"][0] += 1
    write_tensors(tmp_path / "b", tensors)
    forged(run, "batches/00000001.safetensors", (tmp_path / "b").read_bytes())
    transcript = Transcript.open(run)
    assert [(finding.id, finding.subject) for finding in transcript.check_data()] == [
        ("transcript.batch.differs", "step 2")
    ]


def test_signed_steps_of_another_run_do_not_chain(run, tmp_path):
    write_whole(tmp_path / "other", data=False)
    forged(run, "steps/00000003.cbor.zst", (tmp_path / "other/steps/00000003.cbor.zst").read_bytes())
    with pytest.raises(TranscriptError) as error:
        Transcript.open(run)
    assert error.value.reason == "transcript.head.mismatch"


def test_foreign_data_are_findings(tmp_path, monkeypatch):
    """A recorder that commits to one data set and uses another leaves a transcript whose data do not match."""
    writer = start(tmp_path / "run", data=commitment())
    ids = commitment().ids().tolist()
    append(writer, [])
    monkeypatch.setattr(writer, "_record_ids", lambda found, records: records or [])
    append(writer, [], batch=batch([(i + 1) % len(RECORDS) for i in ids[:2]]), records=ids[:2])
    append(writer, [], batch=batch(ids[4:6]), records=ids[4:6])
    append(writer, [], batch=batch(ids[4:6]), records=[ids[4], 8])
    append(writer, ids[6:8], records=ids[6:8])
    writer.close()
    found = [(finding.id, finding.subject) for finding in Transcript.open(tmp_path / "run").check_data()]
    assert found == [
        ("data.record.differs", "step 1"),
        ("data.order.differs", "step 2"),
        ("data.order.differs", "step 3"),
        ("data.record.differs", "step 3"),
    ]


def test_data_that_were_not_committed_to(tmp_path):
    write_whole(tmp_path / "run", data=False)
    transcript = Transcript.open(tmp_path / "run")
    assert transcript.data is None
    assert not (tmp_path / "run/data").exists()
    assert [(finding.id, finding.severity) for finding in transcript.check_data()] == [
        ("data.not_precommitted", "info")
    ]
    assert len(transcript.step(1).record_digests) == 2


def test_an_empty_and_an_aborted_recording_are_valid(tmp_path):
    writer = start(tmp_path / "empty")
    assert writer.head == writer.draft_digest
    writer.abort()
    transcript = Transcript.open(tmp_path / "empty")
    assert (transcript.steps, transcript.manifest.complete) == (0, False)
    writer = write_whole(tmp_path / "aborted", close=False, steps=2)
    with pytest.raises(UsageError):
        append(writer, [0, 1], values=[object()])
    identifier = writer.abort()
    assert writer.close() == identifier
    transcript = Transcript.open(tmp_path / "aborted")
    assert (transcript.steps, transcript.manifest.complete, transcript.digest) == (3, False, identifier)
    with pytest.raises(UsageError):
        append(writer, [])


def test_same_content_gives_the_same_files(original, tmp_path):
    """Everything but the manifest (key, time) is a function of what was recorded."""
    write_whole(tmp_path / "again")
    for name in files(original):
        if name != MANIFEST:
            assert (tmp_path / "again" / name).read_bytes() == (original / name).read_bytes(), name
