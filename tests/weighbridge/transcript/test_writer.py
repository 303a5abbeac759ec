import pytest
import torch
from support.untrained_transcripts import RECORDS, append, commitment, start, state, write_whole

from weighbridge.attest.manifest import SigningKey
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.writer import TranscriptWriter


def test_a_used_directory_is_refused(tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(UsageError):
        start(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    with pytest.raises(UsageError):
        start(tmp_path / "mine")


@pytest.mark.parametrize(
    "draft",
    [{"data": 1}, {"format": 1}, {"x": object()}, {"x": 2**64}, {"name": ""}, {"name": "\n"}, {"name": 7}],
    ids=["data", "format", "object", "too large", "no name", "control", "number"],
)
def test_drafts_that_cannot_be_written(tmp_path, draft):
    with pytest.raises(UsageError):
        TranscriptWriter(tmp_path / "run", draft=draft, key=SigningKey.generate())


def test_the_directory_names_the_transcript(tmp_path):
    TranscriptWriter(tmp_path / "my run", draft={}, key=SigningKey.generate()).close()
    assert Transcript.open(tmp_path / "my run").manifest.name == "my run"


def test_draft_is_durable_before_the_first_step(tmp_path):
    writer = start(tmp_path / "run", data=commitment())
    on_disk = {path.name for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert on_disk == {"draft.cbor", "leaves.bin", "order.bin"}
    assert writer.head == writer.draft_digest


@pytest.mark.parametrize(
    "changes",
    [
        {"kind": "step"},
        {"kind": "other"},
        {"tape": bytes(32)},
        {"tape": b"short"},
        {"values": [None]},
        {"values": [2**64]},
        {"values": [torch.tensor(1.0)]},
        {"host": ["text"]},
        {"rng": {"cpu": (0, -1)}},
        {"rng": {"cpu": (0,)}},
        {"state": bytes(31)},
        {"checksums": bytes(7)},
        {"snapshots": [(b"", 0, 0)]},
        {"snapshots": [(b"x", 0)]},
        {"rounded": -1},
        {"logged": 1.0},
        {"undeclared": {"z": torch.tensor(1j)}},
        {"records": [0]},
    ],
    ids=str,
)
def test_a_step_that_cannot_be_written_leaves_nothing(tmp_path, changes):
    writer = start(tmp_path / "run")
    head = writer.head
    with pytest.raises(UsageError):
        append(writer, [], **changes)
    assert (writer.steps, writer.head) == (0, head)
    append(writer, [])
    writer.close()
    assert Transcript.open(tmp_path / "run").steps == 1


def test_a_checkpoint_must_be_the_state_after_the_last_step(tmp_path):
    writer = start(tmp_path / "run")
    append(writer, [])
    wrong = state(1)
    wrong.storages["a"][0] ^= 1
    for checkpoint in (state(0), state(2), wrong):
        with pytest.raises(UsageError):
            writer.checkpoint(checkpoint)
    writer.checkpoint(state(1))
    with pytest.raises(UsageError):
        writer.checkpoint(state(1))
    writer.close()
    assert Transcript.open(tmp_path / "run").checkpoint_steps == [1]


def test_a_model_that_existed_before_is_checkpoint_0(tmp_path):
    writer = start(tmp_path / "run")
    writer.checkpoint(state(0))
    append(writer, [])
    writer.close()
    assert Transcript.open(tmp_path / "run").checkpoint(0).rng == {"cpu": 0}


def test_batches_are_held_to_the_commitment(tmp_path):
    writer = start(tmp_path / "run", data=commitment())
    ids = commitment().ids().tolist()
    append(writer, [])
    with pytest.raises(UsageError) as error:
        append(writer, ids[2:4], records=ids[2:4])
    assert error.value.reason == "data.order.differs"
    with pytest.raises(UsageError) as error:
        append(writer, ids[1::-1])
    assert error.value.reason == "data.record.differs"
    for step in range(8):
        assert append(writer, ids[2 * step : 2 * step + 2]).records == ids[2 * step : 2 * step + 2]
    with pytest.raises(UsageError) as error:
        append(writer, [0, 1])
    assert error.value.reason == "data.order.differs"
    writer.close()
    assert Transcript.open(tmp_path / "run").check_data() == []
    assert len(ids) == 2 * len(RECORDS)


def test_unused_tapes_are_dropped(tmp_path):
    writer = write_whole(tmp_path / "run", close=False)
    unused = writer.put_tape(b"never run")
    assert writer.put_tape(b"never run") == unused
    writer.close()
    transcript = Transcript.open(tmp_path / "run")
    with pytest.raises(WeighbridgeError):
        transcript.tape(unused)


def test_segments_end_at_checkpoints_and_at_their_length(tmp_path):
    writer = start(tmp_path / "run")
    append(writer, [])
    writer.checkpoint(state(1))
    for _ in range(3):
        append(writer, [])
    writer.checkpoint(state(4))
    append(writer, [])
    writer.close()
    names = sorted(path.name for path in (tmp_path / "run/steps").iterdir())
    assert names == [f"{first:08d}.cbor.zst" for first in (0, 1, 3, 4)]
    assert Transcript.open(tmp_path / "run").steps == 5


def test_a_segment_ends_when_it_is_large(tmp_path):
    writer = start(tmp_path / "run")
    append(writer, [], undeclared={"large": torch.zeros(16 << 20)})
    append(writer, [])
    writer.close()
    assert sorted(path.name for path in (tmp_path / "run/steps").iterdir()) == [
        "00000000.cbor.zst",
        "00000001.cbor.zst",
    ]
    assert Transcript.open(tmp_path / "run").undeclared(0)["large"].shape == (16 << 20,)


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path):
    writer = write_whole(tmp_path / "run", steps=1, close=False)
    ids = commitment().ids().tolist()
    (tmp_path / "run/journal").rename(tmp_path / "aside")
    (tmp_path / "run/journal").write_text("in the way")
    with pytest.raises(WeighbridgeError) as error:
        append(writer, ids[2:4])
    assert error.value.reason == "transcript.write"
    (tmp_path / "run/journal").unlink()
    (tmp_path / "aside").rename(tmp_path / "run/journal")
    append(writer, ids[2:4])
    writer.close()
    assert Transcript.open(tmp_path / "run").steps == 3
