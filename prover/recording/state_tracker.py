"""The state as the Recorder follows it: which storage has which name, its size, and what it held after a step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from prover.capture.attached_objects import Attached
from prover.capture.in_progress import InProgress
from prover.capture.storages import Memory
from prover.capture.without_modes import storage_bytes, unseen
from prover.recording.memory_marks import mark, storage_mark
from weighbridge.core.digests import bytes_digest
from weighbridge.transcript.state import Checkpoint, state_digest
from weighbridge.transcript.tape import Tape, absolute_name


def lasting(tape: Tape, step: int) -> set[str]:
    """Returns the names of what earlier steps left behind and this one used."""
    names = {absolute_name(i.name, step) for i in tape.inputs if i.origin == "state"}
    return {name for name in names if name.startswith("kept/")}


class StateTracker:
    """The storages that are state, by address and name.

    Attributes:
        names: Address to name.
        sizes: Name to bytes.
        digests: Name to (bytes, 32-byte digest) after the last step.
        marks: Name to mark (`memory_marks`) after the last step.
        rng: Generator number to its counter.
        adopted: How many storages came from outside so far and stayed.
    """

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.names: dict[int, str] = {}
        self.sizes: dict[str, int] = {}
        self.digests: dict[str, tuple[int, bytes]] = {}
        self.marks: dict[str, bytes] = {}
        self.rng: dict[int, int] = {}
        self.adopted = 0

    def begin(self, attached: Attached) -> None:
        """Takes over the state of a model that exists already."""
        for address, name in attached.storage_names().items():
            storage = attached.storage(address)
            self._memory.watch(storage)
            self.names[address] = name
            self.sizes[name] = storage.nbytes()

    def name_survivors(self, capture: InProgress, attached: Attached, step: int) -> None:
        """Gives every storage that outlives a step its name in the state, and notes it on the tape."""
        names = attached.storage_names()
        batch = {i.slot for i in capture.tape.inputs if i.origin == "batch"}
        known = {i.slot for i in capture.tape.inputs if i.origin == "state"}
        for address, slot in sorted(capture.slots.items(), key=lambda item: item[1]):
            if address < 0 or slot in known or (slot in batch and address not in names):
                continue
            if self._storage(address).device.type == "meta":  # without content it is no state, and a replay drops it
                capture.died(address)
                continue
            name = names.get(address)
            if name is None or name in self.sizes:
                if address in capture.adopted:
                    name = f"adopted/{self.adopted}"
                    self.adopted += 1
                else:
                    name = f"kept/{step}/{slot}"
            self.names[address] = name
            self.sizes[name] = self._storage(address).nbytes()
            capture.tape.survivors.append((slot, name if not name.startswith("kept/") else f"~0/{slot}"))

    def hash(self) -> None:
        """Notes what the state holds now; what is as it was when this was called last is not hashed again."""
        digests, marks = self.digests, self.marks
        self.digests, self.marks = {}, {}
        for address, name in self.names.items():
            data = storage_bytes(self._storage(address))
            now = self.marks[name] = mark(data.data)
            same = marks.get(name) == now and name in digests
            self.digests[name] = digests[name] if same else (data.size, bytes_digest(data.data))

    def digest(self) -> bytes:
        """Returns the digest of the state as it was noted last (32 bytes)."""
        return state_digest(self.digests, self._counters())

    @unseen
    def changed(self) -> str | None:
        """Returns the name of a storage that is not as it was noted last, if there is one."""
        for address, name in self.names.items():
            storage = self._memory.storage(address)
            if storage is not None and storage_mark(storage) != self.marks[name]:
                return name
        return None

    @unseen
    def contents(self, addresses: Iterable[int]) -> dict[int, bytes]:
        """Returns the mark of every storage among `addresses` that is alive."""
        storages = {address: self._memory.storage(address) for address in addresses}
        return {a: storage_mark(s) for a, s in storages.items() if s is not None and s.device.type != "meta"}

    def checkpoint(self, step: int, attached: Attached) -> Checkpoint:
        """Returns the state before `step`."""
        storages = {
            name: torch.from_numpy(np.array(storage_bytes(self._storage(address))))
            for address, name in self.names.items()
        }
        return Checkpoint(step=step, storages=storages, views=attached.views(self.names), rng=self._counters())

    def _counters(self) -> dict[str, int]:
        return {str(number): counter for number, counter in self.rng.items()}

    def _storage(self, address: int) -> torch.UntypedStorage:
        storage = self._memory.storage(address)
        assert storage is not None, "state outlived its storage"
        return storage
