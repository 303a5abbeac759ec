"""Looks at what Python holds: whatever a function could decide by is seen to change, and nothing else is."""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from prover.capture.python_objects import Looking, TooMuchError

LIMIT = {"value": 3}


@dataclass(slots=True)
class Settings:
    scale: float = 1.0
    names: list[str] = field(default_factory=lambda: ["a"])


class Layer(nn.Module):
    factor = 2

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)
        self.settings = Settings()
        self.array = np.zeros(4)
        self.bytes = bytearray(3)
        self.random = random.Random(1)
        self.numbers = np.random.default_rng(1)
        self.old_numbers = np.random.RandomState(1)
        self.register_buffer("buffer", torch.zeros(2))

    @property
    def twice(self) -> int:
        return 2 * self.factor

    def forward(self, x: Tensor) -> Tensor:
        return self.helper(self.inner(x)) * LIMIT["value"]

    def helper(self, x: Tensor) -> Tensor:
        return x * self.twice * self.settings.scale


class World:
    def __init__(self) -> None:
        self.layer = Layer()
        self.optimizer = torch.optim.AdamW(self.layer.parameters())
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1)
        count = [1]
        layer, scheduler = self.layer, self.scheduler

        def function(x: Tensor, power: int = 2) -> Any:
            return layer(x) ** power * len(count), scheduler

        self.count, self.function = count, functools.partial(function)
        self.roots = [self.function, self.layer, self.optimizer]


def other(self: Layer, x: Tensor) -> Tensor:
    return x


CHANGES: dict[str, Callable[[World, pytest.MonkeyPatch], Any]] = {
    "closure": lambda w, m: w.count.append(1),
    "global": lambda w, m: m.setitem(LIMIT, "value", 4),
    "type of a value": lambda w, m: m.setitem(LIMIT, "value", 3.0),
    "default": lambda w, m: setattr(w.function.func, "__defaults__", (3,)),
    "code": lambda w, m: setattr(w.function.func, "__code__", w.function.func.__code__.replace(co_consts=(None, 1))),
    "slot": lambda w, m: setattr(w.layer.settings, "scale", 2.0),
    "list in a slot": lambda w, m: w.layer.settings.names.append("b"),
    "array": lambda w, m: w.layer.array.__setitem__(2, 1.0),
    "bytes": lambda w, m: w.layer.bytes.__setitem__(1, 7),
    "Python's generator": lambda w, m: w.layer.random.random(),
    "NumPy's generator": lambda w, m: w.layer.numbers.random(),
    "NumPy's old generator": lambda w, m: w.layer.old_numbers.rand(),
    "class attribute": lambda w, m: m.setattr(Layer, "factor", 3),
    "method": lambda w, m: m.setattr(Layer, "helper", other),
    "property": lambda w, m: m.setattr(Layer, "twice", property(lambda self: 5)),
    "forward of a class": lambda w, m: m.setattr(nn.Linear, "forward", other),
    "forward of an object": lambda w, m: setattr(w.layer, "forward", lambda x: x),
    "mode": lambda w, m: w.layer.inner.eval(),
    "hook": lambda w, m: w.layer.inner.register_forward_hook(lambda *a: None),
    "hook of a gradient": lambda w, m: w.layer.inner.weight.register_hook(lambda g: g),
    "hook after accumulation": lambda w, m: w.layer.inner.weight.register_post_accumulate_grad_hook(lambda p: None),
    "requires_grad": lambda w, m: w.layer.inner.bias.requires_grad_(False),
    "shape": lambda w, m: setattr(w.layer, "buffer", torch.zeros(3)),
    "hyperparameter": lambda w, m: w.optimizer.param_groups[0].update(amsgrad=True),
    "autocast": lambda w, m: torch.set_autocast_enabled("cpu", True),
    "default type": lambda w, m: torch.set_default_dtype(torch.float64),
    "global hook": lambda w, m: nn.modules.module.register_module_forward_hook(lambda *a: None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_and_named(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world, looking = World(), Looking(lambda address: None)
    before = looking.look(world.roots)
    made = CHANGES[change](world, monkeypatch)
    try:
        now = looking.look(world.roots)
        assert before.found != now.found
        assert looking.difference(world.roots, before, now)
    finally:
        torch.set_autocast_enabled("cpu", False)
        torch.set_default_dtype(torch.float32)
        if change == "global hook":
            made.remove()


def test_nothing_else_is_seen() -> None:
    world, looking = World(), Looking(lambda address: None)
    before = looking.look(world.roots)
    with torch.no_grad():
        world.layer.inner.weight.add_(1)
    world.scheduler.step()
    now = looking.look(world.roots)
    assert before.found == now.found
    assert looking.difference(world.roots, before, now) is None


def test_an_iterator_is_told() -> None:
    looking = Looking(lambda address: None)
    assert looking.look([[itertools.count()]]).iterator == "count"
    assert looking.look([World().roots]).iterator is None


def test_rates_schedules_and_gradients_are_apart() -> None:
    world, looking = World(), Looking(lambda address: None)
    before = looking.look(world.roots)
    world.optimizer.step()
    world.scheduler.step()
    world.layer.inner.weight.grad = torch.zeros(3, 3)
    now = looking.look(world.roots)
    assert before.numbers[0, 0, "lr"] != now.numbers[0, 0, "lr"]
    assert list(now.schedules.values()) == [(2, 1)]
    assert before.grads != now.grads
    assert list(now.living().values()) == [world.scheduler]
    assert now.kinds == {torch.optim.AdamW}


def test_a_world_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prover.capture.python_objects.MOST", 100)
    with pytest.raises(TooMuchError, match="more Python objects"):
        Looking(lambda address: None).look([[[n] for n in range(200)]])
