"""A gradient is a parameter's alone until something else holds it or its memory."""

from __future__ import annotations

import torch
from torch import nn

from prover.capture.gradient_memory import held_alone


def test_a_gradient_is_held_alone_until_something_else_holds_it() -> None:
    parameter = nn.Parameter(torch.zeros(3))
    assert not held_alone(parameter)
    parameter.grad = torch.ones(3)
    assert held_alone(parameter)
    held = parameter.grad
    assert not held_alone(parameter)
    view = held[1:]
    del held
    assert not held_alone(parameter)
    del view
    assert held_alone(parameter)
