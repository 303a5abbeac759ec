"""The Recorder: turns ordinary PyTorch training into a transcript that anybody can replay bit for bit."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes

import weighbridge
from prover.attached import Attached
from prover.bookkeeping import storage_bytes, unseen
from prover.capture import Capture, DeepCopies, Generators, HostCopy, Memory, Recording
from prover.formulas import declaration
from prover.paths import Paths
from weighbridge.chiplink import ChipLink
from weighbridge.data import DataCommitment, flatten
from weighbridge.digests import bytes_digest
from weighbridge.errors import StateChangedError, UsageError
from weighbridge.manifest import SigningKey
from weighbridge.numerics import policy as policies
from weighbridge.numerics import probes
from weighbridge.numerics.rules import table_digest
from weighbridge.numerics.switches import conforming
from weighbridge.state import Checkpoint, View, state_digest
from weighbridge.steps import StepRecord, running_digest
from weighbridge.tape import DTYPE_NAMES, Tape
from weighbridge.writer import TranscriptWriter

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
        formulas: Mapping[str, str] | None = None,
        programs: Iterable[bytes] | None = None,
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
            formulas: How numbers that change from step to step follow from its number; see `prover.formulas`.
            programs: Digests of the tapes that may run, from a rehearsal (`weighbridge tape show`); any by default.
        """
        if checkpoint_every < 1:
            raise UsageError("checkpoint_every must be at least 1")
        self.path = Path(path)
        self.step_number = 0
        self.rounded = self.logged = 0
        self.memory = Memory()
        self._seed = seed & 0xFFFFFFFFFFFFFFFF
        self._data, self._chip, self._key = data, chip, key or SigningKey.generate()
        self._every, self._metadata, self._verify = checkpoint_every, dict(metadata or {}), verify_state
        self._policy = policies.named(policy)
        self._declared = declaration(formulas or {}, programs)
        self._probed: set[torch.device] = set()
        self._generators = Generators()
        self._attached = Attached()
        self._names: dict[int, str] = {}
        self._sizes: dict[str, int] = {}
        self._digests: dict[str, tuple[int, bytes]] = {}
        self._rng: dict[int, int] = {}
        self._adopted = 0
        self._capture: Capture | None = None
        self._pending: Capture | None = None
        self._made: dict[int, bytes] = {}
        self._dropped: list[str] = []
        self._snapshots: list[tuple[bytes, int, int]] = []
        self._writer: TranscriptWriter | None = None
        self._failed = False
        self._frozen = 0
        self._tapes: list[tuple[Tape, bytes]] = []

    # -- life ----------------------------------------------------------------------------------------------------------

    @unseen
    def _require_arithmetic(self, tensors: Iterable[Tensor]) -> None:
        """Tests every device once, before anything is computed on it under this run's bounds."""
        for device in {torch.device("cpu"), *(t.device for t in tensors)} - self._probed:
            if device.type != "meta":
                probes.require(device, self._policy)
            self._probed.add(device)

    def __enter__(self) -> Self:
        self._require_arithmetic(())
        draft = {
            "name": self.path.resolve().name,
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
        self._writer = TranscriptWriter(
            self.path, draft=draft, key=self._key, data=self._data, segment_steps=self._every
        )
        if self._chip is not None:
            self._chip.log_event("manifest-draft", self._writer.draft_digest)
        self.memory.on_death(self._died)
        torch.manual_seed(0)  # generators count draws from here (weighbridge.numerics.randomness)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._frozen:
            gc.unfreeze()
        if self._writer is not None:
            self._writer.close(complete=error is None and not self._failed)

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
        if self._out.steps or self._pending is not None:
            raise UsageError("initialisation() comes first, once, before attach()")
        with self._capturing({}) as capture:
            yield
        # Named and written by attach(): only then is it known what the tensors are.
        self._pending = self._capture = capture
        self._made = self._contents(capture.slots)

    def attach(self, *objects: Any, **named: Any) -> None:
        """Declares the model, the optimizer and whatever else has tensors that outlive a step.

        Args:
            *objects: Modules, optimizers, tensors (a data set that lies on the chip), or anything with a `state_dict()`
                of tensors (an EMA, a gradient scaler).
            **named: The same, with names of your choice.

        Raises:
            UsageError: If nothing with tensors was given, or attach() was called before.
        """
        out = self._out
        if out.steps:
            raise UsageError("attach() is called once, before the first step")
        self._attached.add(objects, named)
        tensors = self._attached.tensors()
        if not tensors:
            raise UsageError("attach() was given no tensors; pass the model and the optimizer")
        self._require_arithmetic(tensors.values())
        if self._chip is not None:
            for t in tensors.values():
                t.detach()  # a chip knows memory once a kernel has met it, and some parameters no step may ever use
        if self._pending is not None:
            self._check_made()
            capture, self._pending = self._pending, None
            self._finish(capture, "init", {}, None)
        else:
            self._begin_state()
            self._write_empty_initialisation()
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
        flat = flatten(batch) if batch is not None else {}
        stored = self._stored_batch({name: t for name, t in flat.items()})
        with self._capturing(dict(flat)) as capture:
            yield
        self._finish(capture, "step", stored, records)
        if (self.step_number - 1) % self._every == 0:
            self._checkpoint()

    @contextmanager
    def edit(self) -> Iterator[None]:
        """Records a deliberate change of state between steps (loading weights, say) as a step of its own."""
        self._ready()
        with self._capturing({}) as capture:
            yield
        self._finish(capture, "edit", {}, None)

    # -- capture -------------------------------------------------------------------------------------------------------

    def _ready(self) -> None:
        if self._capture is not None and self._pending is None:
            raise UsageError("steps cannot be nested")
        if self._out.steps == 0:
            raise UsageError("call attach(model, optimizer) before the first step")
        self._check_state()

    def _stored_batch(self, flat: dict[str, Tensor]) -> dict[str, HostCopy]:
        """The batch as it enters the transcript: copied now, because the step may change it.

        The copy is the Recorder's own, in host memory: a chip must not see it as the workload's.
        """
        with _disable_current_modes():
            return {name: HostCopy(t) for name, t in flat.items()}

    @contextmanager
    def _capturing(self, batch: dict[str, Tensor]) -> Iterator[Capture]:
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
            capture = self._capture = self._new_capture(paths := Paths(self._attached))
            for name in self._dropped:
                capture.state_dropped(self._relative(name), self._sizes.pop(name))
            self._dropped.clear()
            capture.begin_batch(batch)
            with ExitStack() as stack:
                # Composite kernels below are either decomposed by PyTorch itself or have a rule.
                stack.enter_context(sdpa_kernel([SDPBackend.MATH]))
                stack.enter_context(conforming())
                stack.enter_context(DeepCopies())
                stack.enter_context(paths)
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

    def _new_capture(self, paths: Paths) -> Capture:
        return Capture(self, Recording(self._seed, self._generators, self._policy), paths)

    def state_name(self, address: int) -> str | None:
        """See `prover.capture.Owner`."""
        name = self._names.get(address)
        return None if name is None else self._relative(name)

    def _relative(self, name: str) -> str:
        """Names what an earlier step left behind by how many steps ago that was, so that tapes can be shared."""
        if not name.startswith("kept/"):
            return name
        _, step, slot = name.split("/")
        return f"~{self.step_number - int(step)}/{slot}"

    def after_operation(self, capture: Capture) -> None:
        """See `prover.capture.Owner`: a safepoint for the chip."""
        chip = self._chip
        if chip is None or not chip.pending or self._writer is None:
            return
        op = len(capture.tape.nodes)
        running = running_digest(self.step_number, op, np.array(capture.context.checksums, dtype="<u8").tobytes())
        index = chip.safepoint(self.step_number, op, running, self._writer.head, self._writer.flush)
        if index is not None:
            self._snapshots.append((chip.ueid, index, op))

    def _died(self, address: int) -> None:
        name = self._names.pop(address, None)
        if name is not None:
            self._digests.pop(name, None)
        capture = self._capture
        if capture is None:
            if name is not None:
                self._dropped.append(name)
        elif name is not None:
            capture.state_died(address, self._relative(name), self._sizes.pop(name))
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
        self._failed = True  # until the step is in the transcript: what comes after it could not be replayed without it
        self._name_survivors(capture)
        context, tape = capture.context, capture.finish()
        self._hash_state()
        for number, (_, after) in context.rng.items():
            self._rng[number] = after
        record = out.append_step(
            kind=kind,
            tape=self._put_tape(out, tape),
            values=capture.values,
            host=context.hosts,
            rng={str(number): pair for number, pair in context.rng.items()},
            state=self._state_digest(),
            checksums=np.array(context.checksums, dtype="<u8").tobytes(),
            rounding=context.log.finish(),
            batch={name: copy.tensor() for name, copy in batch.items()},
            free={name: copy.tensor() for name, copy in capture.free.items()},
            records=records,
            snapshots=self._snapshots,
            rounded=context.rounded_elements,
            logged=context.log.entries,
        )
        self._snapshots = []
        self.rounded += context.rounded_elements
        self.logged += context.log.entries
        self.step_number += 1
        self._failed = False
        return record

    def _put_tape(self, out: TranscriptWriter, tape: Tape) -> bytes:
        """Stores a tape and returns its digest; steps often repeat a recent tape, which costs less to compare."""
        for known, digest in self._tapes:
            if known == tape:
                return digest
        digest = out.put_tape(tape.encode())
        self._tapes = [(tape, digest), *self._tapes[:3]]
        return digest

    def _name_survivors(self, capture: Capture) -> None:
        """Gives every storage that outlives the step its name in the state."""
        names = self._attached.storage_names()
        batch = {i.slot for i in capture.tape.inputs if i.origin == "batch"}
        known = {i.slot for i in capture.tape.inputs if i.origin == "state"}
        for address, slot in sorted(capture.slots.items(), key=lambda item: item[1]):
            if address < 0 or slot in known or (slot in batch and address not in names):
                continue
            name = names.get(address)
            if name is None or name in self._sizes:
                if address in capture.adopted:
                    name = f"adopted/{self._adopted}"
                    self._adopted += 1
                else:
                    name = f"kept/{self.step_number}/{slot}"
            storage = self.memory.storage(address)
            assert storage is not None, "a slot outlived its storage"
            self._names[address] = name
            self._sizes[name] = storage.nbytes()
            capture.tape.survivors.append((slot, name if not name.startswith("kept/") else f"~0/{slot}"))

    def _begin_state(self) -> None:
        """Takes over the state of a model that exists already."""
        for address, name in self._attached.storage_names().items():
            storage = self._attached.storage(address)
            self.memory.watch(storage)
            self._names[address] = name
            self._sizes[name] = storage.nbytes()

    def _write_empty_initialisation(self) -> None:
        self._finish(self._new_capture(Paths(self._attached)), "init", {}, None)

    def _hash_state(self) -> None:
        self._digests = {}
        for address, name in self._names.items():
            storage = self.memory.storage(address)
            assert storage is not None, "state outlived its storage"
            data = storage_bytes(storage)
            self._digests[name] = (data.size, bytes_digest(data.data))

    def _state_digest(self) -> bytes:
        return state_digest(self._digests, {str(n): c for n, c in self._rng.items()})

    @unseen
    def _check_state(self) -> None:
        """Raises if the state is not as the last step left it."""
        if not self._verify:
            return
        for address, name in self._names.items():
            storage = self.memory.storage(address)
            if storage is None:
                continue
            if bytes_digest(storage_bytes(storage).data) != self._digests[name][1]:
                self._failed = True
                raise StateChangedError(
                    f"{name} was changed since step {self.step_number - 1}; "
                    "make the change inside `with recorder.edit():`",
                    tensor=name,
                )

    @unseen
    def _contents(self, addresses: Iterable[int]) -> dict[int, bytes]:
        """Returns the digest of every storage among `addresses` that is alive."""
        storages = {address: self.memory.storage(address) for address in addresses}
        return {a: bytes_digest(storage_bytes(s).data) for a, s in storages.items() if s is not None}

    def _check_made(self) -> None:
        """Raises if what initialisation() made was changed before attach()."""
        made, self._made = self._made, {}
        found = self._contents(made) if self._verify else {}
        for address, digest in found.items():
            if digest != made[address]:
                name = self._attached.storage_names().get(address, "a tensor")
                self._failed = True
                raise StateChangedError(
                    f"{name} was changed between initialisation() and attach(); make the change inside "
                    "`with recorder.initialisation():`, or inside `with recorder.edit():` after attach()",
                    tensor=name,
                )

    @unseen
    def _checkpoint(self) -> None:
        storages = {}
        by_address = {}
        for address, name in self._names.items():
            storage = self.memory.storage(address)
            assert storage is not None
            storages[name] = torch.from_numpy(np.array(storage_bytes(storage)))
            by_address[address] = name
        views = [
            View(
                name,
                by_address[t.untyped_storage()._cdata],
                DTYPE_NAMES[t.dtype],
                tuple(t.shape),
                t.stride(),
                int(t.storage_offset()),
            )
            for name, t in self._attached.tensors().items()
            if t.untyped_storage()._cdata in by_address
        ]
        rng = {str(n): c for n, c in self._rng.items()}
        self._out.checkpoint(Checkpoint(step=self.step_number, storages=storages, views=views, rng=rng))
