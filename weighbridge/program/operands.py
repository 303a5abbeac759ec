"""From the data on a tape to what an operation is called with, checked before it is.

An allow-list of operations is not enough: some ATen kernels crash on ordinary arguments. So operands are tried on meta
tensors first (shapes and dtypes, without memory), and index tensors are checked against what they point into.
"""

from __future__ import annotations

import math
import re
from typing import Any

import torch

from weighbridge.core.errors import TapeError, UnknownOperationError
from weighbridge.numerics.overload_cache import per_name, per_op
from weighbridge.numerics.random.variates import drawn_shape
from weighbridge.numerics.rewrites import decompositions
from weighbridge.numerics.rule_table import RULES, Kind, base_name, find
from weighbridge.numerics.schemas import Op, bind
from weighbridge.transcript.tape import DTYPES, MEMORY_FORMATS, Node, Ref, Tape

Tensor = torch.Tensor


def tensor(data: Tensor, ref: Ref) -> Tensor:
    """Returns the tensor that a reference names on a storage (a uint8 tensor that covers it)."""
    _, dtype, size, stride, offset = ref
    empty = torch.empty(0, dtype=DTYPES[dtype], device=data.device)
    try:
        return empty.set_(data.untyped_storage(), offset, size, stride)
    except RuntimeError as error:  # nothing, of a size that overflows
        raise unfit("a reference", error) from None


@per_name
def resolve(name: str) -> Op:
    """Returns the overload of a node, if it may stand on a tape.

    Raises:
        TapeError: With code `tape.forbidden`, if there is no such overload or it has no rule here.
    """
    base, _, overload = name.partition(".")
    space: Any = torch.ops.aten
    if "::" in base and name in RULES:  # looking up any other would make a namespace of what the tape says
        library, _, base = base.partition("::")
        space = getattr(torch.ops, library)
    packet = getattr(space, base, None) if base.replace("_", "a").isalnum() else None
    named = packet is not None and overload.replace("_", "a").isalnum()
    try:
        op = getattr(packet, overload, None) if named else None
        replaced = isinstance(op, torch._ops.OpOverload) and decompositions.find(op) is not None
    except RuntimeError:  # PyTorch lists a few overloads that it does not have, such as mul.left_t
        op, replaced = None, True
    if not isinstance(op, torch._ops.OpOverload) or (replaced and base not in decompositions.CONDITIONAL):
        raise TapeError(
            f"the tape names the operation {name[:80]!r}, which is not allowed",
            code="tape.forbidden",
            operation=name[:80],
        )
    try:
        rule = find(op, {})
    except UnknownOperationError:
        rule = None
    if rule is None or (rule.kind is Kind.REFUSED and not rule.integers):
        raise TapeError(
            f"the tape names the operation {name[:80]!r}, which is not allowed",
            code="tape.forbidden",
            operation=name[:80],
        )
    return op


UNFIT = (
    RuntimeError, TypeError, ValueError, LookupError, AssertionError, AttributeError, ArithmeticError, MemoryError
)  # fmt: skip
"""What PyTorch raises on operands that do not fit; its meta kernels assert, divide by zero and miss keys."""


def unfit(name: str, error: Exception) -> TapeError:
    """Returns the finding for an operation that raised; a machine that is too small is no evidence."""
    text = (str(error).splitlines() or [""])[0][:200]
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate memory" in text:
        return TapeError(
            f"{name} needs more memory than there is; replay it on a machine with more", code="tape.too_large"
        )
    return TapeError(f"{name} cannot be applied to its operands: {text or type(error).__name__}")


class Operands:
    """Decodes operands, keeping the tensors of live storages."""

    def __init__(self, device: torch.device, tape: Tape, slots: dict[int, Tensor], values: list[Any]) -> None:
        self._device, self._tape, self._slots, self._values = device, tape, slots, values
        self._cache: dict[int, Tensor] = {}
        self._by_slot: dict[int, list[int]] = {}

    def forget(self, slot: int) -> None:
        """Lets go of the tensors on a storage that has died."""
        for index in self._by_slot.pop(slot, ()):
            self._cache.pop(index, None)

    def know(self, index: int, slot: int, result: Tensor) -> None:
        """Takes in the tensor that a reference names, on a storage that has just been made."""
        self._cache[index] = result
        self._by_slot.setdefault(slot, []).append(index)

    def tensor(self, index: int) -> Tensor:
        """Returns the tensor that a reference names."""
        return self._tensor(index)

    def _tensor(self, index: int) -> Tensor:
        cached = self._cache.get(index)
        if cached is None:
            ref = self._tape.refs[index]
            cached = self._cache[index] = tensor(self._slots[ref[0]], ref)
            self._by_slot.setdefault(ref[0], []).append(index)
        return cached

    def decode(self, value: Any) -> Any:
        """Returns what an encoded operand stands for.

        Raises:
            TapeError: It has an unknown form.
        """
        if not isinstance(value, tuple):
            return value
        if len(value) == 2 and value[0] == "t" and type(value[1]) is int:  # what most of them are
            return self._tensor(value[1])
        match value:
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


def adopt(value: Tensor, ref: Ref, size: int, device: torch.device) -> Tensor:
    """Returns the storage of a fresh result, laid out exactly as the tape says, as a uint8 tensor."""
    storage = value.untyped_storage()
    if (
        storage.nbytes() == size
        and value.storage_offset() == ref[4]
        and (value.stride() == ref[3] or value.numel() == 0)
    ):
        return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
    data = torch.zeros(size, dtype=torch.uint8, device=device)
    try:
        tensor(data, ref).copy_(value)
    except RuntimeError as error:  # several elements in one place
        raise unfit("a result", error) from None
    return data


def whole(data: Tensor) -> Tensor:
    """Returns the storage of a tensor as a uint8 tensor."""
    if data.dtype is torch.uint8:
        return data
    return torch.empty(0, dtype=torch.uint8, device=data.device).set_(data.untyped_storage())


def storages(value: Any) -> set[int]:
    """Returns the identities of the storages behind all tensors among operands."""
    if isinstance(value, Tensor):
        return {value.untyped_storage()._cdata}
    if isinstance(value, (list, tuple)):
        return {each for v in value for each in storages(v)}
    return set()


def same(value: Tensor, data: Tensor) -> bool:
    """True if a tensor lies on a storage (or is empty)."""
    return value.untyped_storage()._cdata == data.untyped_storage()._cdata or value.numel() == 0


def _meta(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, list):
        return [_meta(v) for v in value]
    return torch.device("meta") if isinstance(value, torch.device) else value


SHAPED_BY_VALUES = frozenset(
    {"_local_scalar_dense", "equal", "nonzero", "masked_select", "repeat_interleave", "unique_consecutive", "bincount"}
)
"""Operations whose results' shapes depend on values, or that return no tensor."""

_NO_META_FOR_NOTHING = re.compile(r"_?upsample_nearest(_exact)?[123]d|(mse|smooth_l1|huber)_loss_backward")
"""Operations whose meta kernels fail on tensors without elements, which their kernels take."""


def _shape_without_meta(
    op: Op, name: str, args: list[Any], kwargs: dict[str, Any], kind: Kind
) -> tuple[int, ...] | None:
    """Returns the shape that an operation makes from its operands' values, or None if it is no larger than those."""
    bound = bind(op, args, kwargs)
    if kind is Kind.RANDOM:
        return drawn_shape(bound)
    if name == "repeat_interleave":
        check_indices(op, bound)
        return (int(bound["repeats"].sum()),)
    if name == "bincount":
        check_indices(op, bound)
        largest = int(bound["self"].max()) + 1 if bound["self"].numel() else 0
        return (max(largest, bound["minlength"]),)
    return None


def check_shapes(
    op: Op, args: list[Any], kwargs: dict[str, Any], node: Node, refs: list[Ref | None], kind: Kind
) -> None:
    """Checks what an operation will make, shapes and dtypes, without touching memory: by its meta kernel."""
    name = base_name(op)[0]
    first = refs[0] if refs else None
    if kind is Kind.RANDOM or name in SHAPED_BY_VALUES:
        expected = _shape_without_meta(op, name, args, kwargs, kind)
        if first is not None and expected is not None and expected != first[2]:
            raise TapeError(f"{node.op} makes {expected}; the tape says {first[2]}")
        return
    if _NO_META_FOR_NOTHING.fullmatch(name) and any(isinstance(a, Tensor) and not a.numel() for a in args):
        return
    extra = {"device": torch.device("meta")} if any(a.name == "device" for a in op._schema.arguments) else {}
    try:
        out = op(*[_meta(a) for a in args], **{**{k: _meta(v) for k, v in kwargs.items()}, **extra})
    except NotImplementedError:
        return  # no meta kernel: the kernel's own checks and the process limits remain
    except UNFIT as error:
        raise unfit(node.op, error) from None
    returned = list(out) if isinstance(out, (list, tuple)) else [out]
    if name == "_native_batch_norm_legit_no_training":
        returned[1:] = [torch.empty(0), torch.empty(0)]  # nothing is saved, as on the CPU; devices differ in this
    for value, ref in zip(returned, refs, strict=False):
        if ref is not None and isinstance(value, Tensor) and tuple(value.shape) != ref[2]:
            raise TapeError(f"{node.op} makes {tuple(value.shape)}; the tape says {ref[2]}")


_PLANES = re.compile(
    r"(max_pool[23]d_with_indices|avg_pool[23]d|_?adaptive_(avg|max)_pool[23]d|(reflection|replication)_pad[123]d)_backward"
)
"""Gradients of what works on planes: kernels take the number of planes from one operand and use it for the others."""


def check_sizes(op: Op, bound: dict[str, Any]) -> None:
    """Checks the sizes of operands whose kernels read, or write, past the end of a smaller one."""
    name = base_name(op)[0]
    if name == "native_layer_norm_backward":
        x = bound["input"]
        inner = math.prod(bound["normalized_shape"])
        _sized(name, "grad_out", bound["grad_out"], x.numel())
        for part in ("mean", "rstd"):
            _sized(name, part, bound[part], x.numel() // max(inner, 1))
        for part in ("weight", "bias"):
            _sized(name, part, bound[part], inner)
    elif name in ("_softmax_backward_data", "_log_softmax_backward_data"):
        if bound["grad_output"].shape != bound["output"].shape:
            raise TapeError(f"{name} has a gradient of another shape than its output", code="tape.out_of_bounds")
    elif _PLANES.fullmatch(name):
        outer = -int(name[name.index("d_") - 1])
        grad = bound["grad_output"]
        x = bound["self"]
        other = grad.shape[:outer] != x.shape[:outer] or grad.shape != bound.get("indices", grad).shape
        if other or (grad.numel() and not x.numel()):
            raise TapeError(f"{name} has a gradient of other planes than its operand", code="tape.out_of_bounds")
    elif name == "convolution_backward":
        settings = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")
        x, weight, grad = _meta(bound["input"]), _meta(bound["weight"]), bound["grad_output"]
        if grad.shape != torch.ops.aten.convolution.default(x, weight, None, *(bound[s] for s in settings)).shape:
            raise TapeError(f"{name} has a gradient of another shape than its output", code="tape.out_of_bounds")


def _sized(name: str, part: str, value: Any, *elements: int) -> None:
    if isinstance(value, Tensor) and value.numel() not in elements:
        raise TapeError(
            f"the operand {part} of {name} has {value.numel()} elements, not {elements[0]}", code="tape.out_of_bounds"
        )


_INDEXING = re.compile(
    r"(_unsafe_)?index(_put|_select|_add|_copy|_fill)?|embedding(_dense_backward)?|gather|scatter(_add)?|nll_loss.*|"
    r"max_pool[23]d_with_indices_backward|take|put|bincount|repeat_interleave"
)


@per_op
def has_indices(op: Op) -> bool:
    """True for the overloads of which `check_indices` checks anything."""
    return _INDEXING.fullmatch(base_name(op)[0]) is not None


def check_indices(op: Op, bound: dict[str, Any]) -> None:
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
