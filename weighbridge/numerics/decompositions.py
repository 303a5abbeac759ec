"""Vendor and composite overloads, rewritten into overloads that have rules.

A decomposition is called with the operands of the original and dispatches the replacements itself, so each of them is
recorded, rounded and replayed on its own. What is decomposed never reaches a tape. Operands that need no decomposition
are told apart before it is called (`rewriting.UNLESS`), or by it: then it returns NotImplemented.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch

from weighbridge.numerics import (  # noqa: F401 (they enter the table)
    alignment,
    bags,
    batch_norm,
    cells,
    factorisations,
    forms,
    grids,
    loss_scaling,
    losses,
    quantisation,
    rearrangements,
    reflections,
    sampling,
    shorthands,
    single,
)
from weighbridge.numerics.memo import forget, per_op
from weighbridge.numerics.rewriting import TABLE, UNLESS, Condition, Decomposition, decomposes
from weighbridge.numerics.rules import Op, composite, known, writes_out

aten = torch.ops.aten
Tensor = torch.Tensor


CONDITIONAL = frozenset(
    {"add", "add_", "sub", "sub_", "rsub", "pow", "tanh_backward", "sigmoid_backward", "native_layer_norm",
     "native_layer_norm_backward", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
     "native_batch_norm_backward", "lerp", "lerp_", "addcmul", "addcmul_", "addcdiv", "addcdiv_"}
)  # fmt: skip
"""Decomposed for some operands only, and ruled for the others."""


@per_op
def find(op: Op) -> Decomposition | None:
    """Returns the decomposition of an overload, or None."""
    own = _own(op)
    if own is not None or not op._schema.name.startswith("aten::") or (known(op) and not writes_out(op)):
        return own
    other = forms.counterpart(op)
    # A functional form rests on an in-place one only if that has a line of its own; the two would wait for each other.
    if other is None or not (supported(other) if forms.is_variant(op) else _own(other) is not None or known(other)):
        return None
    return forms.by_counterpart(op, other)


@per_op
def unless(op: Op) -> Condition | None:
    """Returns what tells for which operands an overload is not decomposed although it has a decomposition, or None."""
    function = find(op)
    return None if function is None else UNLESS.get(function)


def add(key: str, function: Decomposition) -> None:
    """Enters a decomposition for `library::name.overload` at run time."""
    TABLE[key] = function
    forget()


def _own(op: Op) -> Decomposition | None:
    name = op._schema.name.removeprefix("aten::")
    exact = TABLE.get(f"{name}.{op._overloadname or 'default'}")
    if exact is None and name.startswith("_foreach_"):
        return _foreach(name, op._overloadname)
    return exact


def supported(op: Op) -> bool:
    """True for an overload that has a rule (if only to refuse it), a decomposition, or one by PyTorch itself."""
    return known(op) or find(op) is not None or composite(op)


@decomposes("native_dropout.default")
def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    mask = torch.empty_like(x, dtype=torch.bool).bernoulli_(1 - p)
    return x * mask * (1.0 / (1.0 - p)), mask


@decomposes("native_dropout_backward.default")
def _native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    return grad * mask * scale


# Scaled additions are multiplications and additions, each with one right answer: no wide arithmetic and no log.
# Multiples such as 0.1*x lie on or within a rounding error of the midpoint between two results a few times in a
# hundred, so their log would be the largest of all. In float32 they are rules (`chains`).


def _float32(*operands: Any, **named: Any) -> bool:
    return all([v.dtype is torch.float32 for v in (*operands, *named.values()) if isinstance(v, Tensor)])


def _scaled(other: Any, alpha: Any) -> Any:
    return other if alpha == 1 else other * alpha


@decomposes("lerp.Scalar", "lerp.Tensor", unless=_float32)
def _lerp(a: Tensor, end: Tensor, weight: Any) -> Any:
    return a + (end - a) * weight


@decomposes("lerp_.Scalar", "lerp_.Tensor", unless=_float32)
def _lerp_(a: Tensor, end: Tensor, weight: Any) -> Any:
    return a.add_((end - a) * weight)


@decomposes("addcmul.default", unless=_float32)
def _addcmul(x: Tensor, first: Tensor, second: Tensor, *, value: Any = 1) -> Any:
    return x + _scaled(first * second, value)


@decomposes("addcmul_.default", unless=_float32)
def _addcmul_(x: Tensor, first: Tensor, second: Tensor, *, value: Any = 1) -> Any:
    return x.add_(_scaled(first * second, value))


@decomposes("addcdiv.default", unless=_float32)
def _addcdiv(x: Tensor, first: Tensor, second: Tensor, *, value: Any = 1) -> Any:
    return x + _scaled(first / second, value)


@decomposes("addcdiv_.default", unless=_float32)
def _addcdiv_(x: Tensor, first: Tensor, second: Tensor, *, value: Any = 1) -> Any:
    return x.add_(_scaled(first / second, value))


@decomposes("pow.Tensor_Scalar", unless=lambda x, exponent: exponent not in (2, 3))
def _power(x: Tensor, exponent: Any) -> Any:
    return x * x if exponent == 2 else x * x * x


def _with_alpha(name: str) -> Decomposition:
    packet = getattr(aten, name)

    def run(x: Any, other: Any, alpha: Any = 1) -> Any:
        return packet(x, other * alpha)

    return run


def _ruled_sum(x: Any, other: Any, alpha: Any = 1) -> bool:
    return alpha == 1 or (isinstance(other, Tensor) and _float32(x, other))


for _name in ("add", "add_", "sub", "sub_"):
    decomposes(f"{_name}.Tensor", f"{_name}.Scalar", unless=_ruled_sum)(_with_alpha(_name))


@decomposes("rsub.Tensor", "rsub.Scalar", unless=lambda x, other, alpha=1: alpha == 1)
def _reverse_subtraction(x: Tensor, other: Any, alpha: Any = 1) -> Any:
    return aten.rsub(x * alpha, other)


@decomposes("item.default")
def _item(x: Tensor) -> Any:
    return aten._local_scalar_dense(x)  # only a decomposition calls it here; a program's own arrives decomposed


# Split views that the caller may write to in place are views all the same.


@decomposes("unsafe_split.Tensor")
def _unsafe_split(x: Tensor, split_size: int, dim: int = 0) -> Any:
    return aten.split.Tensor(x, split_size, dim)


@decomposes("unsafe_split_with_sizes.default")
def _unsafe_split_with_sizes(x: Tensor, split_sizes: list[int], dim: int = 0) -> Any:
    return aten.split_with_sizes.default(x, split_sizes, dim)


@decomposes("round.decimals")
def _round_to_decimals(x: Tensor, *, decimals: int = 0) -> Tensor:
    """Both scalings are what PyTorch's kernels do; between them lies one rounding with one right answer."""
    scale = 10.0 ** abs(decimals)
    if decimals == 0:
        return torch.round(x)
    return torch.round(x * scale) / scale if decimals > 0 else torch.round(x / scale) * scale


# CUDA keeps no buffer for the backward of this one, the CPU does.


@decomposes("log_sigmoid_forward.default")
def _log_sigmoid(x: Tensor) -> tuple[Tensor, Tensor]:
    return aten.softplus.default(-x.contiguous()).neg(), torch.empty(0, dtype=x.dtype, device=x.device)


@decomposes("log_sigmoid_backward.default")
def _log_sigmoid_backward(grad: Tensor, x: Tensor, buffer: Tensor) -> Tensor:
    return grad * torch.sigmoid(-x)


# --- activations ----------------------------------------------------------------------------------------------------


def _single(*operands: Tensor) -> bool:
    """True where intermediate results may be rounded to the operands' own type, as PyTorch's kernels do."""
    return all(t.dtype == torch.float32 for t in operands)


@decomposes("tanh_backward.default", unless=lambda grad, output: not _single(grad, output))
def _tanh_backward(grad: Tensor, output: Tensor) -> Any:
    return grad * (1 - output * output)


@decomposes("sigmoid_backward.default", unless=lambda grad, output: not _single(grad, output))
def _sigmoid_backward(grad: Tensor, output: Tensor) -> Any:
    return grad * (1 - output) * output


@decomposes("_prelu_kernel.default")
def _prelu(x: Tensor, weight: Tensor) -> Tensor:
    return torch.where(x > 0, x, x * weight)


@decomposes("_prelu_kernel_backward.default")
def _prelu_backward(grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    return torch.where(x > 0, grad, grad * weight), torch.where(x > 0, zero, x * grad)


@decomposes("celu.default")
def _celu(x: Tensor, alpha: float = 1.0) -> Any:
    return aten.elu.default(x, alpha, 1.0, 1.0 / alpha)


@decomposes("celu_.default")
def _celu_(x: Tensor, alpha: float = 1.0) -> Any:
    return aten.elu_.default(x, alpha, 1.0, 1.0 / alpha)


@decomposes("glu.default")
def _glu(x: Tensor, dim: int = -1) -> Tensor:
    a, b = aten.split.Tensor(x, x.shape[dim] // 2, dim)
    return a * torch.sigmoid(b)  # type: ignore[no-any-return]


@decomposes("glu_backward.default")
def _glu_backward(grad: Tensor, x: Tensor, dim: int) -> Tensor:
    a, b = aten.split.Tensor(x, x.shape[dim] // 2, dim)
    s = torch.sigmoid(b)
    return torch.cat([grad * s, grad * a * s * (1 - s)], dim)


# --- norms ----------------------------------------------------------------------------------------------------------


def _norm_except(v: Tensor, dim: int) -> Tensor:
    others = [d for d in range(v.dim()) if d != dim % v.dim()]
    return cast(Tensor, aten.linalg_vector_norm.default(v, 2, others, True))


@decomposes("_weight_norm_interface.default")
def _weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> tuple[Tensor, Tensor]:
    norm = _norm_except(v, dim)
    return v * (g / norm), norm


@decomposes("_weight_norm_interface_backward.default")
def _weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norm: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    others = [d for d in range(v.dim()) if d != dim % v.dim()]
    along = (grad * v).sum(others, keepdim=True) / norm
    return (grad - v * (along / norm)) * (g / norm), along


# --- group norm: layer norm of each group, then one factor and one shift for each channel --------------------------


@decomposes("native_group_norm.default")
def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, hxw: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    size = c // group * hxw
    out, mean, rstd = aten.native_layer_norm.default(x.contiguous().view(n * group, size), [size], None, None, eps)
    out = out.view(n, c, hxw)
    if weight is not None:
        out = out * weight.view(1, c, 1)
    if bias is not None:
        out = out + bias.view(1, c, 1)
    return out.view(x.shape), mean.view(n, group), rstd.view(n, group)


@decomposes("native_group_norm_backward.default")
def _group_norm_backward(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, n: int, c: int, hxw: int, group: int,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    rows, size = n * group, c // group * hxw
    grad, x = grad.contiguous().view(n, c, hxw), x.contiguous()
    grad_x = grad_weight = grad_bias = None
    m, r = mean.view(rows, 1), rstd.view(rows, 1)
    if output_mask[0]:
        scaled = grad if weight is None else grad * weight.view(1, c, 1)
        grad_x = aten.native_layer_norm_backward.default(
            scaled.view(rows, size), x.view(rows, size), [size], m, r, None, None, [True, False, False]
        )[0].view(x.shape)
    if output_mask[1]:
        normal = ((x.view(rows, size) - m) * r).view(n, c, hxw)
        grad_weight = (grad * normal).sum((0, 2))
    if output_mask[2]:
        grad_bias = grad.sum((0, 2))
    return grad_x, grad_weight, grad_bias


def _overflowed(grads: list[Tensor], grad_scale: Tensor | None, found_inf: Tensor | None) -> bool:
    """True if the gradient scaler found an overflow and the update is left out; otherwise unscales the gradients."""
    if found_inf is not None and found_inf.item():
        return True
    if grad_scale is not None:
        for grad in grads:
            grad.div_(grad_scale)
    return False


def _fused_adam(decoupled: bool) -> Decomposition:
    def run(
        params: list[Tensor], grads: list[Tensor], exp_avgs: list[Tensor], exp_avg_sqs: list[Tensor],
        max_exp_avg_sqs: list[Tensor], state_steps: list[Tensor], *, lr: float | Tensor, beta1: float, beta2: float,
        weight_decay: float, eps: float, amsgrad: bool, maximize: bool, grad_scale: Tensor | None = None,
        found_inf: Tensor | None = None,
    ) -> None:  # fmt: skip
        if _overflowed(grads, grad_scale, found_inf):
            return
        rate = lr.item() if isinstance(lr, Tensor) else lr
        for i, (p, grad, m, v) in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs, strict=True)):
            step = state_steps[i].item()
            g = -grad if maximize else grad
            if weight_decay and decoupled:
                p.mul_(1 - rate * weight_decay)
            elif weight_decay:
                g = g + p * weight_decay
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            second = v
            if amsgrad:
                second = max_exp_avg_sqs[i].copy_(torch.maximum(max_exp_avg_sqs[i], v))
            denominator = (second.sqrt() / math.sqrt(1 - beta2**step)).add_(eps)
            p.addcdiv_(m, denominator, value=-rate / (1 - beta1**step))

    return run


TABLE.update({f"_fused_adamw_.{o}": _fused_adam(True) for o in ("default", "tensor_lr")})
TABLE.update({f"_fused_adam_.{o}": _fused_adam(False) for o in ("default", "tensor_lr")})


@decomposes("_fused_sgd_.default", "_fused_sgd_.tensor_lr")
def _fused_sgd(
    params: list[Tensor], grads: list[Tensor], momentum_buffer_list: list[Tensor], *, weight_decay: float,
    momentum: float, lr: float | Tensor, dampening: float, nesterov: bool, maximize: bool, is_first_step: bool,
    grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
) -> None:  # fmt: skip
    if _overflowed(grads, grad_scale, found_inf):
        return
    rate = lr.item() if isinstance(lr, Tensor) else lr
    for i, (p, grad) in enumerate(zip(params, grads, strict=True)):
        g = -grad if maximize else grad
        if weight_decay:
            g = g + p * weight_decay
        if momentum:
            buffer = momentum_buffer_list[i]
            if is_first_step:
                buffer.copy_(g)
            else:
                buffer.mul_(momentum).add_(g * (1 - dampening))
            g = g + buffer * momentum if nesterov else buffer
        p.sub_(g * rate)


@decomposes("_fused_adagrad_.default", "_fused_adagrad_.tensor_lr")
def _fused_adagrad(
    params: list[Tensor], grads: list[Tensor], state_sums: list[Tensor], state_steps: list[Tensor], *,
    lr: float | Tensor, lr_decay: float, weight_decay: float, eps: float, maximize: bool,
    grad_scale: Tensor | None = None, found_inf: Tensor | None = None,
) -> None:  # fmt: skip
    if _overflowed(grads, grad_scale, found_inf):
        return
    rate = lr.item() if isinstance(lr, Tensor) else lr
    for p, grad, total, step in zip(params, grads, state_sums, state_steps, strict=True):
        g = -grad if maximize else grad
        if weight_decay:
            g = g + p * weight_decay
        total.addcmul_(g, g)
        p.addcdiv_(g, total.sqrt().add_(eps), value=-rate / (1 + (step.item() - 1) * lr_decay))


@decomposes("_foreach_powsum.Scalar")
def _foreach_sum_of_powers(x: list[Tensor], ord: Any = 2, dtype: torch.dtype | None = None) -> list[Tensor]:
    return [(t if dtype is None else t.to(dtype)).abs().pow(ord).sum() for t in x]


_FOREACH_RENAMES = {"norm": "linalg_vector_norm", "zero": "zero", "copy": "copy", "lerp": "lerp"}


def _foreach(name: str, overload: str) -> Decomposition | None:
    """Turns `_foreach_op(lists, ...)` into one `op` per element."""
    base = name[len("_foreach_") :]
    inplace = base.endswith("_")
    base = base.rstrip("_")
    target = _FOREACH_RENAMES.get(base, base) + ("_" if inplace else "")
    if not hasattr(aten, target):
        target = base  # maximum and minimum have no in-place form of their own
    if not hasattr(aten, target):
        return None
    packet = getattr(aten, target)

    def run(*args: Any, **kwargs: Any) -> list[Any] | None:
        length = len(args[0])

        def at(value: Any, i: int) -> Any:
            return value[i] if isinstance(value, (list, tuple)) and len(value) == length else value

        results = []
        for i in range(length):
            own = [at(v, i) for v in args]
            extra = {k: at(v, i) for k, v in kwargs.items() if v is not None}
            if base == "copy":
                extra.pop("non_blocking", None)
            if base in ("addcmul", "addcdiv") and len(own) == 4:
                extra["value"] = own.pop()
                if isinstance(extra["value"], Tensor):
                    extra["value"] = extra["value"].item()
            result = packet(*own, **extra)
            if inplace and result is not own[0]:
                own[0].copy_(result)
            results.append(result)
        return None if inplace else results

    return run
