import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from support.untrained_transcripts import append, batch, log, start, state, write_whole

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.errors import TranscriptError, UsageError
from weighbridge.transcript.reader import Transcript, recover

KEY = SigningKey.generate()


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """A recording that stopped in the middle of its third segment: step 0, 1-2, 3 in the journal."""
    path = tmp_path_factory.mktemp("crashed") / "run"
    write_whole(path, steps=3, close=False)
    return path


@pytest.fixture
def run(crashed, tmp_path):
    return Path(shutil.copytree(crashed, tmp_path / "run"))


def recovered(run):
    identifier = recover(run, key=KEY)
    transcript = Transcript.open(run)
    assert transcript.digest == identifier
    assert not transcript.manifest.complete
    for step in range(transcript.steps):
        assert transcript.rounding(step) == log(step)
    assert transcript.check_data() == []
    return transcript


def test_every_whole_step_is_recovered(run):
    transcript = recovered(run)
    assert (transcript.steps, transcript.checkpoint_steps) == (4, [1])
    assert (transcript.manifest.rounded, transcript.manifest.logged) == (400, 8)
    assert transcript.batch(3).keys() == {"image", "label"}
    assert transcript.checkpoint(1).rng == {"cpu": 4}


def test_recovery_gives_what_an_abort_would_have(run, tmp_path):
    write_whole(tmp_path / "aborted", steps=3, close=False).abort()
    aborted, transcript = Transcript.open(tmp_path / "aborted"), recovered(run)
    assert transcript.manifest.files == aborted.manifest.files
    assert transcript.manifest.head == aborted.manifest.head


@pytest.mark.parametrize("damage", ["truncate", "empty", "garbage", "missing"])
def test_a_torn_last_step_is_dropped(run, damage):
    torn = run / "journal/00000003.safetensors"
    data = torn.read_bytes()
    torn.write_bytes({"truncate": data[:-5], "empty": b"", "garbage": b"\xff" * 99, "missing": b""}[damage])
    if damage == "missing":
        torn.unlink()
    assert recovered(run).steps == 3


def test_a_crash_while_a_segment_is_written(crashed, run, tmp_path):
    """Journal files go last, so a segment that is only partly written is still in the journal."""
    writer = write_whole(tmp_path / "more", steps=3, close=False)
    journal = shutil.copytree(tmp_path / "more/journal", tmp_path / "journal")
    writer.finish_segment()
    for stage in range(4):
        again = Path(shutil.copytree(tmp_path / "more", tmp_path / f"stage{stage}"))
        shutil.copytree(journal, again / "journal", dirs_exist_ok=True)
        written = ["batches/00000003.safetensors", "rounding/00000003.wlog.zst", "steps/00000003.cbor.zst"]
        for name in written[stage:]:
            (again / name).rename(again / (name + ".tmp"))
        assert recovered(again).steps == 4


def test_a_damaged_segment_ends_the_transcript(run):
    damaged = run / "rounding/00000001.wlog.zst"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert recovered(run).steps == 1


def test_a_torn_or_later_checkpoint_is_dropped(run):
    (run / "checkpoints/00000003.safetensors").write_bytes(b"\x08")
    assert recovered(run).checkpoint_steps == [1]


def test_a_checkpoint_that_was_written_but_not_renamed_is_dropped(run):
    (run / "checkpoints/00000001.safetensors").rename(run / "checkpoints/00000001.safetensors.tmp")
    assert recovered(run).checkpoint_steps == []
    assert not (run / "checkpoints/00000001.safetensors.tmp").exists()


def test_a_lost_tape_is_an_error(run):
    for tape in (run / "tapes").iterdir():
        tape.unlink()
    with pytest.raises(TranscriptError) as error:
        recover(run, key=KEY)
    assert error.value.reason == "transcript.file.missing"


def test_foreign_files_are_left_alone(run):
    (run / "notes.txt").write_text("mine")
    recover(run, key=KEY)
    assert (run / "notes.txt").read_text() == "mine"
    with pytest.raises(TranscriptError) as error:
        Transcript.open(run)
    assert error.value.reason == "transcript.file.unlisted"


def test_what_cannot_be_recovered(run, tmp_path):
    with pytest.raises(TranscriptError):
        recover(tmp_path / "nothing", key=KEY)
    recover(run, key=KEY)
    with pytest.raises(UsageError):
        recover(run, key=KEY)


def _record_until_killed(path):
    writer = start(Path(path))
    append(writer, [])
    writer.checkpoint(state(1))
    while True:
        append(writer, [], batch=batch([writer.steps % 8]))


def test_a_killed_process_loses_no_whole_step(tmp_path):
    process = multiprocessing.get_context("spawn").Process(target=_record_until_killed, args=(str(tmp_path / "run"),))
    process.start()
    while not (tmp_path / "run/steps/00000007.cbor.zst").exists():
        assert process.is_alive()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    recover(tmp_path / "run", key=KEY)
    transcript = Transcript.open(tmp_path / "run")
    assert transcript.steps >= 9
    assert [finding.id for finding in transcript.check_data()] == ["data.not_precommitted"]
