"""The table of slices: of which class each overload is, or why it is executed whole.

Every line of the table of rules is in it once. Lines of the kinds in `WHOLE_KINDS` need no entry of their own.
"""

from __future__ import annotations

from typing import Literal

from weighbridge.core.digests import record_digest
from weighbridge.numerics.rule_table import RULES, Kind

VERSION = 4
"""Counts what `digest` cannot see: changes of which boxes a class reads, and of how a chunk is made in pieces."""

Class = Literal["element", "row", "column", "product", "reduction", "index", "place", "window", "plane", "norm"]

_CLASSES: dict[Class, str] = {
    "element": """
        abs.default add.Scalar add.Tensor addcdiv.default addcmul.default acos.default acosh.default asin.default
        asinh.default atan.default atan2.default atanh.default bitwise_and.Scalar bitwise_and.Tensor
        bitwise_left_shift.Tensor
        bitwise_not.default bitwise_or.Scalar bitwise_or.Tensor bitwise_right_shift.Tensor bitwise_xor.Scalar
        bitwise_xor.Tensor ceil.default clamp.Tensor clamp.default clamp_max.Tensor clamp_max.default clamp_min.Tensor
        clamp_min.default copysign.Tensor cos.default cosh.default digamma.default div.Scalar div.Scalar_mode div.Tensor
        div.Tensor_mode elu.default elu_backward.default eq.Scalar eq.Tensor erf.default erfc.default erfinv.default
        exp.default exp2.default expm1.default floor.default floor_divide.Scalar floor_divide.default fmod.Scalar
        fmod.Tensor frac.default ge.Scalar ge.Tensor gelu.default gelu_backward.default gt.Scalar gt.Tensor
        hardshrink.default hardshrink_backward.default hardsigmoid.default hardsigmoid_backward.default
        hardswish.default hardswish_backward.default hardtanh.default hardtanh_backward.default heaviside.default
        hypot.default isfinite.default isinf.default isnan.default le.Scalar le.Tensor leaky_relu.default
        leaky_relu_backward.default lerp.Scalar lerp.Tensor lgamma.default log.default log10.default log1p.default
        log2.default logaddexp.default logaddexp2.default logical_and.default logical_not.default logical_or.default
        logical_xor.default lt.Scalar lt.Tensor masked_fill.Scalar masked_fill.Tensor maximum.default minimum.default
        mish.default mish_backward.default mul.Scalar mul.Tensor nan_to_num.default ne.Scalar ne.Tensor neg.default
        pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor reciprocal.default relu.default relu6.default
        remainder.Scalar remainder.Tensor round.default rsqrt.default rsub.Scalar rsub.Tensor sgn.default
        sigmoid.default sigmoid_backward.default sign.default signbit.default silu.default silu_backward.default
        sin.default sinh.default softplus.default softplus_backward.default
        softshrink.default softshrink_backward.default sqrt.default sub.Scalar sub.Tensor tan.default tanh.default
        tanh_backward.default
        threshold.default threshold_backward.default trunc.default where.Scalar where.ScalarOther where.ScalarSelf
        where.self xlogy.Tensor
    """,
    "row": """
        _softmax.default _safe_softmax.default _log_softmax.default _softmax_backward_data.default
        _log_softmax_backward_data.default cumsum.default cumprod.default sort.stable
    """,
    "column": "scatter.src scatter.value scatter_add.default",
    "product": "mm.default bmm.default addmm.default baddbmm.default",
    "reduction": """
        sum.dim_IntList nansum.default amax.default amin.default prod.dim_int logsumexp.default
        linalg_vector_norm.default norm.ScalarOpt_dim var.correction std.correction var.dim std.dim
        var_mean.correction std_mean.correction any.dim any.dims all.dim all.dims argmax.default argmin.default
        max.dim min.dim
    """,
    "index": "embedding.default index_select.default gather.default",
    "place": "index_add.default",
    "window": "convolution.default convolution_backward.default",
    "plane": """
        avg_pool2d.default avg_pool3d.default avg_pool2d_backward.default avg_pool3d_backward.default
        _adaptive_avg_pool2d.default _adaptive_avg_pool3d.default _adaptive_avg_pool2d_backward.default
        _adaptive_avg_pool3d_backward.default max_pool2d_with_indices.default max_pool3d_with_indices.default
        max_pool2d_with_indices_backward.default max_pool3d_with_indices_backward.default
        adaptive_max_pool2d.default adaptive_max_pool3d.default reflection_pad1d.default reflection_pad2d.default
        reflection_pad3d.default replication_pad1d.default replication_pad2d.default replication_pad3d.default
        reflection_pad1d_backward.default reflection_pad2d_backward.default reflection_pad3d_backward.default
        replication_pad1d_backward.default replication_pad2d_backward.default replication_pad3d_backward.default
        upsample_nearest1d.default upsample_nearest2d.default upsample_nearest3d.default
        _upsample_nearest_exact1d.default _upsample_nearest_exact2d.default _upsample_nearest_exact3d.default
        upsample_nearest1d_backward.default upsample_nearest2d_backward.default upsample_nearest3d_backward.default
        _upsample_nearest_exact1d_backward.default _upsample_nearest_exact2d_backward.default
        _upsample_nearest_exact3d_backward.default upsample_bilinear2d.default upsample_bilinear2d_backward.default
        upsample_trilinear3d.default upsample_trilinear3d_backward.default upsample_bicubic2d.default
        upsample_bicubic2d_backward.default
    """,
    "norm": "native_layer_norm.default native_layer_norm_backward.default",
}
"""Overloads by class; `cutting` says what a class reads."""

WHOLE: dict[str, str] = {
    "all of its operands are in each element, or in the one that there is": """
        mv.default dot.default vdot.default addmv.default sum.default prod.default norm.Scalar any.default all.default
        _is_all_true.default _is_any_true.default max.default min.default aminmax.default median.default
        nll_loss_forward.default nll_loss2d_forward.default mse_loss.default smooth_l1_loss.default huber_loss.default
        binary_cross_entropy.default binary_cross_entropy_with_logits.default bincount.default
    """,
    "statistics of the whole batch are in each element, in several roundings": """
        _native_batch_norm_legit.default _native_batch_norm_legit.no_stats
        _native_batch_norm_legit_no_training.default native_batch_norm_backward.default
    """,
    "where an element lies depends on values before it, or how many there are does": """
        masked_scatter.default masked_select.default nonzero.default repeat_interleave.Tensor unique_consecutive.default
    """,
    "the gradient of a mean divides by a count that is the whole's": """
        nll_loss_backward.default nll_loss2d_backward.default mse_loss_backward.default
        smooth_l1_loss_backward.default huber_loss_backward.default binary_cross_entropy_backward.default
    """,
    "its operands are in a list, which a part cannot shorten": """
        cat.default stack.default block_diag.default index.Tensor _unsafe_index.Tensor index_put.default
    """,
    "it is made of numbers, or of one: there is no operand to narrow": """
        arange.default arange.start arange.start_step arange.default/float arange.start/float arange.start_step/float
        linspace.default eye.default eye.m full.default ones.default zeros.default scalar_tensor.default
        tril_indices.default triu_indices.default full_like.default ones_like.default zeros_like.default
        new_full.default new_ones.default new_zeros.default fill.Scalar fill.Tensor zero.default
        bitwise_and.Scalar_Tensor bitwise_or.Scalar_Tensor bitwise_xor.Scalar_Tensor remainder.Scalar_Tensor
    """,
    "it copies elements to other places: what is shown of it costs more than executing it": """
        _to_copy.default clone.default copy.default constant_pad_nd.default flip.default roll.default repeat.default
        tril.default triu.default diag_embed.default diagonal_copy.default diagonal_scatter.default
        select_backward.default select_scatter.default slice_backward.default slice_scatter.default
        pixel_shuffle.default pixel_unshuffle.default take.default one_hot.default index_fill.int_Scalar
        index_fill.int_Tensor
    """,
    "it rounds the rows that are used alone, and whether their sums are exact is a matter of all rows": """
        embedding_dense_backward.default
    """,
    "it looks each element up in all of another operand": """
        bucketize.Tensor searchsorted.Tensor isin.Tensor_Tensor
    """,
}  # fmt: skip
"""Overloads that are executed whole, by the reason."""

WHOLE_KINDS: dict[Kind, str] = {
    Kind.VIEW: "it computes nothing",
    Kind.EMPTY: "its result is zeros",
    Kind.RANDOM: "it draws by counters of the whole",
    Kind.HOST: "its result is no tensor",
    Kind.COLLECTIVE: "steps that exchange with other ranks are not disputed",
    Kind.RESIZE: "it makes a storage longer or shorter",
    Kind.REFUSED: "it is not executed",
}
"""Kinds of rules whose lines are executed whole, by the reason."""

_CLASS_OF: dict[str, Class] = {key: name for name, keys in _CLASSES.items() for key in keys.split()}


def class_of(key: str) -> Class | None:
    """Returns the class of a line of the table of rules; None if it is executed whole."""
    return _CLASS_OF.get(key)


def why_whole(key: str) -> str:
    """Returns why a line of the table of rules is executed whole; "" if it is not, or if that is declared nowhere."""
    if key in _CLASS_OF:
        return ""
    named = next((reason for reason, keys in WHOLE.items() if key in keys.split()), "")
    return named or (WHOLE_KINDS.get(RULES[key].kind, "") if key in RULES else "")


def members(name: Class) -> frozenset[str]:
    """Returns the lines of a class."""
    return frozenset(_CLASSES[name].split())


def digest() -> bytes:
    """Returns the digest of this table (32 bytes); parties to a dispute need the same one."""
    return record_digest("slices/2", [VERSION, [[name, *sorted(members(name))] for name in sorted(_CLASSES)]])
