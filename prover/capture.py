"""Captures one step: every operation that reaches the dispatcher becomes a node of a tape, evaluated under its rule.

The mode sits below autograd, so it sees forward, backward, recomputation and optimizer alike, and what autograd saves
is the rounded result. Storages are followed by weak references to their Python objects, which PyTorch keeps as long as
the memory lives; so births and deaths are exact.
"""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from prover.attached import LAZY
from prover.default_types import explicit
from prover.generators import Generators, counter_of
from prover.overloads import overload
from prover.paths import Paths
from weighbridge.errors import RefusedOperationError, WeighbridgeError
from weighbridge.hostmemory import alive
from weighbridge.numerics import narrow, refusals, rounding
from weighbridge.numerics.evaluate import Context, bind, evaluate
from weighbridge.numerics.policy import STRICT, Policy
from weighbridge.numerics.randomness import Draw
from weighbridge.numerics.rounding import Bound
from weighbridge.numerics.roundlog import LogWriter
from weighbridge.numerics.rules import Kind, Op, find
from weighbridge.tape import DTYPE_NAMES, MEMORY_FORMAT_NAMES, Input, Node, Ref, Tape

if TYPE_CHECKING:
    from prover.sharded import Sharded

Tensor = torch.Tensor
Storage = torch.UntypedStorage


class Watch(weakref.ref[Storage]):
    """A weak reference to a storage that remembers the address by which it is known."""

    __slots__ = ("address",)
    address: int


class HostCopy:
    """A copy of a tensor kept in host memory, as bytes: no tensor, so it is not part of what runs on the chip."""

    def __init__(self, t: Tensor) -> None:
        plain = t.detach().cpu().contiguous()
        self._dtype, self._shape = plain.dtype, plain.shape
        self._bytes = np.array(plain.reshape(-1).view(torch.uint8).numpy())

    def equals(self, t: Tensor) -> bool:
        """True if a tensor of the same type and shape has the same bits."""
        with _disable_current_modes():
            plain = t.detach().cpu().contiguous()
            return np.array_equal(plain.reshape(-1).view(torch.uint8).numpy(), self._bytes)

    def tensor(self) -> Tensor:
        """Returns the copy as a tensor on the CPU, sharing its memory."""
        if not self._bytes.size:
            return torch.empty(self._shape, dtype=self._dtype)
        return torch.from_numpy(self._bytes).view(self._dtype).view(self._shape)


class Memory:
    """Follows the life of storages: who they are and when they die."""

    def __init__(self) -> None:
        self._watches: dict[int, Watch] = {}
        self._died: Callable[[int], None] = lambda address: None

    def on_death(self, callback: Callable[[int], None]) -> None:
        """Calls `callback(address)` when a watched storage dies; there is one such callback at a time."""
        self._died = callback

    def watch(self, storage: Storage) -> int:
        """Watches a storage and returns its address, its identity while it lives."""
        address: int = storage._cdata
        if address not in self._watches:
            watch = Watch(storage, self._gone)
            watch.address = address
            self._watches[address] = watch
        return address

    def storage(self, address: int) -> Storage | None:
        """Returns a watched storage, or None if it is dead."""
        watch = self._watches.get(address)
        return alive(watch) if watch is not None else None

    def _gone(self, watch: Watch) -> None:
        if self._watches.get(watch.address) is watch:
            del self._watches[watch.address]
            self._died(watch.address)


class Recording(Context):
    """The context of a recorded step: logs contested roundings, checksums, host values and draws."""

    def __init__(self, seed: int, generators: Generators, policy: Policy = STRICT, stream: int = 0) -> None:
        self.policy = policy
        self.op = 0
        self.checksums: list[int] = []
        self.log = LogWriter()
        self.hosts: list[bool | int | float] = []
        self.rng: dict[int, tuple[int, int]] = {}
        self.draw_key: tuple[int, int] | None = None
        self.rounded_elements = 0
        self.collectives: list[tuple[int, bytes, bytes]] = []
        self._output = 0
        self._seed, self._stream, self._generators = seed, stream, generators
        generators.begin()

    def begin(self, op: int) -> None:
        """Starts operation number `op`."""
        self.op, self._output, self.draw_key = op, 0, None

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """See `Context.rounded`."""
        if dtype in narrow.NARROW:
            result = narrow.record(wide, bound, dtype, self.op, self._output)
        else:
            result = rounding.record(wide, bound, self.op, self._output)
        self._output += 1
        self.rounded_elements += wide.numel()
        self.checksums.append(result.checksum)
        if result.entries is not None:
            self.log.add(result.entries)
        return result.out

    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        """See `Context.exact`."""
        if checksum is None:
            checksum = (narrow if bits.dtype in narrow.NARROW else rounding).canonicalise(bits)
        self.checksums.append(checksum)

    def draw(self, generator: torch.Generator | None, device: torch.device) -> Draw:
        """See `Context.draw`."""
        source = self._generators.resolve(generator, device)
        number = self._generators.number(source)
        counter = counter_of(source)
        first = self.rng.setdefault(number, (counter, counter))[0]
        after = (counter + 1) & 0xFFFFFFFFFFFFFFFF
        source.manual_seed(after)
        self._generators.drawn(source)
        self.rng[number] = (first, after)
        # A program may seed a generator anew within a step, so the way from the first draw's counter may be any.
        self.draw_key = (number, (counter - first + (1 << 63)) % (1 << 64) - (1 << 63))
        return Draw(self._seed, self._stream + (number << 12), counter)

    def host(self, value: bool | int | float) -> bool | int | float:
        """See `Context.host`."""
        self.hosts.append(value)
        return value


class Owner(Protocol):
    """What a capture asks of the Recorder."""

    memory: Memory

    def state_name(self, address: int) -> str | None:
        """Name of a storage that is state, relative to the step in progress, or None."""

    def after_operation(self, capture: Capture) -> None:
        """Called when an operation is complete and none of its temporaries is left."""

    def resized(self, address: int, size: int) -> None:
        """Called when a storage was given another size in place."""


_ORDINARY = frozenset({Tensor, torch.nn.Parameter, torch.nn.Buffer})
"""Types that wrap no other tensors."""


class Capture(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the operations of one step into a tape while evaluating them under their rules."""

    def __init__(self, owner: Owner, context: Recording, paths: Paths) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.owner, self.context = owner, context
        self._where = paths
        self._paths: dict[str, int] = {}
        self.tape = Tape()
        self.values: list[bool | int | float] = []
        self.free: dict[str, HostCopy] = {}
        self.slots: dict[int, int] = {}
        self.adopted: dict[int, str] = {}
        self.written: set[int] = set()
        """Slots of the storages that operations changed."""
        self._refs: dict[Any, int] = {}
        self._bases: dict[int, int] = {}
        self._next = 0
        self._running = 0
        self.sharded: Sharded | None = None
        """What programs on several ranks do beside ordinary operations, if there are several."""

    # -- storages ----------------------------------------------------------------------------------------------------

    def begin_batch(self, batch: dict[str, Tensor]) -> None:
        """Declares the step's batch: each storage behind it enters as the window that the batch's tensors cover."""
        windows: dict[int, list[tuple[str, Tensor]]] = {}
        for name, t in batch.items():
            windows.setdefault(self.owner.memory.watch(t.untyped_storage()), []).append((name, t))
        for address, members in windows.items():
            if self.owner.state_name(address) is not None:
                continue  # a batch that is part of the state needs no copy
            spans = [(t.storage_offset() * t.itemsize, _end(t)) for _, t in members]
            base = min(a for a, _ in spans) // 16 * 16
            slot = self._slot(address)
            self._bases[slot] = base
            names = "\n".join(name for name, _ in members)
            self.tape.inputs.append(Input(slot, max(b for _, b in spans) - base, "batch", names))
            self.tape.batch_views.extend((name, self._reference(slot, t)) for name, t in members)

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
            self.tape.frees.append((len(self.tape.nodes) + self._running, slot))

    def state_dropped(self, name: str, size: int) -> None:
        """Notes that a storage of the state died before this step began."""
        self.tape.inputs.append(Input(self._next, size, "dropped", name))
        self._next += 1

    def state_died(self, address: int, name: str, size: int) -> None:
        """Notes that a storage of the state has died, whether or not this step had used it."""
        if address not in self.slots:
            self.tape.inputs.append(Input(self._slot(address), size, "state", name))
        self.died(address)

    def _reference(self, slot: int, t: Tensor) -> Ref:
        offset = t.storage_offset() - self._bases.get(slot, 0) // t.itemsize
        if offset < 0 or t.dtype not in DTYPE_NAMES:
            raise RefusedOperationError(
                f"a {t.dtype} tensor of shape {tuple(t.shape)} cannot be put on a tape; "
                "pass what the step needs as its own tensors"
            )
        return slot, DTYPE_NAMES[t.dtype], tuple(t.shape), t.stride(), int(offset)

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
            self.tape.refs.append(self._reference(slot, t))
            index = self._refs[key] = len(self.tape.refs) - 1
        return index

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
        name = f"f{len(self.free)}"
        self.free[name] = HostCopy(torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage))
        self.adopted[address] = name
        self.tape.inputs.append(Input(slot, storage.nbytes(), "free", name))

    # -- operands ----------------------------------------------------------------------------------------------------

    def _operands(self, args: Any, positions: frozenset[int]) -> tuple[Any, ...]:
        """Encodes positional operands: `_encode` for each, with what most of them are looked at first."""
        encoded: list[Any] = []
        for place, value in enumerate(args):
            kind = type(value)
            if kind is Tensor or kind is torch.nn.Parameter:
                encoded.append(("t", self._ref(value, None)))
            elif value is None or ((kind is int or kind is bool) and place not in positions):
                encoded.append(value)
            else:
                encoded.append(self._encode(value, place in positions))
        return tuple(encoded)

    def _encode(self, value: Any, number: bool) -> Any:
        if isinstance(value, Tensor):
            return ("t", self._ref(value, None))
        if isinstance(value, float) or (number and isinstance(value, (int, bool))):
            self.values.append(value)
            return ("v", len(self.values) - 1)
        if value is None or isinstance(value, (bool, int)):
            return value
        if isinstance(value, str):
            return ("s", value)
        if isinstance(value, (list, tuple)):
            if not number and all([type(v) is int for v in value]):
                return ("l", tuple(value))
            return ("l", tuple([self._encode(v, number) for v in value]))
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
        if self.sharded is not None:
            try:
                result = self.sharded.take(func, types, args, kwargs)
            except WeighbridgeError as error:
                _say_where(error, func, self._where.current())
                raise
            if result is not NotImplemented:
                return result
        for t in types:
            if t not in _ORDINARY and _wraps(t):
                return NotImplemented
        what = overload(func)
        if what.aside or any([t not in _ORDINARY and issubclass(t, FakeTensor) for t in types]):
            return func(*args, **kwargs)
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
            return self._record(func, args, kwargs)
        except WeighbridgeError as error:
            _say_where(error, func, self._where.current())
            raise

    def _record(self, func: Op, args: Any, kwargs: dict[str, Any]) -> Any:
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
        encoded = self._operands(args, what.positions)
        encoded_kwargs = {k: self._encode(kwargs[k], k in what.names) for k in sorted(kwargs)} if kwargs else {}
        tape = self.tape
        self.context.begin(len(tape.nodes))
        self._running = 1
        try:
            out = evaluate(func, args, kwargs, self.context, rule=rule, bound=bound)
        finally:
            self._running = 0
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
        tape.nodes.append(Node(what.name, encoded, encoded_kwargs, outputs, tuple(births), draw, self._path()))
        self.owner.after_operation(self)
        return out

    def _path(self) -> int | None:
        """The present module path as an index into the tape's paths."""
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


def _wraps(kind: type) -> bool:
    """True for tensor subclasses that wrap other tensors; the mode must see the inner operations instead."""
    return (
        issubclass(kind, Tensor)
        and not issubclass(kind, FakeTensor)
        and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__
    )


def _end(t: Tensor) -> int:
    """Byte of the storage after a tensor's last element."""
    if t.numel() == 0:
        return int(t.storage_offset()) * t.itemsize
    return (
        int(t.storage_offset()) + 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
    ) * t.itemsize


_OURS = (str(Path(torch.__file__).parent), str(Path(__file__).parent), str(Path(rounding.__file__).parents[1]))


def _say_where(error: WeighbridgeError, func: Op, module: str | None) -> None:
    """Adds the user's line to an error, and the module, which may be a library's; once."""
    if "line" not in error.details:
        error.details["line"] = _user_line()
        error.details.setdefault("operation", str(func))
        where = "" if module is None else f"in {module}, "
        error.details.update({} if module is None else {"module": module})
        error.args = (f"{error.message} [{where}at {error.details['line']}]",)
        error.message = error.args[0]


def _user_line() -> str:
    """The innermost line of the program outside installed packages; failing that, outside PyTorch and the Recorder."""
    frames = [f for f in reversed(traceback.extract_stack()) if not f.filename.startswith((*_OURS, "<"))]
    user = next((f for f in frames if "site-packages" not in f.filename), frames[0] if frames else None)
    return f"{user.filename}:{user.lineno}: {user.line}" if user else "unknown line (called from an autograd thread)"
