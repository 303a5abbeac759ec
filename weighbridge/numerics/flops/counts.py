"""How many FLOPs an operation does: one for each number that it computes, from the shapes of its operands alone.

A multiplication, an addition, a comparison and a function of one element count one each, whatever the type of the
elements: a product of integers, or one that is written as a multiplication and a sum, is as much work as `mm`. What
only names, allocates, fills, copies, converts or rearranges memory counts 0, and `FREE` lists all of it. Where values
decide how much is done, the worst case counts. An overload without a count of its own has a bound that any product of
its operands, and any factorisation of one, keeps.

The tape (`weighbridge.program.flops`) and the chip count by this one function.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import torch

from weighbridge.numerics import exchanges
from weighbridge.numerics.flops import formulas
from weighbridge.numerics.flops.formulas import Formula
from weighbridge.numerics.overload_cache import forget, per_op
from weighbridge.numerics.schemas import Op, bind


def _names(text: str) -> list[str]:
    return text.split()


FREE = frozenset(
    _names(
        # names for memory
        """
        alias as_strided detach diagonal expand lift lift_fresh permute _reshape_alias select slice split
        split_with_sizes squeeze t transpose unbind unfold unsqueeze view _unsafe_view chunk narrow view_as _conj real
        swapaxes movedim set resize _indices _values indices values crow_indices col_indices ccol_indices row_indices
        view_as_real view_as_complex _neg_view
        """
        # memory without a content, or with one constant
        """
        empty empty_like empty_strided new_empty new_empty_strided empty_permuted fill full full_like new_full new_ones
        new_zeros ones ones_like zeros zeros_like zero scalar_tensor eye _efficientzerotensor
        """
        # copies and conversions; what goes where follows from shapes
        """
        _to_copy copy clone cat stack constant_pad_nd repeat flip roll pixel_shuffle pixel_unshuffle reflection_pad1d
        reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d select_backward
        select_scatter slice_backward slice_scatter diagonal_scatter diag_embed diagonal_copy block_diag tril triu
        _to_dense _to_sparse _copy_from _copy_from_and_resize as_strided_scatter
        channel_shuffle _pin_memory
        """
        # bookkeeping
        """
        _local_scalar_dense _fused_sdp_choice record_stream is_pinned _assert_async _functional_assert_async
        _nested_tensor_size is_coalesced is_same_size _coalesced is_set_to _has_same_storage_numel item
        """
    )
)
"""Functional names of what computes nothing."""


_PER_ELEMENT = {
    1: """
    abs acos acosh add all amax amin aminmax any arange argmax argmin asin asinh atan atan2 atanh bernoulli
    binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits bincount binomial bitwise_and
    bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor ceil clamp clamp_max clamp_min copysign
    cos cosh cumprod cumsum cummax cummin digamma div elu elu_backward embedding embedding_dense_backward eq equal erf
    erfc erfinv exp exp2 expm1 exponential floor floor_divide fmax fmin fmod frac gather ge gelu gelu_backward geometric
    gt hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward hardswish hardswish_backward hardtanh
    hardtanh_backward heaviside histc huber_loss huber_loss_backward hypot index index_add index_copy index_fill
    index_put index_reduce index_select _index_put_impl _unsafe_index _unsafe_index_put isfinite isinf isnan
    _is_all_true _is_any_true le leaky_relu leaky_relu_backward lgamma linspace log log10 log1p log2 logaddexp
    logaddexp2 logical_and logical_not logical_or logical_xor logspace log_normal cauchy lt masked_fill masked_scatter
    masked_scatter_backward masked_select max max_pool2d_with_indices_backward max_pool3d_with_indices_backward maximum
    mean min minimum mish mish_backward mse_loss mse_loss_backward mul nan_to_num nansum ne neg nextafter
    nll_loss2d_backward nll_loss2d_forward nll_loss_backward nll_loss_forward nonzero norm one_hot poisson polar
    complex pow prod put rand rand_like randint randint_like randn randn_like random randperm reciprocal relu relu6
    remainder repeat_interleave round rrelu_with_noise rsqrt rsub scatter scatter_add scatter_reduce sgn
    sigmoid sigmoid_backward sign signbit silu silu_backward sin sinh smooth_l1_loss smooth_l1_loss_backward softplus
    softplus_backward softshrink softshrink_backward sqrt std std_mean sub sum take tan tanh tanh_backward threshold
    threshold_backward tril_indices triu_indices trunc upsample_nearest1d upsample_nearest2d upsample_nearest3d
    _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d var var_mean where xlogy
    linalg_vector_norm reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
    replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward upsample_nearest1d_backward
    upsample_nearest2d_backward upsample_nearest3d_backward _upsample_nearest_exact1d_backward
    _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward _standard_gamma _sample_dirichlet col2im
    im2col native_dropout native_dropout_backward trace diag _sparse_sum coalesce _coalesce count_nonzero
    """,
    3: """
    addcdiv addcmul lerp cross linalg_cross renorm _weight_norm_interface glu glu_backward logit logit_backward
    uniform normal
    """,
    5: """
    _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data _safe_softmax logsumexp logcumsumexp
    _logcumsumexp _masked_softmax _masked_softmax_backward
    """,
    10: """
    native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward native_batch_norm
    native_batch_norm_backward _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm
    cudnn_batch_norm_backward batch_norm_backward _batch_norm_with_update _batch_norm_no_update _fused_rms_norm
    _fused_rms_norm_backward _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell
    """,
    12: """
    upsample_linear1d upsample_bilinear2d upsample_linear1d_backward upsample_bilinear2d_backward
    """,
    40: """
    upsample_trilinear3d upsample_bicubic2d upsample_trilinear3d_backward upsample_bicubic2d_backward grid_sampler_2d
    grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward
    """,
}
"""Functional names of what computes so many numbers for each element of its largest operand or result.

3: short sequences, such as a draw that is scaled and shifted; 5: exponentials with a sum; 10: normalisations; 12 and
40: interpolations from four points and from up to sixteen, with the weights of these.
"""

COUNTS: dict[str, int | Formula] = {
    **dict.fromkeys(FREE, 0),
    **{name: times for times, text in _PER_ELEMENT.items() for name in _names(text)},
    **dict.fromkeys(_names("mm bmm _int_mm _scaled_mm"), formulas.product("self", "mat2")),
    **dict.fromkeys(_names("mv dot vdot"), formulas.product("self")),
    **dict.fromkeys(_names("addmm _addmm_activation"), formulas.product("mat1", "mat2")),
    **dict.fromkeys(_names("baddbmm addbmm"), formulas.product("batch1", "batch2")),
    "addmv": formulas.product("mat"), "addr": 3,
    **dict.fromkeys(_names("convolution _convolution convolution_overrideable"), formulas.convolution),
    **dict.fromkeys(_names("convolution_backward convolution_backward_overrideable"), formulas.convolution_backward),
    **dict.fromkeys(_names("mkldnn_rnn_layer _cudnn_rnn miopen_rnn"), formulas.recurrent),
    "_trilinear": formulas.trilinear, "_cdist_forward": formulas.distances, "_cdist_backward": formulas.bound,
    **dict.fromkeys(_names("_pdist_forward _pdist_backward"), formulas.self_distances),
    **dict.fromkeys(_names("_embedding_bag _embedding_bag_forward_only"), formulas.embedding_bag),
    **{
        f"_scaled_dot_product_{which}attention{where}{end}": formula
        for which, where in (
            ("flash_", ""), ("flash_", "_for_cpu"), ("efficient_", ""), ("cudnn_", ""), ("fused_", "_overrideable"),
        )
        for end, formula in (("", formulas.attention), ("_backward", formulas.attention_backward))
    },
    **dict.fromkeys(
        _names(
            """
            avg_pool2d avg_pool3d avg_pool2d_backward avg_pool3d_backward max_pool2d_with_indices
            max_pool3d_with_indices
            """
        ),
        formulas.windows,
    ),
    **dict.fromkeys(
        _names(
            """
            _adaptive_avg_pool2d _adaptive_avg_pool3d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
            adaptive_max_pool2d adaptive_max_pool3d adaptive_max_pool2d_backward adaptive_max_pool3d_backward
            """
        ),
        formulas.adaptive,
    ),
    **dict.fromkeys(
        _names(
            """
            sort topk median nanmedian kthvalue mode unique_consecutive unique_dim _unique _unique2 bucketize
            searchsorted multinomial
            """
        ),
        formulas.sorting,
    ),
    "isin": formulas.pairs,
    **{f"weighbridge::{name}": formulas.reduction if name in exchanges.REDUCING else 0 for name in exchanges.NAMES},
    "weighbridge::resize": 0,
}  # fmt: skip
"""FLOPs by functional name: a formula, or so many for each element of the largest operand or result; 0 is `FREE`."""

_FAMILIES: tuple[tuple[re.Pattern[str], int | Formula], ...] = (
    (re.compile(r"_fused_(adam|adamw|adagrad|sgd)"), 20),
    (
        re.compile(r"_?(linalg_(?!vector_norm|cross)|lu_|cholesky).*|geqrf|ormqr|triangular_solve|inverse"),
        formulas.factorisation,
    ),
    (re.compile(r"_fft_.*"), formulas.transform),
    (
        re.compile(r"(cudnn|miopen|mkldnn)_convolution\w*|_?slow_conv\w+|_?conv_depthwise\w+"),
        formulas.vendor_convolution,
    ),
)
"""Names that belong together, of what no recorded step contains, or only work on integers."""

_EXCHANGES = ("c10d::", "_c10d_functional::", "_c10d_functional_autograd::", "symm_mem::")
_OWN: dict[str, int | Formula] = {}


def declare(key: str, count: int | Formula) -> None:
    """Sets the count of an operator outside ATen, for this process.

    Args:
        key: `library::name.overload`.
        count: A formula, or so many for each element of the largest operand or result.
    """
    _OWN[key] = count
    forget()


def _declared(op: Op) -> int | Formula | None:
    name = op._schema.name.removeprefix("aten::")
    own = _OWN.get(f"{name}.{op._overloadname or 'default'}")
    if own is not None:
        return own
    if "::" not in name and name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    listed = name.startswith("_foreach_")
    found = COUNTS.get(name.removeprefix("_foreach_"), 1 if listed else None)
    if found is not None:
        return found
    return next((count for pattern, count in _FAMILIES if pattern.fullmatch(name)), None)


def declared(op: Op) -> bool:
    """Says whether an overload has a count of its own, and not the bound of those that have none."""
    return _declared(op) is not None


@per_op
def _count(op: Op) -> int | Formula:
    found = _declared(op)
    if found is not None:
        return found
    if op._schema.name.startswith(_EXCHANGES) or torch.Tag.pointwise in op.tags:
        return 1
    return 0 if op.is_view else formulas.bound


def count(op: Op, args: Iterable[Any], kwargs: dict[str, Any], results: Any) -> int:
    """Returns the FLOPs of one call.

    Args:
        op: The overload.
        args: Positional operands; tensors may be `Shape`.
        kwargs: Keyword operands.
        results: What it returned: a tensor, or a list or tuple of these and of None.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: The operands do not fit the overload.
    """
    counts = _count(op)
    if counts == 0:
        return 0
    made = results if isinstance(results, (list, tuple)) else (results,)
    if isinstance(counts, int):
        most = max(formulas.largest(args), formulas.largest(made))
        return counts * (max(most, formulas.largest(kwargs.values())) if kwargs else most)
    made = list(made)
    total = counts(bind(op, list(args), kwargs), made)
    # A product of complex numbers is four products and two sums.
    return 4 * total if any(isinstance(each, torch.Tensor) and each.is_complex() for each in made) else total
