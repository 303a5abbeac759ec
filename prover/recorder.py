"""The Recorder: turns ordinary PyTorch training into a transcript that anybody can replay bit for bit."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes

import weighbridge
from prover import unchanged
from prover.aside import Aside
from prover.attached import Attached
from prover.bookkeeping import unseen
from prover.capture import Capture, HostCopy, Memory, Recording
from prover.formulas import declaration
from prover.generators import Generators
from prover.held import Held, lasting
from prover.onchip import OnChip
from prover.paths import Paths
from prover.resuming import Kept, Resuming
from weighbridge import layout
from weighbridge.chiplink import ChipLink, Position
from weighbridge.data import DataCommitment, flatten
from weighbridge.errors import StateChangedError, TapeError, UsageError
from weighbridge.hostmemory import keep_freed
from weighbridge.invocation import Trial
from weighbridge.manifest import SigningKey
from weighbridge.numerics import policy as policies
from weighbridge.numerics import probes
from weighbridge.numerics.rules import table_digest
from weighbridge.numerics.switches import conforming
from weighbridge.numerics.warm import warm
from weighbridge.parentage import KEY as PARENT
from weighbridge.parentage import Parent
from weighbridge.running import running_digest
from weighbridge.steps import StepRecord
from weighbridge.tape import Tape
from weighbridge.writer import TranscriptWriter

if TYPE_CHECKING:
    from prover.job import Job

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
        step_number: Number of the next step; step 0 is the initialisation.
        updates: Steps made by `step()` before the next one: where a loop over batches begins after a crash.
    """

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
        policy: str = "strict",
        resume: bool = False,
        formulas: Mapping[str, str] | None = None,
        programs: Iterable[bytes] | None = None,
        job: Job | None = None,
        parent: Parent | None = None,
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
            verify_state: Hash the state before each step to notice changes made outside steps.
            policy: `strict` (bounds that hold for any order of summation) or `calibrated` (measured bounds: smaller
                logs, and the only ones for bfloat16 and float16).
            resume: Continue the recording that a crash cut off in this directory, if there is one; and keep what the
                next start needs for that (in `PATH.resume/`). An exception then leaves the recording to be resumed.
            formulas: How numbers that change from step to step follow from its number; see `prover.formulas`.
            programs: Digests of the tapes that may run, from a rehearsal (`weighbridge tape show`); any by default.
            job: The job on several ranks that this process takes part in; its transcript is `PATH/rank-0000` etc.
            parent: The state of another run that this one begins from (fine-tuning): `Parent.of("runs/base")`.
        """
        with _disable_current_modes():  # the host's work, which no chip should take for the workload's
            # Every first optimizer loads it, and what PyTorch 2.6 computes while it does so would stand on a tape.
            importlib.import_module("torch._dynamo")
        if checkpoint_every < 1:
            raise UsageError("checkpoint_every must be at least 1")
        if job is not None and resume:
            raise UsageError("a job on several ranks cannot be resumed yet; record it again from the start")
        self.path = Path(path)
        self.step_number = self.updates = 0
        self.rounded = self.logged = 0
        self.memory = Memory()
        self._seed = seed & 0xFFFFFFFFFFFFFFFF
        self._job = job
        self._data, self._chip, self._key = data, chip, key or SigningKey.generate()
        self._every, self._metadata, self._verify = checkpoint_every, dict(metadata or {}), verify_state
        self._policy = policies.named(policy)
        self._declared = declaration(formulas or {}, programs) | ({} if parent is None else {PARENT: parent.to_map()})
        self._probed: set[torch.device] = set()
        self._resume = resume
        self._resuming: Resuming | None = None
        self._generators = Generators()
        self._attached = Attached()
        self._held = Held(self.memory)
        self._capture: Capture | None = None
        self._pending: Capture | None = None
        self._made: dict[int, bytes] = {}
        self._dropped: list[str] = []
        self._lasting: set[str] = set()
        self._batch: dict[str, HostCopy] = {}
        self._on_chip: OnChip | None = None
        self._writer: TranscriptWriter | None = None
        self._failed = False
        self._frozen = 0
        self._tapes: list[tuple[Tape, bytes]] = []
        self._try = Trial()

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
            self.path = self._job.begin(self.path)
        draft = {
            "name": self.path.resolve().name,
            **({} if self._job is None else {"job": self._job.place.to_map()}),
            "seed": self._seed,
            "stream": 0,
            "policy": self._policy.name,
            "calibration": self._policy.digest,
            "rules": table_digest(),
            "torch": torch.__version__,
            "weighbridge": weighbridge.__version__,
            "checkpoint_every": self._every,
            "metadata": self._metadata,
            **self._declared,
        }
        self._writer = writer = self._open(draft)
        if self._chip is not None:
            self._on_chip = OnChip(self._chip, writer, self._resuming, self._position, self._running)
        self.memory.on_death(self._died)
        torch.manual_seed(0)  # generators count draws from here (weighbridge.numerics.randomness)
        return self

    @unseen
    def _open(self, draft: Mapping[str, Any]) -> TranscriptWriter:
        """Begins the transcript, or takes over what is whole of the one that a crash cut off."""
        key, data, every = self._key, self._data, self._every
        if not self._resume:
            return TranscriptWriter(self.path, draft=draft, key=key, data=data, segment_steps=every)
        self._resuming = Resuming(self.path, draft=draft, key=key, data=data, segment_steps=every)
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
        if self._frozen:
            gc.unfreeze()
        complete = error is None and not self._failed
        try:
            if self._on_chip is not None:
                self._on_chip.leave(complete)
        finally:
            self._close(complete)

    @property
    def _out(self) -> TranscriptWriter:
        if self._writer is None:
            raise UsageError("the Recorder is not open; use it as `with Recorder(...) as recorder:`")
        if self._failed:
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
        with self._capturing({}, "init") as capture:
            yield
        # Named and written by attach(): only then is it known what the tensors are.
        self._pending = self._capture = capture
        self._made = self._held.contents(capture.slots)

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
        if self._on_chip is not None:
            self._on_chip.show(tensors.values())
        if self._pending is not None:
            if self._verify:
                with self._or_fail():
                    unchanged.since_made(self._made, self._held, self._attached)
            self._made = {}
            capture, self._pending = self._pending, None
            self._finish(capture, "init", {}, None)
        else:
            self._held.begin(self._attached)
            self._write_empty_initialisation()
        if self._on_chip is not None:
            self._on_chip.declare_weights(self._attached)
            self._on_chip.note_weights(self._attached, self._held)
        if self._resuming is not None and (kept := self._resuming.start()) is not None:
            self._restore(self._resuming, kept)
            if self._on_chip is not None:
                self._on_chip.show([*self._attached.tensors().values(), *self._resuming.orphans.values()])
        self._checkpoint()

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
        flat = flatten(batch) if batch is not None else {}
        stored = self._stored_batch({name: t for name, t in flat.items()})
        if self._resuming is not None:
            self._resuming.check_batch(stored)
        self._batch = stored
        with self._capturing(dict(flat)) as capture:
            yield
        if self._job is None:  # collectives change memory too, and sharded modules resize it
            with self._or_fail():
                unchanged.while_running(capture, self.memory, flat, stored, self.step_number)
        self._finish(capture, "step", stored, records)
        if (self.step_number - 1) % self._every == 0:
            self._checkpoint()

    @contextmanager
    def edit(self) -> Iterator[None]:
        """Records a deliberate change of state between steps (loading weights, say) as a step of its own."""
        self._ready()
        with self._capturing({}, "edit") as capture:
            yield
        self._finish(capture, "edit", {}, None)

    # -- capture -------------------------------------------------------------------------------------------------------

    def _ready(self) -> None:
        if self._capture is not None and self._pending is None:
            raise UsageError("steps cannot be nested")
        self._out  # noqa: B018 (raises where there is none)
        if self.step_number == 0:
            raise UsageError("call attach(model, optimizer) before the first step")
        if self._verify:
            with self._or_fail():
                unchanged.between_steps(self._held, self.step_number)

    def _stored_batch(self, flat: dict[str, Tensor]) -> dict[str, HostCopy]:
        """The batch as it enters the transcript: copied now, because the step may change it.

        The copy is the Recorder's own, in host memory: a chip must not see it as the workload's.
        """
        with _disable_current_modes():
            return {name: HostCopy(t) for name, t in flat.items()}

    @contextmanager
    def _capturing(self, batch: dict[str, Tensor], kind: str = "step") -> Iterator[Capture]:
        self._require_arithmetic(batch.values())
        collecting = gc.isenabled()
        gc.disable()  # deaths of storages are part of the tape and must not depend on when cycles are found
        try:
            gc.collect()
            if self._frozen < 3:
                # What exists by now (the program, then the model, then the optimizer's state) stays; without this, each
                # collection would walk all of it. What comes later may be garbage one day, so it is not frozen.
                gc.freeze()
                self._frozen += 1
            if self._resuming is not None:
                self._resuming.enter(self.step_number)
            capture = self._capture = self._new_capture(paths := Paths(self._attached), kind)
            for name in self._dropped:
                capture.state_dropped(self._relative(name), self._held.sizes.pop(name))
            self._dropped.clear()
            capture.begin_batch(batch)
            with ExitStack() as stack:
                # Composite kernels below are either decomposed by PyTorch itself or have a rule.
                stack.enter_context(sdpa_kernel([SDPBackend.MATH]))
                stack.enter_context(conforming())
                stack.enter_context(Aside())
                stack.enter_context(paths)
                if capture.sharded is not None:
                    stack.enter_context(capture.sharded.resizes())
                stack.enter_context(capture)
                self.after_operation(capture)
                yield capture
        except BaseException:
            self._failed = True
            self._capture = None
            raise
        finally:
            if collecting:
                gc.enable()

    def _new_capture(self, paths: Paths, kind: str = "init") -> Capture:
        if self._job is not None:
            from prover.sharded import Sharded  # all of torch.distributed, which one process does without

            stream = self._job.place.stream(kind)
            capture = Capture(self, Recording(self._seed, self._generators, self._policy, stream), paths)
            capture.sharded = Sharded(self._job, capture)
            return capture
        if self._resuming is not None:
            return Capture(
                self, self._resuming.context(self.step_number, self._seed, self._generators, self._policy), paths
            )
        return Capture(self, Recording(self._seed, self._generators, self._policy), paths)

    def state_name(self, address: int) -> str | None:
        """See `prover.capture.Owner`."""
        name = self._held.names.get(address)
        if name is None and self._resuming is not None:
            name = self._claimed(self._resuming, address)
        return None if name is None else self._relative(name)

    def _relative(self, name: str) -> str:
        """Names what an earlier step left behind by how many steps ago that was, so that tapes can be shared."""
        if not name.startswith("kept/") or name in self._lasting:
            return name
        _, step, slot = name.split("/")
        return f"~{self.step_number - int(step)}/{slot}"

    def resized(self, address: int, size: int) -> None:
        """See `prover.capture.Owner`."""
        name = self._held.names.get(address)
        if name is not None:
            self._held.sizes[name] = size

    def after_operation(self, capture: Capture) -> None:
        """See `prover.capture.Owner`: a safepoint for the chip."""
        if self._resuming is not None:
            self._resuming.release(len(capture.tape.nodes))
        if self._on_chip is None or not self._on_chip.pending:
            return
        frees = capture.tape.frees
        if frees and frees[-1][0] == len(capture.tape.nodes):
            return  # Another thread freed memory meanwhile, of which a replay lets go only after this moment.
        if self._job is None:  # Within a step, a sharded module shows gathered weights; its own were declared before.
            self._on_chip.declare_weights(self._attached)
        self._on_chip.offer()

    def _position(self) -> Position:
        """The step in progress, its complete operations, and the running head before it."""
        assert self._writer is not None, "the Recorder is open"
        head = self._writer.head if self._resuming is None else self._resuming.head(self.step_number)
        return self.step_number, 0 if self._capture is None else len(self._capture.tape.nodes), head

    @unseen
    def _running(self) -> bytes:
        """The digest of this step's operations so far."""
        capture = self._capture
        tape = capture.tape if capture else Tape()
        return running_digest(
            tape,
            len(tape.nodes),
            step=self.step_number,
            batch={name: copy.tensor() for name, copy in self._batch.items()},
            free={name: copy.tensor() for name, copy in capture.free.items()} if capture else {},
            values=capture.values if capture else [],
            host=capture.context.hosts if capture else [],
            rng={number: after for number, (_, after) in capture.context.rng.items()} if capture else {},
            checksums=np.array(capture.context.checksums, dtype="<u8").tobytes() if capture else b"",
        )

    def _died(self, address: int) -> None:
        name = self._held.names.pop(address, None)
        if name is not None:
            self._held.digests.pop(name, None)
        capture = self._capture
        if capture is None:
            if name is not None:
                self._dropped.append(name)
        elif name is not None:
            capture.state_died(address, self._relative(name), self._held.sizes.pop(name))
        else:
            capture.died(address)

    # -- ends of steps -------------------------------------------------------------------------------------------------

    @unseen
    def _finish(
        self,
        capture: Capture,
        kind: Literal["init", "step", "edit"],
        batch: dict[str, HostCopy],
        records: Sequence[int] | None,
    ) -> StepRecord:
        """Writes a captured step: names what survives, hashes the state, stores tape, log and batch."""
        out, self._capture = self._out, None
        if self._job is not None:
            self._job.settle()
        self._failed = True  # until the step is in the transcript: what comes after it could not be replayed without it
        self._held.name_survivors(capture, self._attached, self.step_number)
        context, tape = capture.context, capture.finish()
        before = self._held.digests
        self._held.hash()
        if self._verify and self._job is None:
            unchanged.by_operations(capture, self._held, before, self.step_number)
        for number, (_, after) in context.rng.items():
            self._held.rng[number] = after
        record = out.append_step(
            kind=kind,
            tape=self._put_tape(out, tape, capture.values),
            values=capture.values,
            host=context.hosts,
            rng={str(number): pair for number, pair in context.rng.items()},
            state=self._held.digest(),
            checksums=np.array(context.checksums, dtype="<u8").tobytes(),
            rounding=context.log.finish(),
            batch={name: copy.tensor() for name, copy in batch.items()},
            free={name: copy.tensor() for name, copy in capture.free.items()},
            records=records,
            snapshots=self._on_chip.snapshots if self._on_chip else (),
            rounded=context.rounded_elements,
            logged=context.log.entries,
            collectives=context.collectives,
        )
        self._batch = {}
        if self._on_chip is not None:
            self._on_chip.snapshots = []
        self.rounded += context.rounded_elements
        self.logged += context.log.entries
        if self._job is not None:  # what each step uses (buckets, unsharded parameters) would age in every tape
            self._lasting = lasting(tape, self.step_number)
        self.step_number += 1
        self.updates += kind == "step"
        self._failed = False
        return record

    def _put_tape(self, out: TranscriptWriter, tape: Tape, values: list[Any]) -> bytes:
        """Stores a tape and returns its digest; steps often repeat a recent tape, which costs less to compare.

        A new one is read again and tried out first: nobody should learn from a Verifier that an honest transcript is
        malformed.
        """
        for known, digest in self._tapes:
            if known == tape:
                return digest
        data = tape.encode()
        try:
            self._try(Tape.decode(data), values)
        except TapeError as error:
            raise TapeError(
                f"the tape of step {self.step_number} could not be replayed: {error.message}; shorten names of the "
                "batch if they are long, else this is a fault of the Recorder. The transcript ends with the step before"
            ) from None
        digest = out.put_tape(data)
        self._tapes = [(tape, digest), *self._tapes[:3]]
        return digest

    def _write_empty_initialisation(self) -> None:
        self._finish(self._new_capture(Paths(self._attached)), "init", {}, None)

    @contextmanager
    def _or_fail(self) -> Iterator[None]:
        """Within it, a change that was not recorded ends the recording."""
        try:
            yield
        except StateChangedError:
            self._failed = True
            raise

    @unseen
    def _checkpoint(self) -> None:
        if self._job is not None:
            from prover.layouts import layout_of

            self._out.put_layout(layout.encode(layout_of(self._attached)))
        self._out.checkpoint(self._held.checkpoint(self.step_number, self._attached))

    # -- resuming ------------------------------------------------------------------------------------------------------

    @unseen
    def _keep(self, resuming: Resuming) -> None:
        """Keeps what is needed to begin the next step again."""
        numbers = {"adopted": self._held.adopted, "rounded": self.rounded, "logged": self.logged}
        views = self._attached.views(self._held.names, nested=True)
        generators, now = self._generators, {"step": self.step_number, "updates": self.updates}
        resuming.begin_step(self.step_number, lambda: Kept.of(views, self._attached, generators, **now, **numbers))

    @unseen
    def _restore(self, resuming: Resuming, kept: Kept) -> None:
        """Goes on before the step that was chosen, with the state of then."""
        names, self._held.names = self._held.names, {}
        self._held.names, rng = resuming.restore(kept, self._attached, names, self.memory, self._seed, self._policy)
        self._held.rng = {int(number): counter for number, counter in rng.items()}
        self._generators.restore(kept.counters)
        self.step_number, self.updates, self._held.adopted = kept.step, kept.updates, kept.adopted
        self.rounded, self.logged = kept.rounded, kept.logged
        self._dropped.clear()
        self._held.hash()
        self._held.sizes = {name: size for name, (size, _) in self._held.digests.items()}

    def _claimed(self, resuming: Resuming, address: int) -> str | None:
        """Lets a storage take the place of the orphan that it is, if it is one."""
        slot = None if self._capture is None else self._capture.slots.get(address)
        storage = self.memory.storage(address)
        name = None if slot is None or storage is None else resuming.claim(slot, storage)
        if name is not None:
            self._held.names = {a: n for a, n in self._held.names.items() if n != name} | {address: name}
            del resuming.orphans[name]
        return name
