"""What an operation may be called with beside what its rule reads: operands of views, placing, forms in place.

Nothing computes with these, so without a list of them a tape could say what no program can have called. Tests compare
the lists with PyTorch's schemas.
"""

from __future__ import annotations

from weighbridge.core.errors import TapeError

VIEWS = """
alias.default self
as_strided.default self size stride storage_offset=
chunk.default self chunks dim=
detach.default self
diagonal.default self offset= dim1= dim2=
expand.default self size implicit=
lift.default self
lift_fresh.default self
narrow.default self dim start length
permute.default self dims
_reshape_alias.default self size stride
select.int self dim index
slice.Tensor self dim= start= end= step=
split.Tensor self split_size dim=
split_with_sizes.default self split_sizes dim=
squeeze.default self
squeeze.dim self dim
squeeze.dims self dim
t.default self
transpose.int self dim0 dim1
unbind.int self dim=
unfold.default self dimension size step
unsqueeze.default self dim
_unsafe_view.default self size
view.default self size
"""
"""Operations that only name memory differently, each with its operands in order, `=` after what may be left out."""

_WHERE = ("dtype", "layout", "device", "pin_memory")
_PLACING: dict[tuple[str, ...], str] = {
    _WHERE: """
arange.default arange.start arange.start_step empty_strided.default full.default new_empty.default
new_empty_strided.default new_full.default new_ones.default new_zeros.default ones.default rand.default randn.default
scalar_tensor.default zeros.default
""",
    (*_WHERE, "memory_format"): """
empty.memory_format empty_like.default full_like.default ones_like.default rand_like.default randn_like.default
zeros_like.default
""",
    (*_WHERE, "non_blocking", "memory_format"): "_to_copy.default",
}
PLACING = {key: frozenset(names) for names, keys in _PLACING.items() for key in keys.split()}
"""Operands by keyword that say where a result lies or of which type it is, which the tape says too."""

_IN_PLACE = """
abs.default add.Scalar add.Tensor addcdiv.default addcmul.default addmm.default as_strided.default baddbmm.default
bernoulli.float bitwise_and.Scalar bitwise_and.Tensor bitwise_not.default bitwise_or.Scalar bitwise_or.Tensor
bitwise_xor.Scalar bitwise_xor.Tensor clamp.default clamp_max.default clamp_min.default copy.default cos.default
cumsum.default detach.default div.Scalar div.Tensor eq.Scalar eq.Tensor erf.default exp.default expm1.default
fill.Scalar fill.Tensor ge.Scalar ge.Tensor gelu.default gt.Scalar gt.Tensor hardtanh.default le.Scalar le.Tensor
lerp.Scalar lerp.Tensor log.default log1p.default log2.default logical_and.default logical_not.default
logical_or.default logical_xor.default lt.Scalar lt.Tensor masked_fill.Scalar masked_fill.Tensor mul.Scalar mul.Tensor
ne.Scalar ne.Tensor neg.default normal.default reciprocal.default relu.default rsqrt.default sigmoid.default
silu.default sin.default sqrt.default squeeze.default squeeze.dim squeeze.dims sub.Scalar sub.Tensor t.default
tanh.default tril.default triu.default uniform.default unsqueeze.default zero.default
"""
IN_PLACE = frozenset(_IN_PLACE.split())
"""Operations that have a form that changes its first operand."""
ONLY_IN_PLACE = frozenset({"bernoulli.float", "normal.default"})
"""Those of them that have no other."""


def require_form(op: str, key: str, changes: bool) -> None:
    """Checks that there is an operation of a name.

    Args:
        op: The name on the tape.
        key: The key of its rule.
        changes: Whether it changes its first operand.

    Raises:
        TapeError: There is its rule, but no such form of it.
    """
    if key not in IN_PLACE if changes else key in ONLY_IN_PLACE:
        raise TapeError(
            f"the tape names the operation {op[:80]!r}, which is not allowed", code="tape.forbidden", operation=op[:80]
        )
