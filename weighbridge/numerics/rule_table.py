"""The table from ATen overload to rule.

The table is data, reviewed line by line, and closed: an overload that is not in it has no rule, and recording stops
before it runs. Its lines stand here, those of rounded operations beside their bounds in `families`; `weighbridge ops`
lists them all. In-place overloads (`add_.Tensor`) and `out=` overloads follow the rule of their functional form; what
they mutate is taken from the schema. Vendor and composite overloads, and those that change more than their schema says
(`native_batch_norm`), are not here but in `decompositions`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from weighbridge.core.digests import record_digest
from weighbridge.core.errors import UnknownOperationError
from weighbridge.numerics import exchanges, refusals
from weighbridge.numerics.bounds import BoundFunction, Call
from weighbridge.numerics.families import (
    activations,
    convolutions,
    functions,
    losses,
    normalisations,
    pooling,
    products,
    resampling,
    scatters,
    softmax,
    sums,
)
from weighbridge.numerics.overload_cache import forget, per_op
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.schemas import Op, writes_out


class Kind(StrEnum):
    """How an operation is made reproducible (design, "Numerics")."""

    VIEW = "view"
    """Only names memory differently; nothing is computed."""
    MOVE = "move"
    """Copies, compares, selects or converts; one right answer."""
    SELECT = "select"
    """Picks the larger or the smaller number; of zeros it is +0, because kernels disagree about the sign."""
    EMPTY = "empty"
    """Allocates without a defined content; the content is zeros."""
    EXACT = "exact"
    """One IEEE operation with one right answer."""
    CHAIN = "chain"
    """A fixed sequence of such operations in float32 (`chains`)."""
    COMPOSED = "composed"
    """A fixed sequence of exact and rounded operations, evaluated as one (`composed`)."""
    ROUNDED = "rounded"
    """Computed wide, rounded back, contested roundings logged."""
    RANDOM = "random"
    """Counter-based Philox."""
    HOST = "host"
    """Hands a value to Python; replay asserts that it is equal."""
    COLLECTIVE = "collective"
    """Exchanges with other ranks; combined in the order of the group (`exchanges`)."""
    RESIZE = "resize"
    """Changes the size of a storage in place; new bytes are zeros."""
    REFUSED = "refused"
    """Has no bound and no fixed-order form."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule of one overload.

    Attributes:
        kind: What happens to it.
        bound: For `rounded`: computes the error bounds.
        note: Why, or what to write instead.
        integers: For `refused`: whether work without floating operands under the same name runs as it is.
        source: For a user's rule: the text of its bound, so that the table's digest names it.
    """

    kind: Kind
    bound: BoundFunction | None = None
    note: str = ""
    integers: bool = True
    source: str = ""


_VIEW = """
alias.default as_strided.default detach.default diagonal.default expand.default lift_fresh.default permute.default
_reshape_alias.default select.int slice.Tensor split.Tensor split_with_sizes.default squeeze.default squeeze.dim
squeeze.dims t.default transpose.int unbind.int unfold.default unsqueeze.default view.default view.dtype
_unsafe_view.default chunk.default narrow.default view_as.default lift.default _conj.default real.default
swapaxes.default movedim.int transpose.default set.source_Tensor
"""

_MOVE = """
_to_copy.default abs.default arange.default arange.start arange.start_step argmax.default argmin.default
bitwise_and.Tensor bitwise_and.Scalar bitwise_not.default bitwise_or.Tensor bitwise_or.Scalar bitwise_xor.Tensor
bucketize.Tensor cat.default ceil.default clone.default constant_pad_nd.default copy.default copysign.Tensor
embedding.default eq.Scalar eq.Tensor eye.default eye.m fill.Scalar fill.Tensor flip.default floor.default frac.default
full.default full_like.default gather.default ge.Scalar ge.Tensor gt.Scalar gt.Tensor hardtanh_backward.default
heaviside.default index.Tensor index_fill.int_Scalar index_fill.int_Tensor index_select.default isfinite.default
isinf.default isnan.default isin.Tensor_Tensor le.Scalar le.Tensor logical_and.default logical_not.default
logical_or.default logical_xor.default lt.Scalar lt.Tensor masked_fill.Scalar masked_fill.Tensor masked_scatter.default
masked_select.default max_pool2d_with_indices.default max_pool3d_with_indices.default nan_to_num.default ne.Scalar
ne.Tensor neg.default new_full.default new_ones.default new_zeros.default nonzero.default ones.default ones_like.default
pixel_shuffle.default pixel_unshuffle.default reflection_pad1d.default reflection_pad2d.default reflection_pad3d.default
repeat.default repeat_interleave.Tensor replication_pad1d.default replication_pad2d.default replication_pad3d.default
bitwise_xor.Scalar roll.default round.default scalar_tensor.default scatter.src scatter.value searchsorted.Tensor
select_backward.default select_scatter.default sign.default signbit.default slice_backward.default slice_scatter.default
sort.stable stack.default threshold_backward.default tril.default triu.default tril_indices.default triu_indices.default
trunc.default unique_consecutive.default upsample_nearest1d.default upsample_nearest2d.default where.self
where.ScalarOther where.ScalarSelf where.Scalar zero.default zeros.default zeros_like.default any.default any.dim
any.dims all.default all.dim all.dims bincount.default _unsafe_index.Tensor bitwise_left_shift.Tensor
bitwise_right_shift.Tensor diag_embed.default diagonal_scatter.default take.default one_hot.default block_diag.default
sgn.default median.default softshrink_backward.default hardshrink.default hardshrink_backward.default
_is_all_true.default _is_any_true.default adaptive_max_pool2d.default adaptive_max_pool3d.default diagonal_copy.default
bitwise_and.Scalar_Tensor bitwise_or.Scalar_Tensor bitwise_xor.Scalar_Tensor upsample_nearest3d.default
_upsample_nearest_exact1d.default _upsample_nearest_exact2d.default _upsample_nearest_exact3d.default
"""

_SELECT = """
amax.default amin.default aminmax.default clamp.default clamp.Tensor clamp_min.default clamp_min.Tensor
clamp_max.default clamp_max.Tensor hardtanh.default max.default max.dim maximum.default min.default min.dim
minimum.default relu.default relu6.default threshold.default
"""

_EMPTY = """
empty.memory_format empty_like.default empty_strided.default new_empty.default new_empty_strided.default
empty_permuted.default
"""

_EXACT = """
add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Tensor rsub.Scalar mul.Tensor mul.Scalar softshrink.default
div.Tensor div.Scalar reciprocal.default sqrt.default
"""

_CHAIN = "lerp.Scalar lerp.Tensor addcmul.default addcdiv.default"

_COMPOSED = """
_native_batch_norm_legit.default _native_batch_norm_legit.no_stats _native_batch_norm_legit_no_training.default
native_batch_norm_backward.default
"""

_JUMPS = """
floor_divide.default floor_divide.Scalar div.Tensor_mode div.Scalar_mode remainder.Tensor remainder.Scalar
remainder.Scalar_Tensor fmod.Tensor fmod.Scalar
"""

MODULI = frozenset(_JUMPS.split())
"""Exact operations on floats that `moduli` computes: each has one right answer, which kernels do not all give."""

QUOTIENTS = ("div", "reciprocal", "sqrt")
"""Exact operations that kernels do not all compute as IEEE says; `quotients` does."""

_RANDOM = """
bernoulli.default bernoulli.p bernoulli.Tensor bernoulli.float normal.default normal.Tensor_float normal.float_Tensor
normal.Tensor_Tensor normal.float_float uniform.default rand.default rand.generator rand_like.default randn.default
randn.generator randn_like.default randint.default randint.generator randint.low randint.low_generator
randint_like.default randint_like.low_dtype randperm.default randperm.generator random.default random.from random.to
"""

_HOST = "_local_scalar_dense.default equal.default"


FAMILIES = (
    products,
    convolutions,
    sums,
    scatters,
    normalisations,
    softmax,
    losses,
    functions,
    activations,
    pooling,
    resampling,
)
"""Where the rounded operations stand, each family with its bounds."""

FLOAT64_EXACT = {("reciprocal", "default"), ("div", "Tensor"), ("div", "Scalar")}
"""Quotients that are one IEEE operation in float64 on every device: the gradient scaler's, those of position tables."""


def _build() -> dict[str, Rule]:
    table: dict[str, Rule] = {}
    for kind, names in (
        (Kind.VIEW, _VIEW),
        (Kind.MOVE, _MOVE),
        (Kind.SELECT, _SELECT),
        (Kind.EMPTY, _EMPTY),
        (Kind.EXACT, _EXACT),
        (Kind.EXACT, _JUMPS),
        (Kind.CHAIN, _CHAIN),
        (Kind.COMPOSED, _COMPOSED),
        (Kind.RANDOM, _RANDOM),
        (Kind.HOST, _HOST),
    ):
        table.update({name: Rule(kind) for name in names.split()})
    for family in FAMILIES:
        for line in family.LINES:
            table.update({name: Rule(Kind.ROUNDED, line.bound) for name in line.keys})
    table.update({f"weighbridge::{name}.default": Rule(Kind.COLLECTIVE) for name in exchanges.NAMES})
    table["weighbridge::resize.default"] = Rule(Kind.RESIZE)
    table.update({name: Rule(Kind.REFUSED, note=note) for name, note in refusals.ON_FLOATS.items()})
    table.update({name: Rule(Kind.REFUSED, note=note, integers=False) for name, note in refusals.ALWAYS.items()})
    return table


RULES: dict[str, Rule] = _build()
"""Rules by `name.overload` of the functional form; `arange.*/float` for fractional ramps."""


@per_op
def base_name(op: Op) -> tuple[str, str]:
    """Returns (functional name, overload): `add_.Tensor` and `add.out` give those of `add.Tensor`.

    The name of an operator outside ATen keeps its namespace: `mylib::scale`.
    """
    return _base_name(op._schema.name, op._overloadname or "default")


@cache
def _base_name(qualified: str, overload: str) -> tuple[str, str]:
    name = qualified.removeprefix("aten::")
    if "::" in name:
        return name, overload  # other libraries have other conventions: each overload is a line of its own
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    if overload == "out" or overload.endswith("_out"):
        overload = overload[: -len("_out")] if overload.endswith("_out") else ""
        options = [f"{name}.{overload}"] if overload else [f"{name}.default", f"{name}.Tensor", f"{name}.self"]
        overload = next((o.partition(".")[2] for o in options if o in RULES), overload or "default")
    return name, overload


def known(op: Op) -> bool:
    """True if the table has a line for an overload, whatever its operands."""
    return _key(op) in RULES


@per_op
def _key(op: Op) -> str:
    return ".".join(base_name(op))


@per_op
def settled(op: Op) -> Rule | None:
    """Returns the rule of an overload whatever its operands, or None where `find` has to look at more."""
    return None if _key(op).startswith("arange.") or writes_out(op) else RULES.get(_key(op))


def find(op: Op, args: dict[str, Any]) -> Rule:
    """Returns the rule of an overload for given operands.

    Args:
        op: The overload.
        args: Its operands by schema name (whether `arange` counts in floats decides).

    Raises:
        UnknownOperationError: If the table has no line for it.
    """
    found = settled(op)
    if found is not None:
        return found
    key = _key(op)
    if key.startswith("arange.") and any(isinstance(args.get(end), float) for end in ("start", "end", "step")):
        key += "/float"
    rule = RULES.get(key)
    if rule is not None and writes_out(op):
        raise UnknownOperationError(
            f"operation {op} has no rule of its own; copy_() the result of the form without out= instead",
            operation=str(op),
        )
    if rule is None:
        raise UnknownOperationError(
            f"operation {op} has no rule; write the step without it, or register one with "
            f"@weighbridge.numerics.rule('{op._schema.name}.{base_name(op)[1]}') (docs/custom-operators.md)",
            operation=str(op),
        )
    return rule


def register(key: str, kind: Kind, bound: Callable[[Call], list[Bound]] | None = None, *, source: str = "") -> None:
    """Adds a line to the table for this process; Prover and Verifier must both agree to it.

    Args:
        key: `name.overload` of the functional form, e.g. `cross.default`.
        kind: Its rule.
        bound: For `rounded`: one `Bound` per floating result.
        source: The text of the bound.

    Raises:
        ValueError: If the key is taken, or a rounded rule comes without a bound.
    """
    if key in RULES:
        raise ValueError(f"{key} has a rule already; a reviewed line is not replaced at run time")
    if (kind is Kind.ROUNDED) != (bound is not None):
        raise ValueError("a rounded rule needs a bound, and only a rounded rule has one")
    RULES[key] = Rule(kind, bound, source=source)
    forget()


def table_digest() -> str:
    """Returns the hex digest of the table: which overload has which rule and which family of bound."""
    lines = [
        [key, str(rule.kind), *([rule.bound.__name__] if rule.bound else [""]), *([rule.source] if rule.source else [])]
        for key, rule in sorted(RULES.items())
    ]
    return record_digest("rules/1", lines).hex()
