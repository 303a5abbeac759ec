"""The digest of the work: the same for all who did it, another one for each lie about any result."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from blake3 import blake3
from support import audited
from support.forging import forge
from support.recording_store import RecordingStore
from support.workers_here import workers_here

from weighbridge.core.errors import UsageError
from weighbridge.execution.executor import Executor
from weighbridge.execution.memory_roots import may_write
from weighbridge.execution.replay import replay
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.work_digest import WorkDigest
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

KEY = bytes(range(32))
SEGMENT = (5, 7)


@pytest.fixture(scope="module")
def run(recordings: RecordingStore) -> Path:
    return recordings.get("audited", audited.record)


def _work(run: Path, key: bytes | None = KEY, steps: tuple[int, int] = SEGMENT) -> ReplayResult:
    with workers_here():
        return replay(run, steps=steps, work_key=key)


def _executed(run: Path, flip: int | None = None) -> tuple[bytes, int]:
    """Executes a step with the hook alone; returns the digest, and how many operations wrote something.

    Args:
        run: The transcript.
        flip: The operation of which a bit of the result is changed once it was made, on its way to the digest.
    """
    transcript = Transcript.open(run)
    step = SEGMENT[0]
    entry = transcript.step(step)
    tape = Tape.decode(transcript.tape(entry.tape))
    executor = Executor("cpu", transcript.draft["seed"], 1 << 30)
    executor.load(transcript.checkpoint(step))
    work = WorkDigest(KEY)
    take = work.begin(step, tape)

    def before(index: int, slots: Mapping[int, torch.Tensor]) -> None:
        shown = dict(slots)
        if flip is not None and index == flip + 1:
            slot = min(may_write(tape, flip))
            shown[slot] = shown[slot].clone()
            shown[slot][-1] ^= 1
        take(index, shown)

    executor.before = before
    executor.run(tape, entry.tape, entry, transcript.log(step), transcript.batch(step), transcript.undeclared(step))
    return work.digest(), sum(bool(may_write(tape, op)) for op in range(len(tape.nodes)))


def test_two_replays_of_a_segment_have_one_digest_and_each_key_and_segment_another(run: Path) -> None:
    first, again = _work(run), _work(run)
    assert first.verdict == "match"
    assert first.work is not None
    assert first.work == again.work
    others = {_work(run, bytes(32)).work, _work(run, steps=(3, 5)).work, _work(run, steps=(5, 9)).work}
    assert len(others | {first.work}) == 4


def test_a_replay_without_a_key_says_the_same_and_has_no_digest(run: Path) -> None:
    plain, keyed = _work(run, None), _work(run)
    assert plain.work is None
    said = plain.to_json() | {"work": keyed.work}
    assert keyed.to_json() == said


def test_a_bit_of_any_result_changes_it(run: Path) -> None:
    transcript = Transcript.open(run)
    tape = Tape.decode(transcript.tape(transcript.step(SEGMENT[0]).tape))
    honest, writing = _executed(run)
    writers = [op for op in range(len(tape.nodes)) if may_write(tape, op)]
    assert writing == len(writers) > 10
    for op in writers:
        assert _executed(run, op)[0] != honest, tape.nodes[op].op


def test_what_stands_in_the_transcript_does_not_give_it(run: Path) -> None:
    """States, checksums and records under the key, as an auditor would have them who executes nothing."""
    transcript = Transcript.open(run)
    records = [transcript.step(step) for step in range(*SEGMENT)]
    guesses = (
        b"".join(each.state for each in records), b"".join(each.checksums for each in records),
        b"".join(each.to_cbor() for each in records), records[-1].state, b"",
    )  # fmt: skip
    assert _work(run).work not in {blake3(each, key=KEY).hexdigest() for each in guesses}


def test_a_segment_that_does_not_match_has_the_digest_of_what_came_before(run: Path, tmp_path: Path) -> None:
    def change(step: int, _: Tape, fields: dict[str, object]) -> None:
        if step == SEGMENT[1] - 1:
            sums = bytearray(bytes(fields["checksums"]))  # type: ignore[call-overload]
            sums[40] ^= 1
            fields["checksums"] = bytes(sums)

    forged = _work(forge(run, tmp_path / "forged", change))
    assert forged.verdict == "mismatch"
    assert forged.work not in (None, _work(run).work)


def test_a_key_that_is_none_or_a_position_to_stop_at_is_bad_usage(run: Path) -> None:
    with pytest.raises(UsageError, match="32 bytes"):
        replay(run, work_key=b"short")
    with pytest.raises(UsageError, match="leave out"):
        replay(run, work_key=KEY, stop=(3, 1), salt=bytes(32))
