"""The refused part of the table: overloads without a bound or a fixed-order form, each with what to write instead."""

from __future__ import annotations

_ITERATES = "iterates until it converges; use torch.linalg.qr or power iteration"
_SAMPLES = "rejects samples, as often as the device likes; sample outside the step and pass it in the batch"
_SPECTRUM = "complex arithmetic has no rule; multiply by a matrix of sines and cosines"

ON_FLOATS = {
    "_linalg_svd.default": _ITERATES,
    "_linalg_eigh.default": _ITERATES,
    "linalg_eig.default": _ITERATES,
    "poisson.default": _SAMPLES,
    "_standard_gamma.default": _SAMPLES,
    "_sample_dirichlet.default": _SAMPLES,
    "binomial.default": "draw (torch.rand(n, ...) < p).sum(0), or sample outside the step and pass it in the batch",
    "_fft_r2c.default": _SPECTRUM,
    "_fft_c2r.default": _SPECTRUM,
    "_fft_c2c.default": _SPECTRUM,
    "linalg_matrix_exp.default": "has no fixed-order form; sum the series with matrix products",
}
"""Refused on floating operands; integer work under the same name is a move."""

_VENDOR = (
    "a vendor's kernel may sum in any way it likes; the Recorder switches these kernels off, so leave "
    "torch.backends as it finds them, on the default layout and device"
)
_ATTENTION = "a fused attention kernel; the Recorder asks for the math backend, so do not choose another inside a step"
SPARSE = (
    "sparse tensors have no rule; use dense tensors (sparse=False in an embedding), with index_add or scatter_add for "
    "what is sparse"
)
_NESTED = "nested tensors have no rule; pad to one length and mask"
_QUANTISED = "has no rule; use torch.fake_quantize_per_tensor_affine, or write it with torch.round and torch.clamp"
_SYNCHRONISED = "statistics over several devices have no rule; use nn.BatchNorm or nn.GroupNorm"
_ANTIALIAS = "has no bound; interpolate with antialias=False, after average pooling where it shrinks"
_FRACTIONAL = "places its windows by rounded arithmetic; use max pooling with fixed windows"
COMPLEX = "complex arithmetic has no rule; compute with real and imaginary parts as tensors of their own"
_RUNNING = "has no bound; write torch.log(torch.cumsum(torch.exp(x - x.max()), dim)) + x.max()"
_LEAST_SQUARES = "has no rule; use torch.linalg.qr and torch.linalg.solve_triangular"
_TYPED = "a product with another output type has no rule; convert the result afterwards"
_MASKED = "has no rule; write torch.softmax(x.masked_fill(mask, -inf), dim)"
_SEGMENTS = "has no fixed-order form; use index_add or scatter_add over the segments"
_FORWARD_MODE = "forward-mode derivatives have no rule; use backward()"


def _all(note: str, names: str) -> dict[str, str]:
    return {name if "." in name else f"{name}.default": note for name in names.split()}


ALWAYS = {
    "resize.default": "allocate a tensor of the new size instead",
    "set.source_Storage": "write through copy_() instead of replacing storage inside a step",
    **_all(
        _VENDOR,
        """
        _cudnn_rnn_backward cudnn_affine_grid_generator_backward cudnn_batch_norm_backward cudnn_grid_sampler_backward
        miopen_batch_norm_backward miopen_rnn_backward mps_convolution_backward mps_convolution_transpose_backward
        lstm_mps_backward max_pool2d_backward mkldnn_adaptive_avg_pool2d_backward mkldnn_linear_backward
        mkldnn_linear_backward_input mkldnn_linear_backward_weights mkldnn_max_pool2d_backward
        mkldnn_max_pool3d_backward mkldnn_rnn_layer_backward convolution_backward_overrideable
        _slow_conv2d_backward.output_mask _slow_conv2d_backward.grad_input _grid_sampler_2d_cpu_fallback_backward
        batch_norm_backward
        """,
    ),
    **_all(
        _ATTENTION,
        """
        _cudnn_attention_backward _efficient_attention_backward _flash_attention_backward _fused_sdp_choice
        _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention
        _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention
        _scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_fused_attention_overrideable_backward
        """,
    ),
    **_all(
        SPARSE,
        """
        _sparse_log_softmax_backward_data _sparse_mm_reduce_impl_backward _sparse_softmax_backward_data
        _sparse_sum_backward _sparse_coo_tensor_with_dims_and_tensors _sparse_coo_tensor_unsafe
        """,
    ),
    **_all(_NESTED, "_nested_select_backward _nested_sum_backward linear_backward matmul_backward"),
    **_all(
        _QUANTISED,
        """
        _fake_quantize_learnable_per_channel_affine_backward _fake_quantize_learnable_per_tensor_affine_backward
        _fused_moving_avg_obs_fq_helper _fused_moving_avg_obs_fq_helper_functional
        """,
    ),
    **_all(COMPLEX, "polar complex view_as_complex view_as_real"),
    **_all(_RUNNING, "logcumsumexp _logcumsumexp"),
    **_all(_LEAST_SQUARES, "linalg_lstsq"),
    **_all(_SYNCHRONISED, "batch_norm_backward_elemt batch_norm_backward_reduce"),
    **_all(
        _ANTIALIAS,
        """
        _upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward
        _upsample_lanczos2d_aa _upsample_lanczos2d_aa_backward
        """,
    ),
    **_all(
        _FRACTIONAL,
        "fractional_max_pool2d fractional_max_pool2d_backward fractional_max_pool3d fractional_max_pool3d_backward",
    ),
    **_all(_TYPED, "mm.dtype bmm.dtype addmm.dtype baddbmm.dtype"),
    **_all(_MASKED, "_masked_softmax _masked_softmax_backward"),
    **_all(_SEGMENTS, "segment_reduce _segment_reduce_backward"),
    **_all(_FORWARD_MODE, "glu_backward_jvp glu_jvp"),
}
"""Refused whatever the operands: they change which memory a tensor names, or there is no integer work in them."""
