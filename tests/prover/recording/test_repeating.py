"""What a Recorder has the chip log of its segments: in order, after a crash, without a witness, and when it cannot."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from support.tied_rows import ones, square, ties
from torch import Tensor

import prover
from prover import Recorder, Repeats
from prover.recording import repeating
from weighbridge.attest.beacon import LocalBeacon
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.errors import FormatError, UsageError
from weighbridge.transcript.reader import Transcript

BEGUN = time.time()


class ListingChip:
    """A chip that lists the events that it is told, and is witnessed some seconds after the beacon began, or never."""

    ueid = b"a listing chip of a test"
    pending = False

    def __init__(self, seen_s: int | None = 5) -> None:
        self.events: list[tuple[str, bytes]] = []
        self.seen_s = seen_s

    def log_event(self, name: str, digest: bytes) -> int:
        self.events.append((name, digest))
        return len(self.events) - 1

    def witnessed(self, index: int) -> int | None:
        return None if self.seen_s is None else int(BEGUN) - 3600 + self.seen_s

    def declare_weights(self, tensors: Iterable[Tensor]) -> None: ...

    def on_snapshot(self, note: Any, where: Any = None) -> None: ...

    def safepoint(self, step: int, op: int, running: bytes, head: bytes, flush: Any) -> int | None:
        return None

    def named(self, name: str) -> list[bytes]:
        return [digest for each, digest in self.events if each == name]


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A beacon that began an hour ago, and its first ten values."""
    root = tmp_path_factory.mktemp("beacon")
    LocalBeacon.load(root / "key", clock=lambda: BEGUN - 3600)
    for number in range(1, 11):
        LocalBeacon.load(root / "key").publish(root / "values", number)
    return root / "values"


class CrashError(Exception):
    """Ends a training."""


def record(path: Path, chip: ListingChip, repeats: Repeats, stop: int = 9, **also: Any) -> None:
    """Records up to four steps, of which two are a segment; stops within step `stop`."""
    with Recorder(path, seed=7, checkpoint_every=2, chip=chip, logs="on-demand", repeats=repeats, **also) as recorder:
        with recorder.initialisation():
            built = ones()
        recorder.attach(*built)
        for seed in range(recorder.updates, 4):
            with recorder.step(ties(seed)):
                square(ties(seed), *built)
                if seed + 1 == stop:
                    raise CrashError


def seldom(values: Path, delay_s: int = 60) -> Repeats:
    """Of which no segment is ever due."""
    return Repeats(beacon=values, share=1e-15, delay_s=delay_s)


def ends(path: Path) -> list[bytes]:
    """The running heads after the segments, as a Verifier takes them from the manifest."""
    transcript = Transcript.open(path)
    edges = sorted({*transcript.manifest.checkpoints, transcript.steps})
    assert edges == [1, 3, 5]
    return [transcript.head(edge - 1) for edge in edges]


def test_the_end_of_each_segment_is_logged_and_none_is_due(tmp_path: Path, values: Path) -> None:
    chip = ListingChip()
    record(tmp_path / "run", chip, seldom(values))
    assert chip.named("segment") == ends(tmp_path / "run")
    assert [name for name, _ in chip.events] == ["manifest-draft", *["segment"] * 3]
    assert [each.name for each in tmp_path.iterdir() if "repeat" in each.name] == []


@pytest.mark.parametrize("stop", [1, 3, 4])
def test_a_recording_that_goes_on_after_a_crash_logs_what_is_missing(tmp_path: Path, values: Path, stop: int) -> None:
    """What the chip has logged it may log again, since the first event counts; nothing else is ever logged."""
    first, second = ListingChip(seen_s=None), ListingChip()
    with pytest.raises(CrashError):
        record(tmp_path / "run", first, seldom(values), stop, resume=True)
    assert (tmp_path / "run.repeats.json").exists()
    record(tmp_path / "run", second, seldom(values), resume=True)
    logged = first.named("segment") + second.named("segment")
    assert list(dict.fromkeys(logged)) == ends(tmp_path / "run")
    assert not (tmp_path / "run.repeats.json").exists()


def test_an_event_that_a_crash_came_before_is_logged_by_the_next_attempt(tmp_path: Path, values: Path) -> None:
    class Breaks(ListingChip):
        def log_event(self, name: str, digest: bytes) -> int:
            if len(self.named("segment")) == 1:
                raise CrashError
            return super().log_event(name, digest)

    first, second = Breaks(), ListingChip()
    with pytest.raises(CrashError):
        record(tmp_path / "run", first, seldom(values), resume=True)
    record(tmp_path / "run", second, seldom(values), resume=True)
    assert first.named("segment") + second.named("segment") == ends(tmp_path / "run")


def test_a_followed_program_repeats_too(tmp_path: Path, values: Path) -> None:
    """But not yet one that may be resumed: each of its attempts has a draft of its own."""
    chip = ListingChip()
    with prover.follow(
        tmp_path / "run", chip=chip, logs="on-demand", checkpoint_every=2, repeats=seldom(values)
    ) as run:  # fmt: skip
        model, optimizer = ones()
        for batch in run.batches(map(ties, range(4))):
            square(batch, model, optimizer)
    transcript = Transcript.open(tmp_path / "run")
    edges = [*transcript.checkpoint_steps, transcript.steps]
    assert chip.named("segment") == [transcript.head(step - 1) for step in dict.fromkeys(edges)]
    with pytest.raises(UsageError):
        prover.follow(tmp_path / "other", chip=chip, logs="on-demand", repeats=seldom(values), resume=True)


def test_without_a_witness_the_recording_ends_and_says_so(tmp_path: Path, values: Path) -> None:
    with pytest.warns(UserWarning, match="3 segments .* the chip's witness has not answered"):
        record(tmp_path / "run", ListingChip(seen_s=None), seldom(values, delay_s=1))
    assert Transcript.open(tmp_path / "run").manifest.complete


def test_without_a_value_the_recording_ends_and_says_so(tmp_path: Path, values: Path) -> None:
    with pytest.warns(UserWarning, match="3 segments .* their logs may be due"):
        record(tmp_path / "run", ListingChip(seen_s=500), seldom(values, delay_s=1))


def test_a_repeat_that_fails_is_told_and_the_recording_goes_on(
    tmp_path: Path, values: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeating, "MODULE", "no_such_process")
    chip = ListingChip()
    with pytest.warns(UserWarning, match="could not be repeated: the process died"):
        record(tmp_path / "run", chip, Repeats(beacon=values, share=1.0, delay_s=60))
    assert Transcript.open(tmp_path / "run").manifest.complete
    assert not [name for name, _ in chip.events if name.startswith("regenerated")]


def test_what_cannot_be_repeated_is_refused_before_it_begins(tmp_path: Path, values: Path) -> None:
    """Logs in full, no chip, a key of one's own, numbers out of range, and no beacon."""
    good: dict[str, Any] = {"chip": ListingChip(), "logs": "on-demand", "repeats": seldom(values)}
    wrong: list[dict[str, Any]] = [
        {"logs": "full"}, {"chip": None}, {"key": SigningKey.generate()},
        {"repeats": Repeats(beacon=values, share=0, delay_s=60)},
        {"repeats": Repeats(beacon=values, share=0.5, delay_s=0)},
        {"repeats": Repeats(beacon=tmp_path, share=0.5, delay_s=60)},
    ]  # fmt: skip
    for each in wrong:
        with pytest.raises(UsageError):
            Recorder(tmp_path / "run", seed=1, **{**good, **each})
    (tmp_path / "info").write_text("{}")
    with pytest.raises(FormatError):
        Recorder(tmp_path / "run", seed=1, **{**good, "repeats": Repeats(beacon=tmp_path, share=0.5, delay_s=60)})
