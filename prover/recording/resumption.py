"""Recordings that may be resumed: what is kept beside the transcript, and how a program continues after a crash.

While it records, it keeps beside the transcript, in `RUN.resume/`, what no tensor says: at the beginning of each step
the plain values of optimizers and schedulers, and which tensors lie where. After a crash it puts the state before one
of the last whole steps into the new program's objects and lets the program recompute its steps; until the end of the
recording is reached they are compared, not written.

Tensors of the state that no attached object holds (the `loss` that a loop's variable still referred to) belong to
no object of the new program: they are *orphans*, held here until the tape of a recomputed step says that they died.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from prover.capture.attached_objects import Attached
from prover.capture.generators import Generators
from prover.capture.recording_context import Recording
from prover.capture.storages import HostCopy, Memory
from prover.capture.without_modes import unseen
from prover.recording.recomputed_step import RecomputedStep
from weighbridge.attest.manifest import SigningKey
from weighbridge.core.bounded import DEFAULT_LIMITS, decode_cbor, read_file
from weighbridge.core.digests import cbor
from weighbridge.core.durable import sync
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.execution.continuing import Continuation, open_writer
from weighbridge.numerics.conformance.bound_policy import Policy
from weighbridge.transcript.data import DataCommitment
from weighbridge.transcript.entry_notes import EntryNote
from weighbridge.transcript.job_record import RESUME
from weighbridge.transcript.log_kinds import LogKind
from weighbridge.transcript.placing import TEMPORARY
from weighbridge.transcript.state import View
from weighbridge.transcript.tape import Tape, absolute_name
from weighbridge.transcript.training_claims import Claims
from weighbridge.transcript.writer import TranscriptWriter

Tensor = torch.Tensor
_PENDING = "snapshots.cbor"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a program needs to begin a step again, beside the state.

    Attributes:
        step: Its number.
        updates: Steps of the kind `step` before it.
        adopted: Storages that had come from outside so far.
        rounded: Elements rounded so far.
        logged: Entries of the rounding logs so far.
        views: The attached tensors that were state: name, storage, dtype, size, stride, offset.
        on_cpu: Storages in host memory, wherever the model is.
        objects: Plain values of what was attached.
        counters: Those of the generators, as `Generators.counters` returns them.
    """

    step: int
    updates: int
    adopted: int
    rounded: int
    logged: int
    views: list[Any]
    on_cpu: list[str]
    objects: dict[str, Any]
    counters: list[tuple[int, int, int]]

    @classmethod
    def of(cls, views: Sequence[View], attached: Attached, generators: Generators, **numbers: int) -> Kept:
        """Describes the present moment."""
        tensors = attached.tensors() | attached.nested()
        on_cpu = {view.storage for view in views if tensors[view.name].device.type == "cpu"}
        table = [[v.name, v.storage, v.dtype, list(v.size), list(v.stride), v.offset] for v in views]
        return cls(
            views=table,
            on_cpu=sorted(on_cpu),
            objects=attached.plain(),
            counters=generators.counters(),
            **numbers,
        )


class Resuming:
    """One recording that may be resumed, or is.

    Attributes:
        writer: Writes the transcript.
        updates: Steps of the kind `step` before the one at which the program continues.
        orphans: Name to bytes of state that nothing in this program holds yet.
    """

    def __init__(
        self, path: Path, *, draft: Mapping[str, Any], key: SigningKey, data: DataCommitment | None, segment_steps: int
    ) -> None:
        """Begins a recording, or continues the one that is there; see `execution.continuing`."""
        self._folder = path.with_name(path.name + RESUME)
        self.writer: TranscriptWriter = open_writer(path, draft=draft, key=key, data=data, segment_steps=segment_steps)
        self.orphans: dict[str, Tensor] = {}
        self._old = self.writer if isinstance(self.writer, Continuation) else None
        self._kept: list[int] = []
        self._synced = -1
        self._accepted = False
        self._guide: Tape | None = None
        self._snapshots: list[tuple[bytes, int, int, int]] = []
        if self._old is None:
            shutil.rmtree(self._folder, ignore_errors=True)
        else:
            self._kept = [step for step in self._kept_steps() if step < self._old.steps]
            # A loss of power may have taken steps away whose snapshots were noted: these cannot be replayed any more.
            self._old.again = [s for s in self._pending() if s[2] <= self._old.steps and not self._old.known(*s[:3])]
        self._folder.mkdir(parents=True, exist_ok=True)

    @property
    def repeating(self) -> bool:
        """Whether the next step is a recomputed one."""
        return self._old is not None and self._old.repeating

    def noted(self) -> tuple[set[bytes], list[EntryNote]]:
        """Returns the tapes of the whole steps, and what is noted of the undeclared tensors that they took in."""
        return (set(), []) if self._old is None else (self._old.tapes, self._old.entered())

    def claimed(self) -> dict[bytes, Claims]:
        """Returns what is claimed of the tapes so far."""
        return {} if self._old is None else self._old.claims()

    def context(
        self, step: int, seed: int, generators: Generators, policy: Policy, stream: int, *, logs: LogKind
    ) -> Recording:
        """Returns the context in which a step is recorded or recomputed."""
        if self._old is None or not self._old.repeating:
            return Recording(seed, generators, policy, stream, logs=logs)
        entry = self._old.entry(step)
        return RecomputedStep(entry.record, entry.rounding, seed, generators, policy, stream)

    def tape(self, step: int) -> Tape:
        """Returns the tape of a whole step."""
        assert self._old is not None, "there is nothing to resume"
        return self._old.tape(self._old.entry(step).record.tape)

    def head(self, step: int) -> bytes:
        """Returns the running head before a step (32 bytes)."""
        return self.writer.head if self._old is None or not self._old.repeating else self._old.head_before(step)

    # -- while recording -----------------------------------------------------------------------------------------------

    def begin_step(self, step: int, keep: Callable[[], Kept]) -> None:
        """Keeps what is needed to begin `step` again; called before each, in the state that the last one left."""
        if self.repeating:
            return
        if self._old is not None and not self._accepted:
            self._accepted = True
            self._old.accept()
            for stale in set(self._kept_steps()) - set(self._kept):
                (self._folder / _name(stale)).unlink()
        if self._snapshots:
            self._snapshots = []
            self._write(_PENDING, cbor([]))
        self._keep(step, keep)

    def _keep(self, step: int, keep: Callable[[], Kept]) -> None:
        """Keeps a step's beginning, and lets go of those that no start needs any more."""
        durable = self.writer.durable
        # A loss of power may take the last steps away: what belongs to the last durable one stays too.
        while len(self._kept) > 1 and self._kept[1] < durable:
            (self._folder / _name(self._kept.pop(0))).unlink(missing_ok=True)
        if durable > self._synced:
            self._synced = durable
            for kept in self._kept:
                if (place := self._folder / _name(kept)).exists():
                    sync(place)
            sync(self._folder)
        self._put(step, keep())

    def _put(self, step: int, kept: Kept) -> None:
        self._write(_name(step), cbor(asdict(kept)))
        self._kept.append(step)

    @unseen
    def check_batch(self, batch: Mapping[str, HostCopy]) -> None:
        """Raises if a recomputed step gets another batch."""
        if self._old is not None and self._old.repeating:
            self._old.check_batch({name: copy.tensor() for name, copy in batch.items()})

    def snapshot(self, ueid: bytes, index: int, step: int, op: int) -> bool:
        """Makes durable that a chip took a snapshot; tells whether the step's record will still name it."""
        if self._old is not None and self._old.repeating:
            self._old.again.append((ueid, index, step, op))
        else:
            self._snapshots.append((ueid, index, step, op))
        again = [] if self._old is None else self._old.again
        self._write(_PENDING, cbor([*again, *self._snapshots]))
        sync(self._folder / _PENDING)
        sync(self._folder)
        return not self.repeating

    def close(self, complete: bool) -> None:
        """Signs a transcript that is complete; leaves any other as a crash would, to be resumed or recovered."""
        if not complete:
            self.writer.settle()
            self.writer.flush()
            return
        self.writer.close(complete=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- after a crash -------------------------------------------------------------------------------------------------

    def start(self, attached: Attached) -> Kept | None:
        """Chooses where the program continues: at the last whole step of which everything needed was kept.

        Args:
            attached: What holds the state.

        Returns:
            What `begin_step` kept of that step; None if the program recomputes everything.
        """
        if self._old is None:
            return None
        for step in reversed(self._kept):
            if (kept := self._read(step)) is not None:
                self._old.begin(step)
                self._kept = [each for each in self._kept if each <= step]
                return kept
        return None

    def _read(self, step: int) -> Kept | None:
        """Returns what was kept of a step; None if a loss of power tore it, and an earlier one has to do."""
        try:
            data = read_file(self._folder / _name(step), max_bytes=DEFAULT_LIMITS.manifest)
            return Kept(**decode_cbor(data, max_depth=64, max_items=DEFAULT_LIMITS.items))
        except (WeighbridgeError, TypeError):
            return None

    def restore(
        self, kept: Kept, attached: Attached, names: Mapping[int, str], memory: Memory, seed: int, policy: Policy
    ) -> tuple[dict[int, str], dict[str, int]]:
        """Puts the state before the chosen step into the objects of this program.

        Args:
            kept: What `start` returned.
            attached: The objects, as the initialisation left them.
            names: Address to name of the state of this program so far.
            memory: Follows the storages.
            seed: The run's seed.
            policy: The run's policy.

        Returns:
            Address to name of the restored state, and the counters of the generators.
        """
        assert self._old is not None, "there is nothing to resume"
        home = next(iter(attached.tensors().values())).device
        with (
            torch.no_grad(),
            torch.backends.mkldnn.flags(enabled=False),
            torch.backends.cudnn.flags(enabled=False),
        ):
            executor = self._old.state_before(kept.step, home, seed, policy)
        here = {name: memory.storage(address) for address, name in names.items()}
        away = set(kept.on_cpu)
        storages: dict[str, Tensor] = {}
        new: set[str] = set()
        for name, data in executor.state.items():
            old = here.get(name)
            if old is not None and old.nbytes() == data.numel():
                storages[name] = _bytes_of(old)
                storages[name].copy_(data)
            else:
                new.add(name)
                storages[name] = data.to("cpu" if name in away else home, copy=True)
        views = [View(n, s, dtype, tuple(size), tuple(stride), at) for n, s, dtype, size, stride, at in kept.views]
        try:
            attached.put_back(kept.objects, {view.name: view.tensor(storages) for view in views})
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise UsageError(
                f"the attached objects do not take back what they held ({str(error)[:200]}); attach the same as before",
                code="record.resume.differs",
            ) from None
        found = attached.tensors() | attached.nested()
        for view in views:
            mine = found.get(view.name)
            if mine is None:
                raise UsageError(
                    f"{view.name} is no longer attached; attach the same objects as before",
                    code="record.resume.differs",
                )
            if mine.untyped_storage()._cdata != storages[view.storage].untyped_storage()._cdata:
                storages[view.storage] = _bytes_of(mine.untyped_storage())  # the object took a copy
        held = {t.untyped_storage()._cdata for t in found.values()}
        restored: dict[int, str] = {}
        for name, data in storages.items():
            address = memory.watch(data.untyped_storage())
            restored[address] = name
            if name in new and address not in held:
                self.orphans[name] = data
        return restored, executor.rng

    def enter(self, step: int) -> None:
        """Called before a step begins: orphans that had died before it do so now."""
        self._guide = None
        if self._old is None or not self._old.repeating:
            return
        self._guide = self.tape(step)
        self._names = {
            i.slot: absolute_name(i.name, step) for i in self._guide.inputs if i.origin in ("state", "dropped")
        }
        self._deaths: dict[int, list[str]] = {}
        for at, slot in self._guide.frees:
            if self._names.get(slot) in self.orphans:
                self._deaths.setdefault(at, []).append(self._names[slot])
        for item in self._guide.inputs:
            if item.origin == "dropped":
                self.orphans.pop(self._names[item.slot], None)

    def release(self, op: int) -> None:
        """Called when `op` operations are complete: orphans that had died at that moment do so now."""
        if self._guide is not None:
            for name in self._deaths.pop(op, ()):
                self.orphans.pop(name, None)

    @unseen
    def claim(self, slot: int, storage: torch.UntypedStorage) -> str | None:
        """Returns which orphan a storage is that this program made on its own and uses now, if it is one.

        A tensor from outside any step (class weights, position numbers) is made anew by the program that starts again.
        """
        candidates = sorted(name for name in self.orphans if name.startswith("adopted/"))
        if self._guide is not None:
            candidates = [name for name in [self._names.get(slot)] if name in self.orphans]
        for name in candidates:
            orphan = self.orphans[name]
            if orphan.numel() == storage.nbytes() and torch.equal(_bytes_of(storage).cpu(), orphan.cpu()):
                return name
        return None

    # -- files beside the transcript -----------------------------------------------------------------------------------

    def _kept_steps(self) -> list[int]:
        names = [each.name for each in self._folder.iterdir()] if self._folder.is_dir() else []
        return sorted(int(name[:8]) for name in names if len(name) == 13 and name[:8].isdecimal())

    def _pending(self) -> list[tuple[bytes, int, int, int]]:
        if not (self._folder / _PENDING).exists():
            return []
        raw = decode_cbor(read_file(self._folder / _PENDING, max_bytes=DEFAULT_LIMITS.manifest))
        return [(ueid, index, step, op) for ueid, index, step, op in raw]

    def _write(self, name: str, content: bytes) -> None:
        temporary = self._folder / (name + TEMPORARY)
        temporary.write_bytes(content)
        os.replace(temporary, self._folder / name)


def _name(step: int) -> str:
    return f"{step:08d}.cbor"


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
