from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.untrained_transcripts import append, batch, start, state

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.digests import cbor
from weighbridge.core.errors import TranscriptError, UsageError, WeighbridgeError
from weighbridge.execution.continuing import Continuation, open_writer
from weighbridge.transcript import resumption_notes
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.resumption_notes import Resumption

KEY = SigningKey.generate()
NATURAL = st.integers(0, 2**64 - 1)


@st.composite
def resumptions(draw: st.DrawFn) -> list[Resumption]:
    found = []
    for step in sorted(draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=4))):
        begin = draw(st.integers(0, step))
        at = st.one_of(st.just(0), st.integers(begin, step))
        snapshot = st.tuples(st.binary(min_size=1, max_size=33), NATURAL, at, NATURAL)
        device = draw(st.none() | st.text(min_size=1, max_size=9))
        found.append(Resumption(step, begin, tuple(draw(st.lists(snapshot, max_size=3))), device))
    return found


@given(resumptions())
def test_round_trip(found: list[Resumption]) -> None:
    """decode(encode(r)) == r"""
    assert resumption_notes.decode(resumption_notes.encode(found)) == found


@given(st.binary(max_size=80))
def test_hostile_bytes_raise_only_weighbridge_errors(data: bytes) -> None:
    with pytest.raises(WeighbridgeError):
        resumption_notes.decode(data)


@pytest.mark.parametrize(
    "value",
    [
        [],
        [{"step": 3, "begin": 4, "snapshots": []}],
        [{"step": 3, "begin": 1, "snapshots": [], "more": 1}],
        [{"step": 3, "begin": 1, "snapshots": [], "device": 1}],
        [{"step": 3, "begin": 1, "snapshots": [], "device": ""}],
        [{"step": 3, "begin": 1, "snapshots": [], "device": "x" * 501}],
        [{"step": 3, "begin": True, "snapshots": []}],
        [{"step": 3, "begin": 1, "snapshots": [[b"u", 1, 4, 0]]}],
        [{"step": 3, "begin": 2, "snapshots": [[b"u", 1, 1, 1]]}],
        [{"step": 3, "begin": 1, "snapshots": [[b"", 1, 2, 0]]}],
        [{"step": 3, "begin": 1, "snapshots": [[b"u", 1, 2]]}],
        [{"step": 3, "begin": 1, "snapshots": []}, {"step": 2, "begin": 1, "snapshots": []}],
        {"step": 3},
    ],
)
def test_what_is_no_list_of_resumptions(value: object) -> None:
    with pytest.raises(WeighbridgeError):
        resumption_notes.decode(cbor(value))


# -- the writer that continues -----------------------------------------------------------------------------------------


def begun(path: Path, steps: int = 3) -> None:
    writer = start(path)
    append(writer, [])
    writer.checkpoint(state(1))
    for _ in range(steps):
        append(writer, [], batch=batch([writer.steps]))


def continued(path: Path) -> Continuation:
    writer = open_writer(path, draft={"name": "small", "seed": 7}, key=KEY, data=None, segment_steps=2)
    assert isinstance(writer, Continuation)
    return writer


def again(writer: Continuation, step: int, **changes: object) -> None:
    """Makes a step again as `append` made it."""
    recorded = writer.entry(step)
    fields = {
        name: getattr(recorded.record, name) for name in ("kind", "tape", "values", "host", "rng", "state", "checksums")
    }
    fields.update(rounding=recorded.rounding, batch=recorded.batch, undeclared=recorded.undeclared)
    writer.append_step(**{**fields, **changes})


def test_recomputed_steps_change_nothing_and_new_ones_follow(tmp_path: Path) -> None:
    begun(tmp_path / "whole" / "run", steps=5)
    begun(tmp_path / "run")
    writer = continued(tmp_path / "run")
    writer.begin(2)
    files = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    for step in (2, 3):
        again(writer, step)
        assert writer.head_before(step + 1) != writer.head_before(step)
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == files
    for _ in range(2):
        append(writer, [], batch=batch([writer.steps]))
    writer.close()
    transcript = Transcript.open(tmp_path / "run")
    assert transcript.resumptions == [Resumption(4, 2)]
    assert transcript.manifest.head == continued(tmp_path / "whole" / "run").head.hex()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kind": "edit"}, "of the kind step"),
        ({"tape": bytes(32)}, "another program"),
        ({"state": bytes(32)}, "state differ"),
        ({"values": [2.0]}, "values differ"),
        ({"host": []}, "host differ"),
        ({"rng": {}}, "rng differ"),
        ({"undeclared": {}}, "batch differ"),
    ],
)
def test_a_recomputed_step_must_be_the_same(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    begun(tmp_path / "run")
    writer = continued(tmp_path / "run")
    writer.begin(3)
    with pytest.raises(UsageError, match=says) as error:
        again(writer, 3, **changes)
    assert error.value.reason == "record.resume.differs"
    with pytest.raises(UsageError, match="ended at step 3"):
        writer.close()
    again(writer, 3)
    writer.close()


def test_another_batch_is_refused(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    writer = continued(tmp_path / "run")
    writer.begin(3)
    writer.check_batch(batch([3]))
    with pytest.raises(UsageError, match="batch of step 3"):
        writer.check_batch(batch([4]))


def test_another_draft_is_refused(tmp_path: Path) -> None:
    begun(tmp_path / "run")
    with pytest.raises(UsageError, match="another seed"):
        open_writer(tmp_path / "run", draft={"name": "small", "seed": 8}, key=KEY, data=None, segment_steps=2)


def test_a_crash_before_the_first_file_is_a_new_start(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "draft.cbor.tmp").write_bytes(b"half")
    writer = open_writer(tmp_path / "run", draft={"name": "small"}, key=KEY, data=None, segment_steps=2)
    assert not isinstance(writer, Continuation)
    append(writer, [])
    writer.close()
    assert Transcript.open(tmp_path / "run").resumptions == []


def test_a_transcript_cannot_resume_after_its_end(tmp_path: Path) -> None:
    writer = start(tmp_path / "run")
    append(writer, [])
    writer._placed.put("resumptions.cbor", resumption_notes.encode([Resumption(5, 1)]))
    writer.close()
    with pytest.raises(TranscriptError, match="after its last step"):
        Transcript.open(tmp_path / "run")
