"""Runs the steps of a recording under a capture, and tells capture and chip about the state and the position.

While a step runs, the garbage collector is off, so that storages die at moments that a replay can repeat, and PyTorch's
switches are set to the arithmetic that the error bounds hold for.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from prover.capture.attached_objects import Attached
from prover.capture.claimed_training import ClaimedTraining
from prover.capture.derived_formulas import Derived
from prover.capture.generators import Generators
from prover.capture.group_uses import GroupUse
from prover.capture.in_progress import InProgress
from prover.capture.module_paths import Paths
from prover.capture.recording_context import Recording
from prover.capture.sources import Sources
from prover.capture.step_capture import Capture
from prover.capture.storages import HostCopy, Memory
from prover.capture.substitution import Substitution
from prover.capture.undispatched import UndispatchedChanges
from prover.capture.without_modes import unseen
from prover.recording.chip_session import ChipSession
from prover.recording.program_run import ProgramRecording, ProgramRun
from prover.recording.resumption import Kept, Resuming
from prover.recording.state_tracker import StateTracker, lasting
from weighbridge.attest.chip_link import Position
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.numerics.conformance.switches import conforming
from weighbridge.transcript.entry_notes import EntryNote
from weighbridge.transcript.formula_terms import Formulas
from weighbridge.transcript.log_kinds import LogKind
from weighbridge.transcript.running_digest import running_digest
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.writer import TranscriptWriter

if TYPE_CHECKING:  # it loads torch.distributed, which one process does without
    from prover.ranks.job import Job

Tensor = torch.Tensor


@contextmanager
def as_program() -> Iterator[None]:
    """Sets PyTorch's switches to what programs are run with, while the context lasts."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with conforming(), torch.no_grad(), torch.autocast("cpu", enabled=False):
            yield
    finally:
        torch.set_default_dtype(default)


class StepRunner:
    """Runs one step after another; the owner of their captures (`prover.capture.step_capture.Owner`).

    Attributes:
        memory: Follows the life of storages.
        generators: The program's generators.
        number: Of the step in progress, or of the next one.
        updates: Steps of the kind `step` before it.
        substitution: Puts the values of formulas in the place of the program's.
        derived: What the attached optimizers say of their numbers.
        counts: How far their schedules are in the step in progress.
        failed: Whether a step failed, so that the state is undefined.
        sources: Where tensors come from that no operation makes.
        entries: The undeclared tensors of the step in progress.
        capture: The step in progress, or None.
        batch: Its batch.
        dropped: Names of storages of the state that died between steps.
        lasting: Names of what earlier steps left behind and the last one used, which keep their names.
        chip: The chip that the program runs on, if there is one.
        followed: Whether a mode that stays on from step to step hands the operations to the captures.
    """

    def __init__(
        self, seed: int, policy: Policy, attached: Attached, job: Job | None, formulas: Formulas | None = None, *,
        logs: LogKind = "full",
    ) -> None:  # fmt: skip
        """Prepares for the first step.

        Args:
            seed: The run's seed.
            policy: Its bounds.
            attached: What holds the state.
            job: The job on several ranks that this is one of, if it is.
            formulas: How numbers that change follow from the step.
            logs: Which kind of rounding logs is written.
        """
        self._logs = logs
        self._seed, self._policy, self._attached, self._job = seed, policy, attached, job
        self.memory, self.generators = Memory(), Generators()
        self.state = StateTracker(self.memory)
        self.number = self.updates = 0
        self.substitution = Substitution(formulas or Formulas())
        self.derived = Derived()
        self.counts: list[int] = []
        self.failed = False
        self.sources = Sources()
        self.entries: list[EntryNote] = []
        self.capture: InProgress | None = None
        self.batch: dict[str, HostCopy] = {}
        self.dropped: list[str] = []
        self.lasting: set[str] = set()
        self.chip: ChipSession | None = None
        self.followed = False
        self._writer: TranscriptWriter | None = None
        self._resuming: Resuming | None = None
        self._frozen = 0
        self._freezes = True
        self._trial_paths: Paths | None = None

    @unseen
    def derive(self) -> None:
        """Reads from the attached optimizers and schedulers what the draft does not declare."""
        self.derived = Derived([each for _, each in self._attached.optimizers()], self._attached.others())
        self.substitution = Substitution(Formulas.parse(self.derived.declared))

    def open(self, writer: TranscriptWriter, resuming: Resuming | None) -> None:
        """Begins the recording.

        Args:
            writer: Of the transcript.
            resuming: If the recording may be resumed, what keeps its steps for that.
        """
        self._writer, self._resuming = writer, resuming
        self.memory.on_death(self._died)

    def restore(self, resuming: Resuming, kept: Kept) -> None:
        """Goes on before the step at which the state was kept.

        Args:
            resuming: The recording that is taken up again.
            kept: What was kept.
        """
        state = self.state
        names, state.names = state.names, {}
        state.names, rng = resuming.restore(kept, self._attached, names, self.memory, self._seed, self._policy)
        state.rng = {int(number): counter for number, counter in rng.items()}
        self.generators.restore(kept.counters)
        self.number, self.updates, state.adopted = kept.step, kept.updates, kept.adopted
        self.dropped.clear()
        if self._job is not None:
            self.lasting = lasting(resuming.tape(kept.step - 1), kept.step - 1)
        state.hash()
        state.sizes = {name: size for name, (size, _) in state.digests.items()}

    def close(self) -> None:
        """Ends the recording: what existed before it, and what was attached, may be garbage again."""
        self._attached.release()
        self.derived, self._trial_paths = Derived(), None
        if self._frozen:
            gc.unfreeze()

    @contextmanager
    def run(
        self, batch: dict[str, Tensor], stored: dict[str, HostCopy] | None = None, kind: str = "step"
    ) -> Iterator[Capture]:
        """Captures what happens within the context.

        Args:
            batch: The batch's tensors.
            stored: Copies of them.
            kind: `init`, `step` or `edit`.
        """
        self.batch = stored or {}
        collecting = gc.isenabled()
        gc.disable()  # deaths of storages are part of the tape and must not depend on when cycles are found
        try:
            self.collect()
            if self._resuming is not None:
                self._resuming.enter(self.number)
            paths = Paths(self._attached)
            self.capture = capture = self.new_capture(paths, kind)
            for name in self.dropped:
                capture.state_dropped(self.relative(name), self.state.sizes.pop(name))
            self.dropped.clear()
            capture.begin_batch(batch)
            with ExitStack() as stack:
                # Composite kernels below are either decomposed by PyTorch itself or have a rule.
                stack.enter_context(sdpa_kernel([SDPBackend.MATH]))
                stack.enter_context(conforming())
                if not self.followed:
                    stack.enter_context(UndispatchedChanges())
                stack.enter_context(paths)
                if kind == "step":
                    capture.claimed = stack.enter_context(ClaimedTraining(self._attached))
                    capture.claimed.watch(capture)
                if capture.ranks is not None:
                    stack.enter_context(capture.ranks.resizes())
                if not self.followed:
                    stack.enter_context(capture)
                self.after_operation(capture)
                yield capture
        except BaseException:
            self.failed = True
            self.capture = None
            raise
        finally:
            if collecting:
                gc.enable()

    @property
    def ready(self) -> bool:
        """Whether a step may begin that was not recorded before."""
        idle = self.number > 0 and self.capture is None and not self.failed and self._writer is not None
        return idle and (self._resuming is None or not self._resuming.repeating)

    def trial_capture(self) -> Capture:
        """Returns a capture that shows how a batch would enter a step; it is never run."""
        if self._trial_paths is None:
            self._trial_paths = Paths(self._attached)
        return Capture(self, Recording(self._seed, self.generators, self._policy), self._trial_paths, self.substitution)

    @property
    def rank(self) -> int | None:
        """This rank, if the recording is one of a job's."""
        return None if self._job is None else self._job.coordinate.rank

    def stand(self, uses: Sequence[GroupUse]) -> bool:
        """Whether the process groups of a step's collectives are still there."""
        return self._job is None or self._job.stand(uses)

    def program_context(self, sources: Mapping[int, torch.Generator], uses: Sequence[GroupUse]) -> ProgramRecording:
        """Returns what a step is evaluated in that runs as a program.

        Args:
            sources: The generators that it draws from, by number.
            uses: The process groups of its collectives.
        """
        given = self._seed, self.generators, self._policy
        if self._job is None:
            return ProgramRecording(*given, logs=self._logs, sources=sources)
        stream, calls = self._job.coordinate.stream("step"), self._job.calls(uses)
        return ProgramRecording(*given, stream, logs=self._logs, sources=sources, calls=calls)

    def unlogged_context(self) -> ProgramRecording:
        """Returns what operations are evaluated in that belong to no step; they come out as in one."""
        return ProgramRecording(self._seed, self.generators, self._policy, logs="on-demand")

    @contextmanager
    def run_program(self, stored: dict[str, HostCopy], start: Callable[[], ProgramRun]) -> Iterator[ProgramRun]:
        """Makes a program's run the step in progress while the context lasts.

        Args:
            stored: Copies of the batch's tensors.
            start: Returns it.
        """
        self.batch, self.entries = stored, []
        try:
            if self._resuming is not None:
                self._resuming.enter(self.number)
            self.counts = self.derived.counts()
            for name in self.dropped:
                self.state.sizes.pop(name)
            self.dropped.clear()
            with as_program():
                run = start()
                self.capture = run
                yield run
        except BaseException:
            self.failed = True
            self.capture = None
            raise

    def new_capture(self, paths: Paths, kind: str) -> Capture:
        """Returns a capture for the step `number`."""
        context = self._context(kind)
        self.counts = [] if kind == "init" else self.derived.counts()
        self.substitution.begin(self.updates + (kind == "step"), context.hosts, context.given, self.counts)
        capture = Capture(self, context, paths, self.substitution)
        self.entries = []
        capture.entering = self._entering
        if self._job is not None:
            self._job.begin_step(capture)
        return capture

    def recount(self, optimizer: torch.optim.Optimizer, *, first: bool) -> None:
        """Looks up anew how far schedules are, when an optimizer of a followed program is about to make a step.

        Args:
            optimizer: The optimizer.
            first: Whether it is the first one since the step in progress began.
        """
        if self.capture is None or not self.counts:
            return
        counts = self.derived.counts_of(optimizer, self.counts, first=first)
        if counts != self.counts:
            context = self.capture.context
            self.counts = counts
            self.substitution.begin(self.updates + 1, context.hosts, context.given, counts)

    def _entering(self, name: str, t: Tensor) -> None:
        note = self.sources.note(self.number, name, t)
        self.entries.append(note)
        if not self.followed and self.capture is not None:
            self.sources.warn(note, t, self.capture.where())

    def _context(self, kind: str) -> Recording:
        stream = 0 if self._job is None else self._job.coordinate.stream(kind)
        given = self._seed, self.generators, self._policy, stream
        if self._resuming is not None:
            return self._resuming.context(self.number, *given, logs=self._logs)
        return Recording(*given, logs=self._logs)

    def collect(self) -> None:
        """Collects garbage, as before each step."""
        if not self._frozen:
            # A program that froze objects itself chose what is walked, and thawing is of all or nothing.
            self._freezes = gc.get_freeze_count() == 0
        gc.collect()
        if self._freezes and self._frozen < 3:
            # What exists by now (the program, then the model, then the optimizer's state) stays; without this, each
            # collection would walk all of it. What comes later may be garbage one day, so it is not frozen.
            gc.freeze()
            self._frozen += 1

    # -- what a capture asks -------------------------------------------------------------------------------------------

    def state_name(self, address: int) -> str | None:
        """See `prover.capture.step_capture.Owner`."""
        name = self.state.names.get(address)
        if name is None and self._resuming is not None:
            name = self._claimed(self._resuming, address)
        return None if name is None else self.relative(name)

    def resized(self, address: int, size: int) -> None:
        """See `prover.capture.step_capture.Owner`."""
        name = self.state.names.get(address)
        if name is not None:
            self.state.sizes[name] = size

    def after_operation(self, capture: Capture) -> None:
        """See `prover.capture.step_capture.Owner`: a safepoint for the chip."""
        if self._resuming is not None:
            self._resuming.release(len(capture.tape.nodes))
        if self.chip is None or not self.chip.pending:
            return
        frees = capture.tape.frees
        if frees and frees[-1][0] == len(capture.tape.nodes):
            return  # Another thread freed memory meanwhile, of which a replay lets go only after this moment.
        self.offer()

    def offer(self) -> None:
        """Offers the chip a safepoint, if there is one that waits."""
        if self.chip is None or not self.chip.pending:
            return
        if self._job is None:  # Within a step, a sharded module shows gathered weights; its own were declared before.
            self.chip.declare_weights(self._attached)
        self.chip.offer()

    def relative(self, name: str) -> str:
        """Names what an earlier step left behind by how many steps ago that was, so that tapes can be shared."""
        if not name.startswith("kept/") or name in self.lasting:
            return name
        _, step, slot = name.split("/")
        return f"~{self.number - int(step)}/{slot}"

    def _claimed(self, resuming: Resuming, address: int) -> str | None:
        """Lets a storage take the place of the orphan that it is, if it is one."""
        slot = None if self.capture is None else self.capture.slots.get(address)
        storage = self.memory.storage(address)
        name = None if slot is None or storage is None else resuming.claim(slot, storage)
        if name is not None:
            self.state.names = {a: n for a, n in self.state.names.items() if n != name} | {address: name}
            del resuming.orphans[name]
        return name

    def expel(self, address: int) -> None:
        """Takes a storage out of what is recorded, as if it had died: what it holds later is not recorded."""
        self._died(address)
        self.memory.forget(address)

    def _died(self, address: int) -> None:
        name = self.state.names.pop(address, None)
        if name is not None:
            self.state.digests.pop(name, None)
            self.state.marks.pop(name, None)
        if self.capture is None:
            if name is not None:
                self.dropped.append(name)
        elif name is not None:
            self.capture.state_died(address, self.relative(name), self.state.sizes.pop(name))
        else:
            self.capture.died(address)

    # -- what a chip asks ----------------------------------------------------------------------------------------------

    def position(self) -> Position:
        """Returns the step in progress, its complete operations, and the running head before it."""
        assert self._writer is not None, "the Recorder is open"
        head = self._writer.head if self._resuming is None else self._resuming.head(self.number)
        return self.number, 0 if self.capture is None else self.capture.complete, head

    @unseen
    def running(self) -> bytes:
        """Returns the digest of this step's operations so far."""
        capture = self.capture
        tape = capture.tape if capture else Tape()
        return running_digest(
            tape,
            capture.complete if capture else 0,
            step=self.number,
            batch={name: copy.tensor() for name, copy in self.batch.items()},
            undeclared={name: copy.tensor() for name, copy in capture.undeclared.items()} if capture else {},
            values=capture.values if capture else [],
            host=capture.context.hosts if capture else [],
            rng={number: after for number, (_, after) in capture.context.rng.items()} if capture else {},
            checksums=np.array(capture.context.checksums, dtype="<u8").tobytes() if capture else b"",
            followed=self.followed,
        )
