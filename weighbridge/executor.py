"""Runs tapes: one operation after another, under an allow-list, following a rounding log.

The executor holds storages by slot and state by name. Before an operation runs for the first time its operands are
checked with PyTorch's meta kernels (shapes and dtypes, without memory), and index tensors are checked for range each
time, because some ATen kernels crash on ordinary arguments. The allow-list is the rule table. It is no sandbox: run the
executor in the process that `replay` makes for it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from weighbridge.digests import Leaf, bytes_digest, region_digest
from weighbridge.errors import LogError, RefusedOperationError, TapeError, UnknownOperationError, WeighbridgeError
from weighbridge.numerics import decompositions, narrow, rounding
from weighbridge.numerics.evaluate import Context, bind, evaluate
from weighbridge.numerics.policy import STRICT, Policy
from weighbridge.numerics.randomness import Draw
from weighbridge.numerics.rounding import Bound
from weighbridge.numerics.roundlog import OpEntries
from weighbridge.numerics.rules import Kind, Op, base_name, find, mutated
from weighbridge.state import Checkpoint, state_digest
from weighbridge.steps import StepRecord
from weighbridge.tape import DTYPES, MEMORY_FORMATS, Node, Ref, Tape
from weighbridge.tensorfile import raw_bytes

Tensor = torch.Tensor


class DifferenceError(WeighbridgeError):
    """The replay differs from the transcript; `details` say where."""

    code = "replay.mismatch"


@dataclass(slots=True)
class Following(Context):
    """The context of a replayed step: follows the log and compares every checksum."""

    record: StepRecord
    entries: dict[tuple[int, int], OpEntries]
    seed: int
    policy: Policy = STRICT
    stream: int = 0
    op: int = 0
    operation: str = ""
    node: Node | None = None
    followed: int = 0
    rounded_elements: int = 0
    checked: int = 0
    hosts: int = 0
    rng: dict[int, int] = field(default_factory=dict)
    _expected: Any = None
    _output: int = 0

    def __post_init__(self) -> None:
        self._expected = np.frombuffer(self.record.checksums, dtype="<u8")

    def begin(self, op: int, node: Node) -> None:
        """Starts operation number `op`."""
        self.op, self.node, self.operation, self._output = op, node, node.op, 0

    def _difference(self, expected: object, found: object, **details: Any) -> DifferenceError:
        return DifferenceError(
            f"step {self.record.step}, operation {self.op} ({self.operation}): expected {expected}, found {found}",
            step=self.record.step,
            op=self.op,
            operation=self.operation,
            expected=str(expected),
            found=str(found),
            **details,
        )

    def _next_checksum(self) -> int:
        if self.checked >= self._expected.size:
            raise self._difference("no further result", "one more rounded result")
        self.checked += 1
        return int(self._expected[self.checked - 1])

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """See `Context.rounded`."""
        entries = self.entries.pop((self.op, self._output), None)
        self._output += 1
        self.rounded_elements += wide.numel()
        wanted = self._next_checksum()
        small = dtype in narrow.NARROW
        result = narrow.follow(wide, bound, dtype, entries) if small else rounding.follow(wide, bound, entries)
        self.followed += result.followed
        if result.checksum != wanted:
            explainable = narrow.explainable if small else rounding.explainable
            if not result.inadmissible and explainable(wide, bound, entries, result.out, wanted, result.checksum):
                raise self._difference(f"{wanted:016x}", f"{result.checksum:016x}", inconclusive=True)
            raise self._difference(
                f"{wanted:016x}",
                f"{result.checksum:016x}",
                inadmissible=result.inadmissible,
                entries=0 if entries is None else len(entries.positions),
            )
        if result.inadmissible:
            raise LogError(
                f"step {self.record.step}, operation {self.op} ({self.operation}): the log asks for "
                f"{result.inadmissible} outcomes that no conforming device could have rounded to",
                code="replay.rounding.inadmissible", step=self.record.step, op=self.op, operation=self.operation,
            )  # fmt: skip
        return result.out

    def exact(self, bits: Tensor) -> None:
        """See `Context.exact`."""
        wanted, found = self._next_checksum(), (narrow if bits.dtype in narrow.NARROW else rounding).canonicalise(bits)
        if wanted != found:
            raise self._difference(f"{wanted:016x}", f"{found:016x}")

    def draw(self, generator: torch.Generator | None, device: torch.device) -> Draw:
        """See `Context.draw`: the tape says which generator and how far it was."""
        if self.node is None or self.node.draw is None:
            raise TapeError(f"operation {self.op} ({self.operation}) draws without saying from which generator")
        number, offset = self.node.draw
        span = self.record.rng.get(str(number))
        if span is None:
            raise TapeError(f"operation {self.op} draws from generator {number}, which the step record does not name")
        if offset and number not in self.rng:
            raise TapeError(
                f"operation {self.op} draws first from generator {number}, yet not where its counter begins"
            )
        counter = (span[0] + offset) & 0xFFFFFFFFFFFFFFFF
        self.rng[number] = (counter + 1) & 0xFFFFFFFFFFFFFFFF
        return Draw(self.seed, self.stream + (number << 12), counter)

    def host(self, value: bool | int | float) -> bool | int | float:
        """See `Context.host`."""
        if self.hosts >= len(self.record.host):
            raise self._difference("no further host value", repr(value))
        wanted = self.record.host[self.hosts]
        self.hosts += 1
        same = wanted == value or (
            isinstance(wanted, float) and isinstance(value, float) and wanted != wanted and value != value
        )
        if type(wanted) is not type(value) or not same:
            raise self._difference(repr(wanted), repr(value))
        return value


class Executor:
    """Holds a state and runs steps on it.

    Attributes:
        state: Storages by name, uint8 tensors on the device.
        live: Storages that exist at the present position, by slot or state name: what a snapshot taken here would have
            seen.
        followed: Roundings that the log changed so far.
        rounded: Elements rounded so far.
    """

    def __init__(self, device: str | torch.device, seed: int, max_bytes: int, policy: Policy = STRICT) -> None:
        """Prepares an empty state.

        Args:
            device: Where operations run.
            seed: The run's seed, from the draft.
            max_bytes: Most bytes that the storages of a tape may have together.
            policy: Which bounds the run was recorded with.
        """
        self.device = torch.device(device)
        self.state: dict[str, Tensor] = {}
        self.rng: dict[str, int] = {}
        self.live: dict[int, Tensor] = {}
        self.followed = 0
        self.rounded = 0
        self._lingering: list[Tensor] = []
        self._seed, self._max_bytes, self._policy = seed, max_bytes, policy
        self._checked: set[tuple[bytes, int]] = set()

    def load(self, checkpoint: Checkpoint) -> None:
        """Takes over a checkpoint's state."""
        self.state = {name: data.to(self.device, copy=True) for name, data in checkpoint.storages.items()}
        self.rng = dict(checkpoint.rng)

    def state_digest(self) -> bytes:
        """Digest of the state as a step record carries it (32 bytes)."""
        regions = {}
        for name, data in self.state.items():
            raw = data.cpu().numpy()
            regions[name] = (raw.size, bytes_digest(raw.data))
        return state_digest(regions, self.rng)

    def leaves(self, salt: bytes) -> list[Leaf]:
        """The live storages as (bytes, keyed digest), as a snapshot taken at this position would list them."""
        seen: dict[int, Tensor] = {}
        for data in [*self.live.values(), *self.state.values(), *self._lingering]:
            seen.setdefault(data.untyped_storage().data_ptr() or id(data), data)
        return [(d.numel(), region_digest(d.cpu().numpy().data, salt)) for d in seen.values() if d.numel()]

    def run(
        self, tape: Tape, tape_digest: bytes, record: StepRecord, entries: list[OpEntries], batch: Mapping[str, Tensor],
        free: Mapping[str, Tensor], stop: int | None = None,
    ) -> Following:  # fmt: skip
        """Executes one step.

        Args:
            tape: The program.
            tape_digest: Its content address; operand checks are remembered per tape.
            record: The step's record.
            entries: Its rounding log.
            batch: Batch tensors by path.
            free: Free tensors by name.
            stop: Stop when so many operations are complete, leaving `live` as it is then.

        Returns:
            The context, with counts.

        Raises:
            DifferenceError: At the first operation whose result differs.
            TapeError: If the tape does not fit its record or names a forbidden operation.
            LogError: If a log entry is inadmissible.
        """
        if len(record.values) != tape.values or len(record.host) != tape.hosts:
            raise TapeError(f"step {record.step}: the record has {len(record.values)} values, its tape {tape.values}")
        if tape.largest_footprint() > self._max_bytes:
            raise TapeError(
                f"step {record.step} needs {tape.largest_footprint()} bytes, more than the limit of {self._max_bytes}; "
                "raise the memory limit if this machine has them",
                code="tape.too_large",
            )
        context = Following(record, {(e.op, e.output): e for e in entries}, self._seed, self._policy)
        slots: dict[int, Tensor] = {}
        names: dict[int, str] = {}
        self.drop(tape, record.step)
        self._lingering = []  # whoever begins a step has let go of the batch before
        entered = self._enter(tape, record, batch, free, slots, names)
        frees: dict[int, list[int]] = {}
        for at, slot in tape.frees:
            frees.setdefault(at, []).append(slot)
        self.live = dict(slots)
        last = len(tape.nodes) if stop is None else stop
        if last > len(tape.nodes):
            raise TapeError(f"step {record.step} has {len(tape.nodes)} operations; position {last} does not exist")
        operands = _Operands(self.device, tape, slots, record.values)
        for index in range(last):
            for slot in frees.get(index, ()):
                self._release(slot, slots, names, operands)
            node = tape.nodes[index]
            context.begin(index, node)
            first = (tape_digest, index) not in self._checked
            try:
                self._operation(node, tape, slots, operands, context, first)
            except (RefusedOperationError, UnknownOperationError) as error:
                raise TapeError(
                    f"step {record.step}, operation {index}: {error.message}", code="tape.forbidden", operation=node.op
                ) from None
            self._checked.add((tape_digest, index))
        self.followed += context.followed
        self.rounded += context.rounded_elements
        if stop is not None and stop <= len(tape.nodes) and last == stop:
            self.live = dict(slots)
            return context
        self._finish(tape, record, context, slots, names, frees, operands, entered)
        return context

    def drop(self, tape: Tape, step: int) -> None:
        """Lets go of the state that died before a step began; `run` does so by itself."""
        for item in tape.inputs:
            if item.origin == "dropped":
                name = absolute_name(item.name, step)
                if name not in self.state or self.state.pop(name).numel() != item.bytes:
                    raise TapeError(f"step {step} drops the state {name!r}, which does not exist then")

    # -- the parts of a step -------------------------------------------------------------------------------------------

    def _enter(
        self, tape: Tape, record: StepRecord, batch: Mapping[str, Tensor], free: Mapping[str, Tensor],
        slots: dict[int, Tensor], names: dict[int, str],
    ) -> list[Tensor]:  # fmt: skip
        """Binds the storages that come from outside; returns those of the batch."""
        views: dict[int, list[tuple[str, Ref]]] = {}
        for name, ref in tape.batch_views:
            views.setdefault(ref[0], []).append((name, ref))
        entered, read = [], set[str]()
        for item in tape.inputs:
            if item.origin == "dropped":
                continue
            if item.origin == "state":
                name = absolute_name(item.name, record.step)
                data = self.state.get(name)
                if data is None or name in read:
                    raise TapeError(
                        f"step {record.step} reads the state {name!r}, which does not exist or is read twice"
                    )
                names[item.slot] = name
                read.add(name)
            elif item.origin == "free":
                if item.name not in free:
                    raise TapeError(f"step {record.step} has no free tensor {item.name!r}")
                data = free[item.name].reshape(-1).view(torch.uint8).to(self.device, copy=True)
            else:
                data = torch.zeros(item.bytes, dtype=torch.uint8, device=self.device)
                _fill(data, views.get(item.slot, ()), batch, record.step)
                entered.append(data)
            if data.numel() != item.bytes:
                raise TapeError(
                    f"step {record.step}: slot {item.slot} should have {item.bytes} bytes and has {data.numel()}"
                )
            slots[item.slot] = data
        return entered

    def _release(self, slot: int, slots: dict[int, Tensor], names: dict[int, str], operands: _Operands) -> None:
        slots.pop(slot, None)
        operands.forget(slot)
        name = names.pop(slot, None)
        if name is not None:
            self.state.pop(name, None)

    def _operation(
        self, node: Node, tape: Tape, slots: dict[int, Tensor], operands: _Operands, context: Following, first: bool
    ) -> None:
        op = resolve(node.op)
        args = [operands.decode(a) for a in node.args]
        kwargs = {k: operands.decode(v) for k, v in node.kwargs.items()}
        try:
            bound = bind(op, args, kwargs)
        except TypeError:
            raise TapeError(f"operation {context.op} ({node.op}) has operands that do not fit it") from None
        if len(args) > len(op._schema.arguments) or set(kwargs) - {a.name for a in op._schema.arguments}:
            raise TapeError(f"operation {context.op} ({node.op}) has operands that do not fit it")
        rule = find(op, bound)
        refs = [None if o is None else tape.refs[o] for o in node.outputs]
        if rule.kind is Kind.VIEW:
            # A view computes nothing; its geometry was checked against the storage when the tape was decoded.
            source = next((v for v in args if isinstance(v, Tensor)), None)
            if node.births or source is None:
                raise TapeError(f"operation {context.op} ({node.op}) is a view but makes memory")
            return
        if first:
            _check_shapes(op, args, kwargs, node, refs, rule.kind)
        _check_indices(op, bound)
        strides = [None if ref is None else ref[3] for ref in refs]
        try:
            out = evaluate(
                op, args, kwargs, context, rule=rule, layout=lambda i: strides[i] if i < len(strides) else None
            )
        except WeighbridgeError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            raise TapeError(
                f"operation {context.op} ({node.op}) cannot run: {str(error).splitlines()[0][:200]}"
            ) from None
        returned = list(out) if isinstance(out, (list, tuple)) else [out]
        if len(returned) != len(refs):
            raise TapeError(
                f"operation {context.op} ({node.op}) returned {len(returned)} values; the tape says {len(refs)}"
            )
        births = dict(node.births)
        changed = {id(bound[name]) for name in mutated(op)}
        for value, ref in zip(returned, refs, strict=True):
            if ref is None:
                continue
            if not isinstance(value, Tensor):
                raise TapeError(f"operation {context.op} ({node.op}) returned no tensor where the tape has one")
            if DTYPES[ref[1]] != value.dtype or ref[2] != tuple(value.shape):
                raise TapeError(
                    f"operation {context.op} ({node.op}) made {tuple(value.shape)} {value.dtype}; "
                    f"the tape says {ref[1:3]}"
                )
            if ref[0] in births:
                slots[ref[0]] = _adopt(value, ref, births[ref[0]], self.device)
            elif id(value) not in changed and not _same(value, slots[ref[0]]):
                raise TapeError(f"operation {context.op} ({node.op}) did not return the storage that the tape names")
        if set(births) - set(slots):
            raise TapeError(f"operation {context.op} ({node.op}) did not make a storage that the tape says it makes")

    def _finish(
        self, tape: Tape, record: StepRecord, context: Following, slots: dict[int, Tensor], names: dict[int, str],
        frees: dict[int, list[int]], operands: _Operands, entered: list[Tensor],
    ) -> None:  # fmt: skip
        for slot in frees.get(len(tape.nodes), ()):
            self._release(slot, slots, names, operands)
        if context.checked * 8 != len(record.checksums) or context.hosts != len(record.host):
            raise TapeError(f"step {record.step}: the record has checksums or host values that no operation made")
        if context.entries:
            raise LogError(f"step {record.step}: the rounding log has entries for operations that round nothing")
        for slot, name in tape.survivors:
            name = absolute_name(name, record.step)
            if slot not in slots or slot in names:
                raise TapeError(f"step {record.step}: slot {slot} survives but does not exist or is state already")
            if name in self.state:
                raise TapeError(f"step {record.step}: two storages would be the state {name!r}")
            self.state[name], names[slot] = slots[slot], name
        drawn = {str(number): after for number, after in context.rng.items()}
        if drawn != {number: after for number, (_, after) in record.rng.items()}:
            raise TapeError(f"step {record.step}: the record's counters of randomness are not those after its draws")
        self.rng.update(drawn)
        self._lingering = entered
        self.live = {}


_KEPT = re.compile(r"~(0|[1-9][0-9]{0,8})/(0|[1-9][0-9]{0,17})")


def absolute_name(name: str, step: int) -> str:
    """Resolves `~n/slot`, what was left behind n steps before `step`, to `kept/<step>/<slot>`."""
    if not name.startswith(("~", "kept/")):
        return name
    match = _KEPT.fullmatch(name)
    if match is None or int(match[1]) > step:
        raise TapeError(f"the state name {name[:80]!r} is malformed")
    return f"kept/{step - int(match[1])}/{match[2]}"


def _fill(data: Tensor, views: Sequence[tuple[str, Ref]], batch: Mapping[str, Tensor], step: int) -> None:
    """Puts the batch's tensors where the tape has them in a storage."""
    for name, ref in views:
        source = batch.get(name)
        if source is None or DTYPES[ref[1]] != source.dtype or ref[2] != tuple(source.shape):
            raise TapeError(f"step {step}: the batch has no tensor {name!r} of the shape that the tape expects")
        target = tensor(data, ref)
        for d, (size, stride) in enumerate(zip(ref[2], ref[3], strict=True)):
            if size > 1 and stride == 0:  # an expanded dimension is there once
                target, source = target.narrow(d, 0, 1), source.narrow(d, 0, 1)
        target.copy_(source)
    for name, ref in views:
        if raw_bytes(tensor(data, ref)) != raw_bytes(batch[name]):
            raise TapeError(f"step {step}: the tape lays other parts of the batch over its tensor {name!r}")


def tensor(data: Tensor, ref: Ref) -> Tensor:
    """Returns the tensor that a reference names on a storage (a uint8 tensor that covers it)."""
    _, dtype, size, stride, offset = ref
    return torch.empty(0, dtype=DTYPES[dtype], device=data.device).set_(data.untyped_storage(), offset, size, stride)


def resolve(name: str) -> Op:
    """Returns the ATen overload of a node, if it may stand on a tape.

    Raises:
        TapeError: With code `tape.forbidden`, if there is no such overload or it has no rule here.
    """
    base, _, overload = name.partition(".")
    packet = getattr(torch.ops.aten, base, None) if base.replace("_", "a").isalnum() else None
    op = getattr(packet, overload, None) if packet is not None and overload.replace("_", "a").isalnum() else None
    if not isinstance(op, torch._ops.OpOverload) or (decompositions.find(op) is not None and base not in _CONDITIONAL):
        raise TapeError(
            f"the tape names the operation {name[:80]!r}, which is not allowed",
            code="tape.forbidden",
            operation=name[:80],
        )
    try:
        find(op, {})
    except UnknownOperationError:
        raise TapeError(
            f"the tape names the operation {name[:80]!r}, which is not allowed",
            code="tape.forbidden",
            operation=name[:80],
        ) from None
    return op


_CONDITIONAL = frozenset({"add", "add_", "sub", "sub_", "rsub", "pow"})
"""Decomposed for some operands only, and ruled for the others."""


class _Operands:
    """Decodes operands, keeping the tensors of live storages."""

    def __init__(self, device: torch.device, tape: Tape, slots: dict[int, Tensor], values: list[Any]) -> None:
        self._device, self._tape, self._slots, self._values = device, tape, slots, values
        self._cache: dict[int, Tensor] = {}
        self._by_slot: dict[int, list[int]] = {}

    def forget(self, slot: int) -> None:
        for index in self._by_slot.pop(slot, ()):
            self._cache.pop(index, None)

    def _tensor(self, index: int) -> Tensor:
        cached = self._cache.get(index)
        if cached is None:
            ref = self._tape.refs[index]
            cached = self._cache[index] = tensor(self._slots[ref[0]], ref)
            self._by_slot.setdefault(ref[0], []).append(index)
        return cached

    def decode(self, value: Any) -> Any:
        if not isinstance(value, tuple):
            return value
        match value:
            case ("t", index) if type(index) is int:
                return self._tensor(index)
            case ("v", index) if type(index) is int and 0 <= index < len(self._values):
                return self._values[index]
            case ("l", tuple(items)):
                return [self.decode(v) for v in items]
            case ("d", str(name)) if name in DTYPES:
                return DTYPES[name]
            case ("s", str(text)):
                return text
            case ("m", str(name)) if name in MEMORY_FORMATS:
                return MEMORY_FORMATS[name]
            case ("dev",):
                return self._device
            case ("lay",):
                return torch.strided
        raise TapeError("an operand has an unknown form")


def _adopt(value: Tensor, ref: Ref, size: int, device: torch.device) -> Tensor:
    """Returns the storage of a fresh result, laid out exactly as the tape says, as a uint8 tensor."""
    storage = value.untyped_storage()
    if (
        storage.nbytes() == size
        and value.storage_offset() == ref[4]
        and (value.stride() == ref[3] or value.numel() == 0)
    ):
        return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
    data = torch.zeros(size, dtype=torch.uint8, device=device)
    tensor(data, ref).copy_(value)
    return data


def _same(value: Tensor, data: Tensor) -> bool:
    return value.untyped_storage()._cdata == data.untyped_storage()._cdata or value.numel() == 0


def _meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, list):
        return [_meta(v) for v in value]
    return torch.device("meta") if isinstance(value, torch.device) else value


_NO_META = frozenset(
    {"_local_scalar_dense", "equal", "nonzero", "masked_select", "repeat_interleave", "unique_consecutive", "bincount"}
)
"""Operations whose results' shapes depend on values, or that return no tensor."""


def _check_shapes(
    op: Op, args: list[Any], kwargs: dict[str, Any], node: Node, refs: list[Ref | None], kind: Kind
) -> None:
    """Runs the operation on meta tensors, which checks shapes and dtypes without touching memory."""
    name = base_name(op)[0]
    if name in _NO_META or kind in (Kind.RANDOM,):
        return
    try:
        out = op(*[_meta(a) for a in args], **{k: _meta(v) for k, v in kwargs.items()})
    except NotImplementedError:
        return  # no meta kernel: the kernel's own checks and the process limits remain
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        raise TapeError(f"{node.op} cannot be applied to its operands: {str(error).splitlines()[0][:200]}") from None
    returned = list(out) if isinstance(out, (list, tuple)) else [out]
    for value, ref in zip(returned, refs, strict=False):
        if ref is not None and isinstance(value, Tensor) and tuple(value.shape) != ref[2]:
            raise TapeError(f"{node.op} makes {tuple(value.shape)}; the tape says {ref[2]}")


def _check_indices(op: Op, bound: dict[str, Any]) -> None:
    """Checks every index tensor against what it points into."""
    name = base_name(op)[0]
    if name in ("embedding", "embedding_dense_backward"):
        rows = bound["weight"].shape[0] if name == "embedding" else bound["num_weights"]
        _within(name, bound["indices"], 0, rows)
    elif name in ("gather", "scatter", "scatter_add", "index_select", "index_add", "index_copy", "index_fill"):
        base, dim = bound["self"], bound["dim"]
        _within(name, bound["index"], 0, base.shape[dim] if base.dim() else 1)
    elif name in ("index", "index_put", "_unsafe_index"):
        for d, index in enumerate(i for i in bound["indices"]):
            if isinstance(index, Tensor) and index.dtype not in (torch.bool, torch.uint8):
                if d >= bound["self"].dim():
                    raise TapeError(f"{name} has more indices than dimensions")
                _within(name, index, -bound["self"].shape[d], bound["self"].shape[d])
    elif name.startswith("nll_loss"):
        x = bound["self"]
        target = bound["target"]
        kept = target[target != bound["ignore_index"]]
        _within(name, kept, 0, x.shape[-1 if x.dim() == 1 else 1])
    elif name in ("max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward"):
        _within(name, bound["indices"], 0, math.prod(bound["self"].shape[-2 if "2d" in name else -3 :]))
    elif name in ("take", "put"):
        _within(name, bound["index"], -bound["self"].numel(), bound["self"].numel())
    elif name == "bincount":
        _within(name, bound["self"], 0, 1 << 24)
    elif name == "repeat_interleave":
        _within(name, bound["repeats"], 0, 1 << 24)


def _within(name: str, index: Tensor, low: int, high: int) -> None:
    if index.numel() and (int(index.min()) < low or int(index.max()) >= high):
        raise TapeError(f"{name} has an index outside {low}..{high - 1}", code="tape.out_of_bounds")
