"""The Recorder: turns ordinary PyTorch training into a transcript that any Verifier can replay bit for bit."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch.utils._python_dispatch import _disable_current_modes

from prover.capture.attached_objects import Attached
from prover.capture.in_progress import InProgress
from prover.capture.module_paths import Paths
from prover.capture.step_capture import Capture
from prover.capture.storages import host_copies
from prover.capture.without_modes import unseen
from prover.formulas import declaration
from prover.recording import change_guard, step_entry
from prover.recording.chip_session import ChipSession
from prover.recording.compile_refusal import refused
from prover.recording.compiled_step import CompiledStep, Ways
from prover.recording.draft import draft_of
from prover.recording.log_choice import require_logs
from prover.recording.program_run import ProgramRun
from prover.recording.repeating import Repeating, Repeats, require_possible
from prover.recording.resumed_rank import ResumingRank
from prover.recording.resumption import Kept, Resuming
from prover.recording.state_tracker import lasting
from prover.recording.step_runner import StepRunner
from prover.recording.tape_notes import TapeNotes
from prover.recording.tape_store import TapeStore
from weighbridge.attest.chip_link import ChipLink
from weighbridge.attest.manifest import SigningKey, load_or_create_key
from weighbridge.attest.repeats import KEY as REPEATS
from weighbridge.core.errors import StateChangedError, UsageError
from weighbridge.core.host_memory import keep_freed
from weighbridge.numerics.conformance import bound_policy as policies
from weighbridge.numerics.conformance import probes
from weighbridge.numerics.conformance.device_kind import device_kind
from weighbridge.numerics.warm import warm
from weighbridge.transcript.data import DataCommitment, flatten
from weighbridge.transcript.formula_terms import Formulas
from weighbridge.transcript.log_kinds import LogKind
from weighbridge.transcript.parentage import KEY as PARENT
from weighbridge.transcript.parentage import Parent
from weighbridge.transcript.supplements import key_path
from weighbridge.transcript.writer import TranscriptWriter

if TYPE_CHECKING:  # it loads torch.distributed, which one process does without
    from prover.ranks.job import Job

Tensor = torch.Tensor


class Recorder:
    """Records a training run.

    Example:
        >>> with Recorder("runs/gpt2", seed=7) as recorder:
        ...     with recorder.initialisation():
        ...         model, optimizer = build()
        ...     recorder.attach(model, optimizer)
        ...     for batch in batches:
        ...         with recorder.step(batch):
        ...             loss = model(**batch).loss
        ...             loss.backward(); optimizer.step(); optimizer.zero_grad()

    Attributes:
        path: The transcript directory.
        updates: Steps made by `step()` before the next one: where a loop over batches begins after a crash.
    """

    _remedy = change_guard.BLOCKS
    _declares: Mapping[str, Any] = {}
    """What else the draft says."""

    def __init__(
        self,
        path: str | Path,
        *,
        seed: int,
        data: DataCommitment | None = None,
        chip: ChipLink | None = None,
        checkpoint_every: int = 50,
        key: SigningKey | None = None,
        metadata: Mapping[str, Any] | None = None,
        verify_state: bool = True,
        policy: str = "mixed",
        resume: bool = False,
        formulas: Mapping[str, str] | None = None,
        programs: Iterable[bytes] | None = None,
        job: Job | None = None,
        parent: Parent | None = None,
        device: str | torch.device | None = None,
        logs: LogKind = "full",
        repeats: Repeats | None = None,
        confidential: bool = False,
    ) -> None:
        """Prepares a recording; nothing is written before the `with` block begins.

        Args:
            path: New or empty directory for the transcript.
            seed: Fixes all randomness inside steps (64 bits). The torch generators are reset when recording begins.
            data: Commitment to the data set and its order; batches are then checked against it record by record.
            chip: The chip that this process trains on; it logs the manifest draft and takes snapshots between
                operations.
            checkpoint_every: A checkpoint is kept every so many steps.
            key: Signs the transcript; by default a key that exists for this run only.
            metadata: What else should be fixed before the first step (hyperparameters, purpose); plain numbers, texts,
                lists.
            verify_state: Look at the state before each step to notice changes made outside steps.
            policy: `mixed` (strict bounds for float32, calibrated ones for bfloat16 and float16), `strict` (only
                bounds that hold for any order of summation; refuses 16-bit types), `calibrated` (only measured
                bounds: smaller logs), `probabilistic` (as `mixed`, but bounds for float32 that fail with a stated
                probability: smaller logs of wide models), `blocked-64` or `blocked-256` (as `mixed`, but products of
                matrices of float32 are computed in blocks, so that proven bounds are smaller: smaller logs), or
                `unit-vdpbf16ps` (as `mixed`, but products of 16-bit matrices are those of a matrix unit to the bit, on
                every machine, and need no log; see docs/matrix-units.md). `unit-a100` and `unit-h100` are for models
                of such units in the device's place.
            resume: Continue the recording that a crash cut off in this directory, if there is one; and keep what the
                next start needs for that (in `PATH.resume/`). An exception then leaves the recording to be resumed.
                All ranks of a job are started again together; see docs/sharding.md.
            formulas: How numbers that change from step to step follow from its number; see `prover.formulas`. By
                default they are read from the optimizers and schedulers when these are attached.
            programs: Digests of the tapes that may run; any by default. A rehearsal's are
                `Transcript.open("runs/rehearsal").programs()` (`weighbridge.transcript.reader`).
            job: The job on several ranks that this process takes part in; its transcript is `PATH/rank-0000` etc.
            parent: The state of another run that this one begins from (fine-tuning): `Parent.of("runs/base")`.
            device: Where the steps compute; the transcript says what kind of device that is. By default the CPU on a
                machine without an accelerator, and unsaid on others.
            logs: `full` writes a rounding log with every step. `on-demand` writes none and commits to the digest of all
                rounded outputs: `weighbridge regenerate` makes the logs that someone asks for, on the same kind of
                machine. `sketch` does the same and writes a sketch of each 16-bit output, of which other machines find
                the few elements that they round otherwise; it is for training in 16 bits on the CPU. The key that signs
                these logs is kept in `PATH.key` if none is given; that of a rank of a job beside its transcript, in
                `PATH/rank-0000.key` etc.
            repeats: Has random segments repeated while the run goes on, on a chip and without logs in full: a beacon
                names them, and the chip logs a commitment to their logs. Ranks of a job share one directory for that.
                See docs/recording.md.
            confidential: Say in the draft that the run is confidential. A sealed worker is the referee of its disputes
                then, and ordinary ones refuse them. On a chip, it goes with a confidential boot.
        """
        with _disable_current_modes():  # the host's work, which no chip should take for the workload's
            # Every first optimizer loads it, and what PyTorch 2.6 computes while it does so would stand on a tape.
            importlib.import_module("torch._dynamo")
        if checkpoint_every < 1:
            raise UsageError("checkpoint_every must be at least 1")
        self._device = device if device is not None or torch.accelerator.is_available() else "cpu"
        require_logs(logs, self._device)
        self.path = Path(path)
        self.updates = self.rounded = self.logged = 0
        self._seed, self._job = seed & 0xFFFFFFFFFFFFFFFF, job
        self._data, self._chip, self._key = data, chip, key
        self._logs: LogKind = logs
        self._confidential = confidential
        self._every, self._metadata, self._verify = checkpoint_every, dict(metadata or {}), verify_state
        self._policy = policies.named(policy, device if device is not None else "cpu")
        if self._policy.truncating:
            if logs != "full":
                raise UsageError(f"{policy} is recorded with logs in full; leave out logs={logs!r}")
            self._policy = replace(self._policy, orders=probes.require_unit(self._policy))
        self._derives = formulas is None
        self._declared = declaration(formulas or {}, programs) | ({} if parent is None else {PARENT: parent.to_map()})
        self._repeats = repeats
        self._repeating: Repeating | None = None
        if repeats is not None:
            self._repeated = require_possible(repeats, chip=chip, logs=logs, key=key is not None)
            self._declared[REPEATS] = self._repeated.to_map()
        self._probed: set[torch.device] = set()
        self._resume = resume
        self._resuming: Resuming | None = None
        self._attached = Attached()
        declared = Formulas.parse(self._declared["formulas"])
        self._steps = StepRunner(self._seed, self._policy, self._attached, job, declared, logs=logs)
        self._pending: Capture | None = None
        self._made: dict[int, bytes] = {}
        self._chip_session: ChipSession | None = None
        self._writer: TranscriptWriter | None = None
        self._tapes = TapeStore()
        self._notes = TapeNotes()
        self._began_from: Parent | None = None

    @property
    def step_number(self) -> int:
        """Number of the next step; step 0 is the initialisation."""
        return self._steps.number

    # -- life ----------------------------------------------------------------------------------------------------------

    @unseen
    def _require_arithmetic(self, tensors: Iterable[Tensor]) -> None:
        """Tests every device once, before anything is computed on it under this run's bounds."""
        for device in {torch.device("cpu"), *(t.device for t in tensors)} - self._probed:
            if device.type != "meta":
                probes.require(device, self._policy)
            self._probed.add(device)

    def __enter__(self) -> Self:
        keep_freed()
        unseen(warm)()
        self._require_arithmetic(())
        if self._job is not None:
            self.path = self._job.begin(self.path, resume=self._resume)
        draft = draft_of(
            self.path.resolve().name,
            job=self._job,
            seed=self._seed,
            policy=self._policy,
            checkpoint_every=self._every,
            metadata=self._metadata,
            device=self._device,
            logs=self._logs,
            confidential=self._confidential,
            declared={**self._declared, **self._declares},
        )
        self._writer = writer = self._open(draft)
        writer.background = True
        self._steps.open(writer, self._resuming)
        if self._chip is not None:
            self._chip_session = self._steps.chip = ChipSession(
                self._chip, writer, self._resuming, self._steps.position, self._steps.running
            )
            if self._repeats is not None and self._device is not None:
                options = self._repeats, self._repeated, self._chip, writer, device_kind(self._device)
                self._repeating = Repeating(*options, resumed=self._resuming is not None)
        self._steps.sources.__enter__()
        torch.manual_seed(0)  # generators count draws from here (weighbridge.numerics.random.variates)
        return self

    @unseen
    def _open(self, draft: Mapping[str, Any]) -> TranscriptWriter:
        """Begins the transcript, or takes over what is whole of the one that a crash cut off."""
        data, every = self._data, self._every
        key = self._key or (SigningKey.generate() if self._logs == "full" else load_or_create_key(key_path(self.path)))
        if not self._resume:
            return TranscriptWriter(self.path, draft=draft, key=key, data=data, segment_steps=every)
        given: dict[str, Any] = {"draft": draft, "key": key, "data": data, "segment_steps": every}
        job = self._job
        self._resuming = Resuming(self.path, **given) if job is None else ResumingRank(self.path, job=job, **given)
        self._notes = TapeNotes(*self._resuming.noted(), self._resuming.claimed())
        return self._resuming.writer

    @unseen
    def _close(self, complete: bool) -> None:
        if self._resuming is not None:
            self._resuming.close(complete)
        elif self._writer is not None:
            self._writer.close(complete)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._steps.sources.__exit__(kind, error, trace)
        complete = error is None and not self._steps.failed
        with ExitStack() as stack:  # all of it happens, the last of it first
            stack.callback(self._steps.close)
            stack.callback(self._close, complete)
            if self._chip_session is not None:
                stack.callback(self._chip_session.leave, complete)
            if self._repeating is not None:
                stack.callback(unseen(self._repeating.close), complete)

    @property
    def _out(self) -> TranscriptWriter:
        if self._writer is None:
            raise UsageError("the Recorder is not open; use it as `with Recorder(...) as recorder:`")
        if self._steps.failed:
            raise UsageError(
                "an earlier step failed, so the state is undefined; the transcript ends with the step before it"
            )
        return self._writer

    # -- what the user calls -------------------------------------------------------------------------------------------

    @contextmanager
    def initialisation(self) -> Iterator[None]:
        """Records the making of model and optimizer as step 0, so that "the initialisation was random" is a replay."""
        self._out  # noqa: B018 (raises where there is none)
        if self.step_number or self._pending is not None:
            raise UsageError("initialisation() comes first, once, before attach()")
        with self._steps.run({}, kind="init") as capture:
            yield
        # Named and written by attach(): only then is it known what the tensors are.
        self._pending = capture
        self._made = self._steps.state.contents(capture.slots)

    def attach(self, *objects: Any, **named: Any) -> None:
        """Declares the model, the optimizer and whatever else has tensors that outlive a step.

        Args:
            *objects: Modules, optimizers, tensors (a data set that lies on the chip), or anything with a `state_dict()`
                of tensors (an EMA, a gradient scaler).
            **named: The same, with names of your choice.

        Raises:
            UsageError: If nothing with tensors was given, or attach() was called before.
        """
        self._out  # noqa: B018 (raises where there is none)
        if self.step_number:
            raise UsageError("attach() is called once, before the first step")
        self._attached.add(objects, named)
        tensors = self._attached.tensors()
        if not tensors:
            raise UsageError("attach() was given no tensors; pass the model and the optimizer")
        self._require_arithmetic(tensors.values())
        if self._derives:
            self._steps.derive()
        if self._chip_session is not None:
            self._chip_session.show(tensors.values())
        if self._pending is not None:
            if self._verify:
                with self._or_fail():
                    change_guard.since_made(self._made, self._steps.state, self._attached)
            self._made = {}
            capture, self._pending = self._pending, None
        else:
            self._steps.state.begin(self._attached)
            capture = self._steps.new_capture(Paths(self._attached), "init")  # an empty one
        held = self._finish(capture, "init")
        if self._chip_session is not None:
            self._chip_session.declare_weights(self._attached)
            self._chip_session.note_weights(self._attached, self._steps.state)
        if self._resuming is not None and (kept := self._resuming.start(self._attached)) is not None:
            self._restore(self._resuming, kept)
            if self._chip_session is not None:
                self._chip_session.show([*self._attached.tensors().values(), *self._resuming.orphans.values()])
        self._checkpoint()
        held.clear()

    @contextmanager
    def step(self, batch: Any = None, *, records: Sequence[int] | None = None) -> Iterator[None]:
        """Records one step.

        Args:
            batch: Any nest of tensors; everything that the step reads and that is not state.
            records: Record ids of the batch in the committed data set; by default the next ones in the committed order.

        Raises:
            UnknownOperationError: At an operation without a rule; the transcript then ends with the step before.
            StateChangedError: If the state was changed since the last step.
        """
        self._ready()
        if self._resuming is not None:
            self._keep(self._resuming)
        flat = dict(flatten(batch)) if batch is not None else {}
        stored = host_copies(flat)
        if self._resuming is not None:
            self._resuming.check_batch(stored)
        self._require_arithmetic(flat.values())
        with self._steps.run(flat, stored) as capture:
            yield
        if self._job is None:  # collectives change memory too, and sharded modules resize it
            with self._or_fail():
                change_guard.while_running(capture, self._steps.memory, flat, stored, self.step_number)
        held = self._finish(capture, "step", records)
        if (self.step_number - 1) % self._every == 0:
            self._checkpoint()
        held.clear()

    @contextmanager
    def edit(self) -> Iterator[None]:
        """Records a deliberate change of state between steps (loading weights, say) as a step of its own."""
        self._ready()
        with self._steps.run({}, kind="edit") as capture:
            yield
        self._finish(capture, "edit")

    def compile(self, function: Callable[..., Any]) -> CompiledStep:
        """Returns a function whose calls are steps that call `function`, and that come to cost less than those do.

        The first calls are recorded as within `step()`. A call that begins as two earlier ones did runs the program of
        their tape in place of the function, and records the same. See docs/recording.md for what it may do.

        Args:
            function: Does a step: forward, backward, optimizer. It returns tensors, plain values and nests of them.

        Raises:
            CompileError: Steps of this recording cannot be compiled (`record.compile.refused`).
        """
        if self._device is None or torch.device(self._device).type != "cpu":
            raise refused("programs are run on the CPU only")
        ways = Ways(lambda batch, records: self.step(batch, records=records), self._run_program)
        return CompiledStep(function, ways, self._steps, self._attached, derived=self._derives)

    def _run_program(
        self, batch: dict[str, torch.Tensor], start: Callable[[], ProgramRun], execute: Callable[[ProgramRun], Any],
        records: Sequence[int] | None,
    ) -> Any:  # fmt: skip
        """Records one step as the program of a known tape.

        Args:
            batch: Its batch.
            start: Returns the run.
            execute: Runs it and returns what the step's function would return.
            records: As for `step`.
        """
        self._ready()
        if self._resuming is not None:
            self._keep(self._resuming)
        stored = host_copies(batch)
        with self._steps.run_program(stored, start) as run:
            result = execute(run)
        if self._job is None:
            with self._or_fail():
                change_guard.while_running(run, self._steps.memory, batch, stored, self.step_number)
        held = self._finish(run, "step", records)
        run.close()
        if (self.step_number - 1) % self._every == 0:
            self._checkpoint()
        held.clear()
        return result

    def _ready(self) -> None:
        if self._steps.capture is not None and self._pending is None:
            raise UsageError("steps cannot be nested")
        self._out  # noqa: B018 (raises where there is none)
        if self.step_number == 0:
            raise UsageError("call attach(model, optimizer) before the first step")
        if self._verify:
            with self._or_fail():
                change_guard.between_steps(self._steps.state, self.step_number)

    @unseen
    def _finish(
        self, capture: InProgress, kind: Literal["init", "step", "edit"], records: Sequence[int] | None = None
    ) -> list[torch.UntypedStorage]:
        """Writes a captured step: names what survives, hashes the state, stores tape, log and batch.

        Returns:
            The storages of the state of a job, to be held until the checkpoint of this state is written.
        """
        out, steps, state = self._out, self._steps, self._steps.state
        steps.capture = None
        if self._job is not None:
            self._job.settle()
        steps.failed = True  # until the step is in the transcript: what comes after it could not be replayed without it
        # Other threads let go of tensors when they like; what is there now, the step leaves behind.
        held = [] if self._job is None else steps.memory.storages([*state.names, *capture.slots])
        state.name_survivors(capture, self._attached, steps.number)
        context, tape = capture.context, capture.finish()
        before = state.marks
        state.hash()
        if self._verify and self._job is None:
            with self._or_fail():
                change_guard.by_operations(capture, state, before, steps.number, self._remedy)
        for number, (_, after) in context.rng.items():
            state.rng[number] = after
        digest = self._tapes.put(out, tape, capture.values, steps.number)
        if self._resuming is None or not self._resuming.repeating:  # else they were written when it was recorded
            self._notes.entered(out, digest, steps.entries)
            self._notes.training(out, digest, capture.claimed)
        taken = self._chip_session.snapshots if self._chip_session else ()
        step_entry.append(
            out, capture, steps, kind=kind, tape=digest, records=records, snapshots=taken, parent=self._began_from
        )
        steps.batch = {}
        if self._chip_session is not None:
            self._chip_session.snapshots = []
        self.rounded += context.rounded_elements
        self.logged += context.log.entries
        if self._job is not None or steps.followed:
            # What each step uses (buckets, unsharded parameters) would age in every tape.
            steps.lasting = lasting(tape, steps.number)
        steps.number += 1
        steps.updates += kind == "step"
        self.updates = steps.updates
        steps.failed = False
        if self._repeating is not None:
            self._repeating.look()
        return held

    @contextmanager
    def _or_fail(self) -> Iterator[None]:
        """Within it, a change that was not recorded ends the recording."""
        try:
            yield
        except StateChangedError:
            self._steps.failed = True
            raise

    @unseen
    def _checkpoint(self) -> None:
        again = self._resuming is not None and self._resuming.repeating
        if self._job is not None and not again:
            self._out.put_layout(self._job.layout(self._attached))
        beside = None if again else self._repeating
        if beside is not None:
            beside.ends()
        self._out.checkpoint(self._steps.state.checkpoint(self.step_number, self._attached))
        if beside is not None:
            beside.ended()

    # -- resuming ------------------------------------------------------------------------------------------------------

    @unseen
    def _keep(self, resuming: Resuming) -> None:
        """Keeps what is needed to begin the next step again."""
        state, generators = self._steps.state, self._steps.generators
        numbers = {"adopted": state.adopted, "rounded": self.rounded, "logged": self.logged}
        views = self._attached.views(state.names, nested=True)
        now = {"step": self.step_number, "updates": self.updates}
        resuming.begin_step(self.step_number, lambda: Kept.of(views, self._attached, generators, **now, **numbers))

    @unseen
    def _restore(self, resuming: Resuming, kept: Kept) -> None:
        """Goes on before the step that was chosen, with the state of then."""
        self._steps.restore(resuming, kept)
        self.updates, self.rounded, self.logged = kept.updates, kept.rounded, kept.logged
