"""One call as a step of its own: its tree as a party makes it, and what a referee says of a chunk of its result."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from support.operator_examples import Example

from weighbridge.core.digests import bytes_digest
from weighbridge.execution.dispute import judgement
from weighbridge.execution.dispute.asking import Claim, Judgement, Traced
from weighbridge.execution.dispute.narrowing import Narrowed, narrowed
from weighbridge.execution.dispute.tracing import Tracer
from weighbridge.numerics.conformance.bound_policy import STRICT, Policy
from weighbridge.numerics.context import Context
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.random.variates import Draw
from weighbridge.numerics.rounding import contested, formats, narrow, rounding_log
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.rounding_log import OpEntries
from weighbridge.numerics.schemas import Op
from weighbridge.program.operands import Operands
from weighbridge.transcript.data import batch_digest
from weighbridge.transcript.state import state_digest
from weighbridge.transcript.steps import Scalar, StepRecord
from weighbridge.transcript.tape import DTYPE_NAMES, Input, Node, Ref, Tape

Tensor = torch.Tensor
_CPU = torch.device("cpu")


class _Recording(Context):
    """Writes the log and the checksums."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.entries: list[OpEntries] = []
        self.checksums: list[int] = []
        self.elements = self.roundings = 0

    def rounded(self, wide: Tensor, bound: Bound, dtype: torch.dtype) -> Tensor:
        """See `Context.rounded`."""
        made = (
            narrow.record(wide, bound, dtype, 0, self.roundings)
            if dtype in formats.NARROW
            else contested.record(wide, bound, 0, self.roundings)
        )
        self.roundings += 1
        self.elements += wide.numel()
        self.checksums.append(made.checksum)
        self.entries += [] if made.entries is None else [made.entries]
        return made.out

    def exact(self, bits: Tensor, checksum: int | None = None) -> None:
        """See `Context.exact`."""
        canonicalise = (narrow if bits.dtype in formats.NARROW else contested).canonicalise
        self.checksums.append(canonicalise(bits) if checksum is None else checksum)

    def draw(self, generator: torch.Generator | None, device: torch.device) -> Draw:
        """See `Context.draw`."""
        raise AssertionError("nothing is drawn")

    def host(self, value: bool | int | float) -> bool | int | float:
        """See `Context.host`."""
        raise AssertionError("nothing is read")


@dataclass
class _Operands:
    """Encodes operands for a tape; tensors on one storage share a slot."""

    tape: Tape = field(default_factory=Tape)
    values: list[Scalar] = field(default_factory=list)
    memory: list[Tensor] = field(default_factory=list)
    _slots: dict[int, int] = field(default_factory=dict)

    def encode(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return ("t", self.named(value, self._slot(value)))
        if isinstance(value, float):
            self.values.append(value)
            return ("v", len(self.values) - 1)
        if isinstance(value, (list, tuple)):
            return ("l", tuple(self.encode(each) for each in value))
        if isinstance(value, str):
            return ("s", value)
        return ("d", DTYPE_NAMES[value]) if isinstance(value, torch.dtype) else value

    def _slot(self, value: Tensor) -> int:
        key = value.untyped_storage()._cdata
        if key not in self._slots:
            self._slots[key] = len(self.memory)
            self.memory.append(torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage()).clone())
            slot = self._slots[key]
            self.tape.inputs.append(Input(slot, self.memory[-1].numel(), "free", f"x{slot}"))
        return self._slots[key]

    def named(self, value: Tensor, slot: int) -> int:
        ref: Ref = (slot, DTYPE_NAMES[value.dtype], tuple(value.shape), value.stride(), value.storage_offset())
        if ref not in self.tape.refs:
            self.tape.refs.append(ref)
        return self.tape.refs.index(ref)


class SingleStep:
    """A step that makes one call.

    Attributes:
        tape: Its program.
        record: Its record.
        log: Its rounding log, encoded.
        memory: Storages before the call by slot (uint8).
    """

    def __init__(self, example: Example, policy: Policy = STRICT) -> None:
        """Records a call.

        Args:
            example: The call.
            policy: Bounds of the run.
        """
        self._policy, given, op = policy, _Operands(), example.op
        args = tuple(given.encode(each) for each in example.args)
        kwargs = {name: given.encode(each) for name, each in example.kwargs.items()}
        slots = {slot: each.clone() for slot, each in enumerate(given.memory)}
        there, context = Operands(_CPU, given.tape, slots, given.values), _Recording(policy)
        with torch.backends.mkldnn.flags(enabled=False):
            named = {name: there.decode(each) for name, each in kwargs.items()}
            out = evaluate(op, [there.decode(each) for each in args], named, context)
        outputs, births = list[int | None](), list[tuple[int, int]]()
        for value in out if isinstance(out, (list, tuple)) else [out]:
            if value is None:
                outputs.append(None)
                continue
            storage = value.untyped_storage()
            slot = next((s for s, data in slots.items() if data.untyped_storage()._cdata == storage._cdata), None)
            if slot is None:
                slot = len(slots) + len(births)
                births.append((slot, storage.nbytes()))
            outputs.append(given.named(value, slot))
        given.tape.nodes.append(Node(_name(op), args, kwargs, tuple(outputs), tuple(births)))
        given.tape.values = len(given.values)
        given.tape.frees = [(1, slot) for slot in range(len(slots) + len(births))]
        self._encoded = given.tape.encode()
        self.tape, self.log = Tape.decode(self._encoded), rounding_log.encode(context.entries)
        self.memory, names = given.memory, [item.name for item in given.tape.inputs]
        self._undeclared, self._state = dict(zip(names, given.memory, strict=True)), state_digest({}, {})
        self.record = StepRecord(
            step=1, kind="step", tape=bytes_digest(self._encoded), values=given.values, host=[], rng={},
            state=self._state, checksums=b"".join(each.to_bytes(8, "little") for each in context.checksums),
            rounding=bytes_digest(self.log), batch=batch_digest({}, self._undeclared), records=[], record_digests=[],
            free=sorted(names), snapshots=[], rounded=context.elements,
            logged=sum(len(each.positions) for each in context.entries),
        )  # fmt: skip

    def narrowed(self) -> Narrowed | None:
        """Returns the call as it is executed in part; None if it is executed whole."""
        sizes = {item.slot: item.bytes for item in self.tape.inputs}
        return narrowed(self.tape, 0, list(self.record.values), self._policy, sizes)

    def told(self, part: int | None = None) -> Traced:
        """Returns the tree as an honest party makes it, with an opening of the call, or of one chunk of its result."""
        tracer = self._tracer()
        with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
            tracer.trace(self.tape, self.record, self.log, {}, self._undeclared, self._state, place=1, part=part)
        return Traced(
            terms=b"", tape=self._encoded, state=self._state, record=self.record.to_cbor(),
            log=bytes_digest(self.log), leaves=tuple(leaf.digest() for leaf in tracer.tree), parted=tracer.parted,
            opening=None if tracer.opening is None else tracer.opening.to_cbor(), seconds=0.0, leaf=tracer.shown,
            parts=tracer.parts,
        )  # fmt: skip

    def judged(self, told: Traced, part: int | None = None, **changes: bytes) -> Judgement:
        """Judges the claim that the record is what follows, with other bytes in places."""
        parts = {"parts": told.parts, "shown": told.leaf} if part is not None else {}
        claim = Claim(
            terms=b"", tape=told.tape, state=told.state, record=told.record, log=told.log, own=True, count=3, index=1,
            leaf=told.leaves[1], previous=told.leaves[0], first=told.leaves[0], part=part,
        )  # fmt: skip
        with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
            return judgement.judge(replace(claim, **(parts | changes)), told.opening or b"", self._tracer())

    def _tracer(self) -> Tracer:
        return Tracer("cpu", 0, 1 << 30, self._policy)


def _name(op: Op) -> str:
    return f"{op._schema.name.partition('::')[2]}.{op._overloadname}"
