"""Examples of `weighbridge.numerics.families.losses`."""

from __future__ import annotations

from support.operator_examples.example import Calls, Example, Maker, Op, aten, of


@of("nll_loss_forward.default", "nll_loss_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield from _nll(make, op, (9, 6), (9,))


@of("nll_loss2d_forward.default", "nll_loss2d_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield from _nll(make, op, (3, 6, 4, 4), (3, 4, 4))


def _nll(make: Maker, op: Op, shape: tuple[int, ...], target_shape: tuple[int, ...]) -> Calls:
    forward = aten.nll_loss_forward.default if len(shape) == 2 else aten.nll_loss2d_forward.default
    for reduction in (0, 1, 2):
        for weight in (None, make.positive(6)):
            x, target = make(*shape), make.index(6, *target_shape)
            target.view(-1)[1] = -100
            if op is forward:
                yield Example(op, (x, target, weight, reduction, -100))
            else:
                out, total = forward(x, target, weight, reduction, -100)
                yield Example(op, (make(*out.shape), x, target, weight, reduction, -100, total))


@of("mse_loss.default", "smooth_l1_loss.default", "huber_loss.default")
def _(make: Maker, op: Op) -> Calls:
    for reduction in (0, 1, 2):
        yield Example(op, (make(5, 30), make(5, 30), reduction))


@of("mse_loss_backward.default", "smooth_l1_loss_backward.default", "huber_loss_backward.default")
def _(make: Maker, op: Op) -> Calls:
    more = () if "mse" in op._schema.name else (0.7,)
    yield Example(op, (make(5, 30), make(5, 30), make(5, 30), 0, *more))
    yield Example(op, (make(), make(5, 30), make(5, 30), 1, *more))


@of("binary_cross_entropy_with_logits.default")
def _(make: Maker, op: Op) -> Calls:
    for reduction in (0, 1, 2):
        yield Example(op, (make(5, 30), make.fraction(5, 30), None, None, reduction))
    yield Example(op, (make(5, 30), make.fraction(5, 30), make.positive(30), make.positive(30), 1))


@of("binary_cross_entropy.default")
def _(make: Maker, op: Op) -> Calls:
    for reduction in (0, 1, 2):
        yield Example(op, (make.fraction(5, 30), make.fraction(5, 30).round(), make.positive(30), reduction))
    yield Example(op, (make.fraction(5, 30), make.fraction(5, 30), None, 1))


@of("binary_cross_entropy_backward.default")
def _(make: Maker, op: Op) -> Calls:
    yield Example(op, (make(5, 30), make.fraction(5, 30), make.fraction(5, 30), make.positive(30), 0))
    yield Example(op, (make(), make.fraction(5, 30), make.fraction(5, 30), None, 1))
