"""The fused recurrent cells that PyTorch uses on a GPU, gate by gate."""

from __future__ import annotations

import torch

from weighbridge.numerics.rewrites.rewrite_table import decomposes

Tensor = torch.Tensor


def _biased(gates: Tensor, bias: Tensor | None) -> Tensor:
    return gates if bias is None else gates + bias


def _tanh_slope(grad: Tensor, out: Tensor) -> Tensor:
    return grad * (1 - out * out)


def _sigmoid_slope(grad: Tensor, out: Tensor) -> Tensor:
    return grad * (out * (1 - out))


@decomposes("_thnn_fused_lstm_cell.default")
def _lstm_cell(
    input_gates: Tensor, hidden_gates: Tensor, cx: Tensor, input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    i, f, g, o = gates.chunk(4, 1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    cy = f * cx + i * g
    return o * cy.tanh(), cy, torch.cat([i, f, g, o], 1)


@decomposes("_thnn_fused_lstm_cell_backward_impl.default")
def _lstm_cell_backward(
    grad_hy: Tensor | None, grad_cy: Tensor | None, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = workspace.chunk(4, 1)
    squashed = cy.tanh()
    grad_c = torch.zeros_like(cy) if grad_cy is None else grad_cy
    grad_o = torch.zeros_like(o)
    if grad_hy is not None:
        grad_c = grad_c + _tanh_slope(grad_hy * o, squashed)
        grad_o = _sigmoid_slope(grad_hy * squashed, o)
    grad_gates = torch.cat(
        [_sigmoid_slope(grad_c * g, i), _sigmoid_slope(grad_c * cx, f), _tanh_slope(grad_c * i, g), grad_o], 1
    )
    return grad_gates, grad_c * f, grad_gates.sum(0) if has_bias else None


@decomposes("_thnn_fused_gru_cell.default")
def _gru_cell(
    input_gates: Tensor, hidden_gates: Tensor, hx: Tensor, input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    ir, iz, new = _biased(input_gates, input_bias).chunk(3, 1)
    hr, hz, old = _biased(hidden_gates, hidden_bias).chunk(3, 1)
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    n = (new + r * old).tanh()
    return n + z * (hx - n), torch.cat([r, z, n, hx, old], 1)


@decomposes("_thnn_fused_gru_cell_backward.default")
def _gru_cell_backward(
    grad: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    r, z, n, hx, old = workspace.chunk(5, 1)
    grad_n = _tanh_slope(grad * (1 - z), n)
    grad_z = _sigmoid_slope(grad * (hx - n), z)
    grad_r = _sigmoid_slope(grad_n * old, r)
    of_input, of_hidden = torch.cat([grad_r, grad_z, grad_n], 1), torch.cat([grad_r, grad_z, grad_n * r], 1)
    biases = (of_input.sum(0), of_hidden.sum(0)) if has_bias else (None, None)
    return of_input, of_hidden, grad * z, *biases
