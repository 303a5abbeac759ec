"""`follow`: records a whole program, without blocks around its steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import torch

from prover.following.attempts import Attempts
from prover.following.fetches import fetches
from prover.following.jobs import joined
from prover.following.notes import Notes, TakenForBatch, Undeclared
from prover.following.program import Follower, any_open
from prover.following.segments import SegmentRecorder
from prover.recording.repeating import Repeats
from weighbridge.attest.chip_link import ChipLink
from weighbridge.attest.manifest import SigningKey, load_or_create_key
from weighbridge.core.errors import UsageError
from weighbridge.transcript.data import DataCommitment
from weighbridge.transcript.log_kinds import LogKind
from weighbridge.transcript.parentage import Parent
from weighbridge.transcript.supplements import key_path

T = TypeVar("T")


class Following:
    """A recording in progress; `follow` returns it."""

    def __init__(self, recorder: SegmentRecorder, follower: Follower, notes: Notes) -> None:
        """Not for users; see `follow`."""
        self._recorder, self._follower, self._notes = recorder, follower, notes

    @property
    def path(self) -> Path:
        """The transcript directory."""
        return self._recorder.path

    @property
    def updates(self) -> int:
        """Steps recorded so far; the one in progress is not among them."""
        return self._recorder.updates

    @property
    def parent(self) -> Parent | None:
        """The state of an earlier attempt that the program went on from, if it did."""
        return self._recorder.parent

    @property
    def failed(self) -> bool:
        """Whether the recording ended early, with an error; the program may go on unrecorded."""
        return self._recorder.failed

    @property
    def undeclared(self) -> Sequence[Undeclared]:
        """What entered without an origin so far."""
        return tuple(self._notes.undeclared)

    @property
    def taken(self) -> Sequence[TakenForBatch]:
        """What was taken for batches so far in a program that fetches none, by line."""
        return tuple(self._notes.taken.values())

    def batches(self, batches: Iterable[T]) -> Iterator[T]:
        """Yields the batches of an iterable that is no `DataLoader`, so that they are known for batches.

        Args:
            batches: Gives nests of tensors. What it computes to make them is not recorded.
        """
        return fetches(self._follower, batches)

    def close(self, error: BaseException | None = None) -> None:
        """Ends the recording and signs the transcript; happens by itself at the end of the process.

        Args:
            error: What ended the program early, if something did. The transcript then says that it is incomplete.

        Raises:
            UsageError: Nothing was trained, so there is no transcript of a training.
        """
        self._follower.close(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(error)


def follow(
    path: str | Path,
    *,
    seed: int = 0,
    data: DataCommitment | None = None,
    chip: ChipLink | None = None,
    policy: str = "mixed",
    evaluation: Literal["native", "recorded"] = "native",
    checkpoint_every: int = 50,
    key: SigningKey | None = None,
    metadata: Mapping[str, Any] | None = None,
    verify_state: bool = True,
    formulas: Mapping[str, str] | None = None,
    programs: Iterable[bytes] | None = None,
    parent: Parent | None = None,
    resume: bool = False,
    device: str | torch.device | None = None,
    mesh: Mapping[str, int] | None = None,
    logs: LogKind = "full",
    repeats: Repeats | None = None,
    confidential: bool = False,
) -> Following:
    """Records the program from here to its end, or to `close()`, without blocks around its steps.

    Call it before the model is built. Step 0 ends when the first batch is fetched and there is an optimizer; each
    further step ends when the next batch is fetched after an optimizer's step. Batches come from a `DataLoader`, or
    from any iterable through `Following.batches`. A program that fetches none makes its batches by hand: its steps end
    at the next call of a trained module, and what they take from outside is their batch. An evaluation runs unrecorded;
    so does what reads files. What of that reaches the training is recorded as an undeclared input, with a warning that
    names the line.

    On a chip evaluations are recorded, since the chip sees them.

    Where several ranks train together, each calls it after `init_process_group`, with the same arguments; rank 3 writes
    `PATH/rank-0003`. Evaluations are recorded there, since ranks wait for each other in them.

    Example:
        >>> import prover
        >>> prover.follow("runs/mnist", seed=7)
        >>> ...  # the program as it is

    Args:
        path: New or empty directory for the transcript.
        seed: Fixes all randomness of what is recorded (64 bits). The torch generators are reset here.
        data: See `Recorder`; a step with several batches uses their records one after the other.
        chip: The chip that this process trains on; see `Recorder`. Enter its shim right before.
        policy: See `Recorder`.
        evaluation: Whether a trained model in evaluation mode runs as it is (`native`), or `recorded` like training,
            which programs need that train on what such a model says.
        checkpoint_every: See `Recorder`.
        key: See `Recorder`.
        metadata: See `Recorder`.
        verify_state: See `Recorder`; the memory is looked at three times a step.
        formulas: See `Recorder`.
        programs: See `Recorder`.
        parent: See `Recorder`.
        resume: Whether the program may be run again after a crash. Each attempt has a transcript, `PATH`, `PATH-2`, and
            so on, which names as its parent the state of an earlier one that the program read back.
        device: See `Recorder`.
        mesh: Of a job on several ranks that is not only data-parallel; see `prover.Job.from_environment`.
        logs: See `Recorder`; the attempts of a run that may be resumed share the key of the first.
        repeats: See `Recorder`; not yet of runs that may be resumed.
        confidential: See `Recorder`.

    Returns:
        The recording in progress, a context manager for those who want it to end earlier.

    Raises:
        UsageError: Another program is followed in this process, the directory is not empty, or the mesh is not that of
            the process group; or `resume` is given with a data commitment or on several ranks, or there is nothing to
            resume.
    """
    require_alone()
    job = joined(mesh)
    if resume and (job is not None or data is not None):
        raise UsageError(
            "a followed program cannot be resumed yet if it is a job on several ranks or has a data commitment; leave "
            "out resume=True, and begin again after a crash"
        )
    if resume and repeats is not None:
        raise UsageError("a followed program that repeats segments cannot be resumed yet; leave out resume=True")
    if resume and key is None and logs != "full":
        key = load_or_create_key(key_path(Path(path)))
    attempts = Attempts.at(Path(path), key) if resume else None
    recorder = SegmentRecorder(
        path if attempts is None else attempts.path,
        seed=seed, data=data, chip=chip, policy=policy, checkpoint_every=checkpoint_every, key=key, metadata=metadata,
        verify_state=verify_state, formulas=formulas, programs=programs, parent=parent, device=device, job=job,
        logs=logs, repeats=repeats, confidential=confidential,
    )  # fmt: skip
    recorder.attempts = attempts
    notes = Notes()
    return begin(
        recorder, notes, Follower(recorder, notes, native=evaluation == "native" and job is None and chip is None)
    )


def require_alone() -> None:
    """Checks that nothing is followed in this process.

    Raises:
        UsageError: A program is.
    """
    if any_open():
        raise UsageError("this program is followed already; close() that recording first")


def begin(recorder: SegmentRecorder, notes: Notes, follower: Follower) -> Following:
    """Begins to record.

    Args:
        recorder: Records.
        notes: Takes down what enters without an origin.
        follower: Decides what becomes of operations.
    """
    follower.begin()
    return Following(recorder, follower, notes)
