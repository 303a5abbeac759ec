"""Captures one step: every operation that reaches the dispatcher becomes a node of a tape, evaluated under its rule.

The mode sits below autograd, so it sees forward, backward, recomputation and optimizer alike, and what autograd saves
is the rounded result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode

from prover.capture.attached_objects import LAZY
from prover.capture.batch_windows import BatchWindows
from prover.capture.claimed_training import ClaimedTraining, Place
from prover.capture.default_dtype import explicit
from prover.capture.group_uses import GroupUse
from prover.capture.module_paths import Paths
from prover.capture.overload_facts import overload
from prover.capture.recording_context import Recording
from prover.capture.storages import HostCopy, Memory, Storage
from prover.capture.substitution import Substitution
from prover.capture.user_line import say_where
from weighbridge.core.errors import RefusedOperationError, WeighbridgeError
from weighbridge.numerics import refusals
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.rule_table import Kind, find
from weighbridge.numerics.schemas import Op, bind
from weighbridge.transcript.tape import DTYPE_NAMES, MEMORY_FORMAT_NAMES, Input, Node, Tape

Tensor = torch.Tensor


class Owner(Protocol):
    """What a capture asks of the Recorder."""

    memory: Memory

    def state_name(self, address: int) -> str | None:
        """Name of a storage that is state, relative to the step in progress, or None."""

    def after_operation(self, capture: Capture) -> None:
        """Called when an operation is complete and none of its temporaries is left."""

    def resized(self, address: int, size: int) -> None:
        """Called when a storage was given another size in place."""


class Ranks(Protocol):
    """What a program on several ranks does beside ordinary operations, as far as a capture needs to know."""

    @property
    def uses(self) -> list[GroupUse]:
        """The group of each collective."""
        ...

    @property
    def hindrance(self) -> str | None:
        """Why the step cannot be run as the program of its tape, if that does not lie in the tape."""
        ...

    def take(self, func: Op, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Records an operation and returns its result, or `NotImplemented` if it is an ordinary one."""

    def resizes(self) -> AbstractContextManager[None]:
        """Records resizing of storages in place, which reaches no dispatcher, while the context lasts."""


_ORDINARY = frozenset({Tensor, torch.nn.Parameter, torch.nn.Buffer})
"""Types that wrap no other tensors."""


class Capture(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations of one step into a tape while evaluating them under their rules."""

    def __init__(self, owner: Owner, context: Recording, paths: Paths, substitution: Substitution) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owner, self.context = owner, context
        self._substitution, self._substituted = substitution, False
        self._computing: str | None = None
        """The operation that is recorded, if it only computes with its numbers."""
        self._where = paths
        self._paths: dict[str, int] = {}
        self.tape = Tape()
        self.values: list[bool | int | float] = []
        self.undeclared: dict[str, HostCopy] = {}
        self.claimed: ClaimedTraining | None = None
        """Notes what the tape cannot say about training, if that is wanted."""
        self.entering: Callable[[str, Tensor], None] | None = None
        """Called with each undeclared tensor and its name."""
        self.slots: dict[int, int] = {}
        self.adopted: dict[int, str] = {}
        self.written: set[int] = set()
        """Slots of the storages that operations changed."""
        self._refs: dict[Any, int] = {}
        self._batch = BatchWindows(self.tape)
        self._next = 0
        self.running = 0
        """1 while an operation is evaluated that is on the tape only when it is complete."""
        self.ranks: Ranks | None = None
        """What a program on several ranks does beside ordinary operations, if there are several."""

    # -- storages ----------------------------------------------------------------------------------------------------

    def begin_batch(self, batch: Mapping[str, Tensor], written: Set[int] = frozenset()) -> None:
        """Declares the step's batch, or more of it: each storage enters as the window that the batch's tensors cover.

        Args:
            batch: Path to tensor.
            written: Slots that were written to, beside those in `written`.

        Raises:
            RefusedOperationError: The step has made something else of that memory.
        """
        windows: dict[int, list[tuple[str, Tensor]]] = {}
        for name, t in batch.items():
            windows.setdefault(self.owner.memory.watch(t.untyped_storage()), []).append((name, t))
        for address, members in windows.items():
            if self.owner.state_name(address) is not None:
                continue  # a batch that is part of the state needs no copy
            slot = self.slots.get(address)
            if slot is not None and (slot not in self._batch or slot in self.written or slot in written):
                raise RefusedOperationError(
                    f"the batch's tensor {members[0][0]!r} lies on memory that this step uses already; let the data "
                    "set return a copy (`.clone()`)"
                )
            self._batch.take(self._slot(address) if slot is None else slot, members)

    def batch_begins(self) -> dict[int, int]:
        """Returns at which byte of its storage the part of each slot begins that the batch covers."""
        return self._batch.begins()

    def covers(self, t: Tensor) -> bool:
        """True if a tensor lies within what entered of its storage, or the storage was made here."""
        slot = self.slots.get(t.untyped_storage()._cdata)
        return slot is not None and self._batch.covers(slot, t)

    def _slot(self, address: int) -> int:
        slot = self._next
        self.slots[address] = slot
        self._next += 1
        return slot

    def died(self, address: int) -> None:
        """Notes that a storage has died."""
        self.adopted.pop(address, None)  # another storage may soon have the address
        slot = self.slots.pop(address, None)
        if slot is not None:  # what an operation itself lets go of (`set_`) was its operand still
            self.tape.frees.append((len(self.tape.nodes) + self.running, slot))

    def state_dropped(self, name: str, size: int) -> None:
        """Notes that a storage of the state died before this step began."""
        self.tape.inputs.append(Input(self._next, size, "dropped", name))
        self._next += 1

    def state_died(self, address: int, name: str, size: int) -> None:
        """Notes that a storage of the state has died, whether or not this step had used it."""
        if address not in self.slots:
            self.tape.inputs.append(Input(self._slot(address), size, "state", name))
        self.died(address)

    def _ref(self, t: Tensor, births: list[tuple[int, int]] | None) -> int:
        storage = t.untyped_storage()
        address = storage._cdata
        slot = self.slots.get(address)
        if slot is None:
            self.owner.memory.watch(storage)
            slot = self._slot(address)
            if births is not None:
                births.append((slot, storage.nbytes()))
            else:
                self._enter(address, slot, storage, t)
        try:
            key = slot, t.dtype, t.shape, t.stride(), t.storage_offset()
        except RuntimeError:
            if not isinstance(t, LAZY):
                raise
            raise RefusedOperationError(
                "a lazy parameter gets its shape while it is recorded; say the sizes (nn.Linear for nn.LazyLinear), or "
                "run the model once on an example before the Recorder begins"
            ) from None
        index = self._refs.get(key)
        if index is None:
            self.tape.refs.append(self._batch.reference(slot, t))
            index = self._refs[key] = len(self.tape.refs) - 1
        return index

    def known(self, t: Tensor) -> int | None:
        """Returns the reference that names a tensor; None if none does."""
        place = self.place(t)
        return None if place is None else self.named(place)

    def place(self, t: Tensor) -> Place | None:
        """Returns where a tensor lies; None of one that `torch.func` wraps, which has no storage of its own."""
        try:
            return t.untyped_storage()._cdata, (t.dtype, t.shape, t.stride(), int(t.storage_offset()))
        except NotImplementedError:
            return None

    def named(self, place: Place) -> int | None:
        """Returns the reference that names what lies at a place, while its storage lives; None if none does."""
        slot = self.slots.get(place[0])
        return None if slot is None else self._refs.get((slot, *place[1]))

    def enter_tensor(self, t: Tensor) -> None:
        """Takes in a tensor that no operation has used yet."""
        storage = t.untyped_storage()
        address = self.owner.memory.watch(storage)
        if address not in self.slots:
            self._enter(address, self._slot(address), storage, t)

    def _enter(self, address: int, slot: int, storage: Storage, t: Tensor) -> None:
        """Finds the origin of a storage that this step uses but did not make."""
        name = self.owner.state_name(address)
        if name is not None:
            self.tape.inputs.append(Input(slot, storage.nbytes(), "state", name))
            return
        if storage.device.type == "meta":
            raise RefusedOperationError(
                "a tensor on the meta device has no content that could enter a step; make it within the step"
            )
        name = f"f{len(self.undeclared)}"
        self.undeclared[name] = HostCopy(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))
        self.adopted[address] = name
        if self.entering is not None:
            self.entering(name, t)
        self.tape.inputs.append(Input(slot, storage.nbytes(), "free", name))

    # -- operands ----------------------------------------------------------------------------------------------------

    def _operands(self, args: Any, positions: frozenset[int]) -> tuple[Any, ...]:
        """Encodes positional operands: `encode` for each, with what most of them are looked at first."""
        encoded: list[Any] = []
        for place, value in enumerate(args):
            kind = type(value)
            if kind is Tensor or kind is torch.nn.Parameter:
                encoded.append(("t", self._ref(value, None)))
            elif value is None or ((kind is int or kind is bool) and place not in positions):
                encoded.append(value)
            else:
                encoded.append(self.encode(value, place in positions))
        return tuple(encoded)

    def _exactly(self, value: float) -> float:
        """Returns what an operation is executed with where the program has a number that it computed."""
        if self._computing is None:
            return value
        exact = self._substitution.value((self._computing, len(self.tape.nodes), len(self.values)), value)
        self._substituted |= exact is not value
        return exact

    def encode(self, value: Any, number: bool) -> Any:
        """Returns an operand as a tape has it; `number` says that integers are values of the program, not structure."""
        if isinstance(value, Tensor):
            return ("t", self._ref(value, None))
        if isinstance(value, float) or (number and isinstance(value, (int, bool))):
            self.values.append(self._exactly(value) if number and isinstance(value, float) else value)
            return ("v", len(self.values) - 1)
        if value is None or isinstance(value, (bool, int)):
            return value
        if isinstance(value, str):
            return ("s", value)
        if isinstance(value, (list, tuple)):
            if not number and all([type(v) is int for v in value]):
                return ("l", tuple(value))
            return ("l", tuple([self.encode(v, number) for v in value]))
        if isinstance(value, torch.dtype) and value in DTYPE_NAMES:
            return ("d", DTYPE_NAMES[value])
        if isinstance(value, torch.dtype) and value.is_complex:
            raise RefusedOperationError(refusals.COMPLEX)
        if isinstance(value, torch.device):
            return ("dev",)
        if isinstance(value, torch.memory_format):
            return ("m", MEMORY_FORMAT_NAMES[value])
        if isinstance(value, torch.layout):
            if value is not torch.strided:
                raise RefusedOperationError(refusals.SPARSE)
            return ("lay",)
        if isinstance(value, torch.Generator):
            return None  # the node's draw says which one and how far it was
        raise RefusedOperationError(f"an operand of type {type(value).__name__} ({value}) cannot be put on a tape")

    def _outputs(self, out: Any, births: list[tuple[int, int]]) -> Iterator[int | None]:
        for value in out if isinstance(out, (list, tuple)) else [out]:
            if isinstance(value, (list, tuple)):
                raise RefusedOperationError("an operation that returns nested lists cannot be put on a tape")
            yield self._ref(value, births) if isinstance(value, Tensor) else None

    # -- dispatch ----------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Op, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.ranks is not None:
            try:
                result = self.ranks.take(func, types, args, kwargs)
            except WeighbridgeError as error:
                say_where(error, func, self._where.current())
                raise
            if result is not NotImplemented:
                return result
        for t in types:
            if t not in _ORDINARY and wraps(t):
                return NotImplemented
        what = overload(func)
        if what.aside or any([t not in _ORDINARY and issubclass(t, FakeTensor) for t in types]):
            return func(*args, **kwargs)
        claimed = self.claimed
        if claimed is not None:
            claimed.enter()
        try:
            if what.decomposition is not None and not (what.unless is not None and what.unless(*args, **kwargs)):
                with self:
                    replaced = what.decomposition(*args, **kwargs)
                if replaced is not NotImplemented:
                    return replaced
            elif what.composite:
                # Under inference mode, and inside decompositions, PyTorch leaves its composites to us.
                with self:
                    return func.decompose(*args, **kwargs)
            return self.record(func, args, kwargs)
        except WeighbridgeError as error:
            say_where(error, func, self._where.current())
            raise
        finally:
            if claimed is not None:
                claimed.leave()

    def record(self, func: Op, args: Any, kwargs: dict[str, Any]) -> Any:
        """Evaluates an operation under its rule, puts it on the tape, and returns its result."""
        default = torch.get_default_dtype()
        if default is torch.float32:
            return self._record_plainly(func, args, kwargs)
        kwargs = explicit(func, args, kwargs, default)
        torch.set_default_dtype(torch.float32)  # which a replay has, and so what evaluates operations
        try:
            return self._record_plainly(func, args, kwargs)
        finally:
            torch.set_default_dtype(default)

    def _record_plainly(self, func: Op, args: Any, kwargs: dict[str, Any]) -> Any:
        bound = bind(func, args, kwargs)
        what = overload(func)
        rule = what.rule or find(func, bound)
        self._computing = what.name if what.computes else None
        encoded = self._operands(args, what.positions)
        encoded_kwargs = {k: self.encode(kwargs[k], k in what.names) for k in sorted(kwargs)} if kwargs else {}
        if self._substituted:
            self._substituted = False
            args = [self._with_values(value, place) for value, place in zip(args, encoded, strict=True)]
            kwargs = {k: self._with_values(kwargs[k], place) for k, place in encoded_kwargs.items()}
            bound = bind(func, args, kwargs)
            rule = what.rule or find(func, bound)
        tape = self.tape
        self.context.begin(len(tape.nodes))
        self.running = 1
        try:
            out = evaluate(func, args, kwargs, self.context, rule=rule, bound=bound)
        finally:
            self.running = 0
        births: list[tuple[int, int]] = []
        if what.mutated and args and out is args[0] and rule.kind is not Kind.VIEW:
            index = encoded[0][1]  # changed where it is, and nothing else with it
            outputs: tuple[int | None, ...] = (index,)
            self.written.add(tape.refs[index][0])
        else:
            for operand in what.mutated:
                changed = bound[operand]
                for t in changed if isinstance(changed, (list, tuple)) else (changed,):
                    if isinstance(t, Tensor):
                        self.written.add(self.slots.get(t.untyped_storage()._cdata, -1))
            outputs = (self._ref(out, births),) if isinstance(out, Tensor) else tuple(self._outputs(out, births))
        draw = self.context.draw_key if rule.kind is Kind.RANDOM else None
        if self.claimed is not None:
            self.claimed.operation(args, kwargs)
        tape.nodes.append(Node(what.name, encoded, encoded_kwargs, outputs, tuple(births), draw, self.module_path()))
        self.owner.after_operation(self)
        return out

    def _with_values(self, value: Any, encoded: Any) -> Any:
        """Returns an operand with what the tape's values have in the place of the program's."""
        match encoded:
            case ("v", int(index)):
                return self.values[index]
            case ("l", tuple(items)) if any(isinstance(each, tuple) for each in items):
                return [self._with_values(each, item) for each, item in zip(value, items, strict=True)]
        return value

    @property
    def complete(self) -> int:
        """Operations that are complete."""
        return len(self.tape.nodes)

    def where(self) -> str | None:
        """Returns the path of the module that runs."""
        return self._where.current()

    def module_path(self) -> int | None:
        """Returns the present module path as an index into the tape's paths."""
        path = self._where.current()
        if path is None:
            return None
        if path not in self._paths:
            # A module may be named by anything; what is no text, or longer than a name, has no place in a tape.
            text = path[-1000:].encode(errors="replace").decode()
            if text not in self.tape.paths:
                self.tape.paths.append(text)
            self._paths[path] = self.tape.paths.index(text)
        return self._paths[path]

    def finish(self) -> Tape:
        """Completes the tape: sorts what has no order of its own and counts what entered."""
        self.tape.inputs.sort(key=lambda i: i.slot)
        self.tape.frees.sort()
        self.tape.values = len(self.values)
        self.tape.hosts = len(self.context.hosts)
        return self.tape


def wraps(kind: type) -> bool:
    """True for tensor subclasses that wrap other tensors; the mode must see the inner operations instead."""
    return (
        issubclass(kind, Tensor)
        and not issubclass(kind, FakeTensor)
        and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__
    )
