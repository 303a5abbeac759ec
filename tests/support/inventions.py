"""Tapes of one operation on odd operands, as a hostile Prover might write them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from support.mutations import NUMBERS, SCALARS, Case, Choices, overloads
from torch import Tensor

from weighbridge.numerics.rounding import rounding_log
from weighbridge.numerics.rule_table import RULES, Kind
from weighbridge.numerics.schemas import Op
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import DTYPE_NAMES, DTYPES, MEMORY_FORMATS, Input, Node, Ref, Tape


@dataclass
class Bench:
    """Builds a tape of one operation."""

    tape: Tape
    free: dict[str, Tensor]
    values: list[Any]

    def tensor(self, value: Tensor) -> tuple[str, int]:
        """Puts a tensor on the tape as a free one, laid out as it is."""
        slot = len(self.tape.inputs)
        spans = [(n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)]
        covered = 1 + sum(spans) if value.numel() else 0
        data = torch.empty(0, dtype=value.dtype).set_(value.untyped_storage(), value.storage_offset(), (covered,), (1,))
        self.free[f"f{slot}"] = data.clone().view(torch.uint8) if covered else torch.zeros(0, dtype=torch.uint8)
        self.tape.inputs.append(Input(slot, covered * value.itemsize, "free", f"f{slot}"))
        self.tape.refs.append((slot, DTYPE_NAMES[value.dtype], tuple(value.shape), value.stride(), 0))
        return ("t", len(self.tape.refs) - 1)

    def encode(self, value: Any, scalar: bool) -> Any:
        """Encodes an operand."""
        if isinstance(value, Tensor):
            return self.tensor(value)
        if isinstance(value, (list, tuple)):
            return ("l", tuple(self.encode(v, scalar) for v in value))
        if isinstance(value, float) or (scalar and isinstance(value, (bool, int))):
            self.values.append(value)
            return ("v", len(self.values) - 1)
        if isinstance(value, str):
            return ("s", value)
        if isinstance(value, torch.dtype):
            return ("d", DTYPE_NAMES.get(value, "f32"))
        if isinstance(value, torch.device):
            return ("dev",)
        if isinstance(value, torch.memory_format):
            return ("m", next((k for k, v in MEMORY_FORMATS.items() if v is value), "contiguous"))
        return value if isinstance(value, (bool, int)) else None


def _meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return [_meta(v) for v in value]
    return torch.device("meta") if isinstance(value, torch.device) else value


def single(op: Op, args: Sequence[Any], kwargs: dict[str, Any], outputs: Sequence[Tensor | None] | None) -> Case:
    """A tape of one operation; its outputs are those of the meta kernel unless given (shapes that it would have)."""
    bench = Bench(Tape(), {}, [])
    kinds = ("number", "Optional[number]", "Tensor", "Optional[Tensor]")
    scalars = [str(a.type) in kinds for a in op._schema.arguments]
    encoded = tuple(bench.encode(a, i < len(scalars) and scalars[i]) for i, a in enumerate(args))
    encoded_kwargs = {k: bench.encode(v, scalar=not isinstance(v, bool)) for k, v in sorted(kwargs.items())}
    if outputs is None:
        extra = {"device": torch.device("meta")} if any(a.name == "device" for a in op._schema.arguments) else {}
        try:
            out = op(*[_meta(a) for a in args], **{**{k: _meta(v) for k, v in kwargs.items()}, **extra})
        except Exception:
            out = torch.empty(3, device="meta")
        outputs = [t if isinstance(t, Tensor) else None for t in (out if isinstance(out, (list, tuple)) else [out])]
    mutable = [a for a, s in zip(encoded, op._schema.arguments, strict=False) if s.alias_info and s.alias_info.is_write]
    results: list[int | None] = []
    births: list[tuple[int, int]] = []
    for number, value in enumerate(outputs):
        if value is None or value.dtype not in DTYPE_NAMES:
            results.append(None)
        elif number < len(mutable) and mutable[number][0] == "t":
            results.append(mutable[number][1])
        else:
            slot = 1000 + number
            stride = tuple(max(s, 0) for s in value.stride())
            reference: Ref = (slot, DTYPE_NAMES[value.dtype], tuple(value.shape), stride, 0)
            size = value.itemsize * (1 + sum((n - 1) * s for n, s in zip(value.shape, stride, strict=True)))
            births.append((slot, size if value.numel() else 0))
            bench.tape.refs.append(reference)
            results.append(len(bench.tape.refs) - 1)
    random = RULES.get(f"{op._schema.name[6:].rstrip('_')}.{op._overloadname or 'default'}")
    draw = (0, 0) if random is not None and random.kind is Kind.RANDOM else None
    name = f"{op._schema.name.partition('::')[2]}.{op._overloadname or 'default'}"
    bench.tape.nodes.append(Node(name, encoded, encoded_kwargs, tuple(results), tuple(births), draw))
    bench.tape.values = len(bench.values)
    record = StepRecord(
        step=1, kind="step", tape=bytes(32), values=bench.values, host=[], rng={"0": (5, 6)} if draw else {},
        state=bytes(32), checksums=bytes(8 * 8), rounding=bytes(32), batch=bytes(32), records=[], record_digests=[],
        free=sorted(bench.free), snapshots=[], rounded=0, logged=0,
    )  # fmt: skip
    return Case(bench.tape, record, rounding_log.encode([]), {}, bench.free, None, 1)


SHAPES = (
    (),
    (0,),
    (1,),
    (3,),
    (4,),
    (2, 3),
    (3, 3),
    (3, 0),
    (2, 3, 4),
    (1, 3, 4),
    (2, 3, 4, 4),
    (2, 4, 5, 5),
    (2, 2) + (3,) * 3,
)


def odd_tensor(pick: Choices, like: Tensor | None = None) -> Tensor:
    """A small tensor: like another one up to a change, or of any shape and type; sometimes expanded or transposed."""
    shape = list(pick.of(SHAPES) if like is None else like.shape)
    dtype = (like.dtype if like is not None else torch.float32) if not pick.odds(4) else pick.of(list(DTYPES.values()))
    if shape and pick.odds(3):
        shape[pick.below(len(shape))] = pick.below(7)
    if pick.odds(8):
        shape = [*shape, 1 + pick.below(4)] if pick.odds(2) else shape[1:]
    count = math.prod(shape)
    seed = torch.Generator().manual_seed(pick.below(100))
    if dtype.is_floating_point:
        x = torch.randn(count, generator=seed).to(dtype)
        if pick.odds(8) and count:
            x[pick.below(count)] = pick.of([float("nan"), float("inf"), -1e38])
    else:
        x = torch.randint(0, 3, (count,), generator=seed).to(dtype)
        if pick.odds(6) and count and dtype != torch.bool:
            limits = torch.iinfo(dtype)
            x[pick.below(count)] = pick.of([-1, 5, 100, limits.max, limits.min] if limits.min else [5, 100, limits.max])
    x = x.reshape(shape)
    if len(shape) > 1 and pick.odds(6):
        x = x.transpose(0, -1).contiguous().transpose(0, -1)
    if shape and pick.odds(12):
        x = x[..., :1].expand(shape)
    return x


def odd_operand(kind: str, name: str, pick: Choices, like: Tensor | None) -> Any:
    """An operand of a schema type."""
    if kind.startswith("Optional[") and pick.odds(3):
        return None
    kind = kind.removeprefix("Optional[").removesuffix("]") if kind.startswith("Optional[") else kind
    match kind:
        case "Tensor":
            x = odd_tensor(pick, like if like is not None and pick.below(3) else None)
            integers = any(part in name for part in ("ind", "target", "offsets", "repeats", "mask"))
            return torch.randint(0, 3, x.shape, dtype=torch.int64) if integers and pick.below(5) else x
        case "List[Tensor]" | "List[Optional[Tensor]]":
            if "indices" in name:
                return [torch.randint(0, 3, pick.of([(2,), (1, 2), ()])) for _ in range(1 + pick.below(2))]
            return [odd_tensor(pick, like) for _ in range(1 + pick.below(3))]
        case "int":
            return pick.of(NUMBERS) if pick.odds(6) else pick.below(4) - pick.below(2)
        case "List[int]":
            return [pick.of(NUMBERS) if pick.odds(12) else pick.below(4) for _ in range(pick.below(4))]
        case "float" | "number":
            return pick.of(SCALARS)
        case "bool":
            return bool(pick.below(2))
        case "List[bool]":
            return [bool(pick.below(2)) for _ in range(3)]
        case "str":
            return pick.of(["mean", "sum", "none", "tanh", "moon", ""])
        case "ScalarType":
            return pick.of(list(DTYPES.values()))
        case "Device":
            return torch.device("cpu")
        case "MemoryFormat":
            return pick.of(list(MEMORY_FORMATS.values()))
    return None


def invented(pick: Choices) -> Case:
    """Any allowed operation on operands of the right kinds and of any shape."""
    name, _, overload = pick.of(overloads()).partition(".")
    op = getattr(getattr(torch.ops.aten, name), overload)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    like: Tensor | None = None
    for argument in op._schema.arguments:
        if argument.default_value is not None and pick.odds(2):
            value = argument.default_value
        else:
            value = odd_operand(str(argument.real_type), argument.name, pick, like)
        if isinstance(value, Tensor) and like is None:
            like = value
        if argument.kwarg_only:
            if value is not None:
                kwargs[argument.name] = value
        else:
            args.append(value)
    return single(op, args, kwargs, None)


def bent(op: Op, args: Sequence[Any], kwargs: dict[str, Any], pick: Choices) -> Case:
    """An honest call with some of its operands bent; the tape claims the shapes that the honest call would make."""
    bent_args = list(args)
    for _ in range(1 + pick.below(2)):
        at = pick.below(len(bent_args))
        value, kind = bent_args[at], str(op._schema.arguments[at].real_type)
        if isinstance(value, Tensor) and pick.below(5):
            value = odd_tensor(pick, value)
        elif isinstance(value, (list, tuple)) and value and all(type(v) is int for v in value):
            value = list(value)
            value[pick.below(len(value))] = pick.of(NUMBERS) if pick.odds(3) else pick.below(5)
        else:
            value = odd_operand(kind, op._schema.arguments[at].name, pick, None)
        bent_args[at] = value
    honest = op(*[_meta(a) for a in args], **{k: _meta(v) for k, v in kwargs.items()}) if pick.odds(3) else None
    outputs = None if honest is None else list(honest) if isinstance(honest, (list, tuple)) else [honest]
    return single(op, bent_args, kwargs, outputs)
