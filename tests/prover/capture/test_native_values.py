"""Looks at what no attribute shows: objects that are written in C, members of modules, and what stands beside items."""

from __future__ import annotations

import contextvars
import operator
import sys
import types
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from prover.capture.native_values import NothingToldError, contexts, held_by
from prover.capture.python_objects import Look, Looking

VARIABLE = contextvars.ContextVar("variable", default=1)


class Holder:
    def __init__(self, value: Any) -> None:
        self.value = value


class Texts(dict[str, int]):
    pass


class Row(list[int]):
    scale = 1


class Meta(type):
    scale = 1


class OfMeta(metaclass=Meta):
    pass


class Scheduler(torch.optim.lr_scheduler.StepLR):
    phase = 1


def _look(value: Any) -> Look:
    return Looking(lambda address: None).look([Holder(value)])


PAIRS: dict[str, Callable[[int], Any]] = {
    "slice": lambda n: slice(n),
    "range": lambda n: range(n),
    "decimal": lambda n: Decimal(n),
    "fraction": lambda n: Fraction(n, 7),
    "path": lambda n: Path(str(n)),
    "time": lambda n: timedelta(n),
    "item": lambda n: operator.itemgetter(n),
    "factory": lambda n: defaultdict(int if n == 1 else float),
    "longest": lambda n: deque([0], maxlen=n),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_two_values_are_told_apart_and_equal_ones_are_not(kind: str) -> None:
    """The second object may lie where the first one lay."""
    one, again, other = (_look(PAIRS[kind](n)).found for n in (1, 1, 2))
    assert one == again
    assert one != other


class World:
    """What is changed in place, seen through something that leads to it."""

    def __init__(self) -> None:
        self.settings = {"scale": 1}
        self.memory = bytearray(3)
        self.texts, self.row = Texts(a=1), Row([1])
        self.partial = partial(int, 1)
        self.scheduler = Scheduler(torch.optim.SGD(nn.Linear(1, 1).parameters(), 0.1), 1)
        self.behind = Holder(1)

    def roots(self) -> list[Any]:
        return [
            self.settings.get, types.MappingProxyType(self.settings), self.settings.items(), memoryview(self.memory),
            VARIABLE, self.texts, self.row, self.partial, OfMeta, self.scheduler, weakref.ref(self.behind),
        ]  # fmt: skip


CHANGES: dict[str, tuple[Callable[[World, pytest.MonkeyPatch], Any], set[int]]] = {
    "container": (lambda w, m: w.settings.update(scale=2), {0, 1, 2}),
    "memory": (lambda w, m: w.memory.__setitem__(0, 1), {3}),
    "context": (lambda w, m: VARIABLE.set(2), {4}),
    "attribute of a dict": (lambda w, m: setattr(w.texts, "scale", 2), {5}),
    "attribute of a list's class": (lambda w, m: m.setattr(Row, "scale", 2), {6}),
    "attribute of a partial": (lambda w, m: setattr(w.partial, "scale", 2), {7}),
    "attribute of a metaclass": (lambda w, m: m.setattr(Meta, "scale", 2), {8}),
    "attribute of a scheduler": (lambda w, m: setattr(w.scheduler, "phase", 2), {9}),
    "step of a scheduler": (lambda w, m: w.scheduler.step(), set()),
    "behind a weak reference": (lambda w, m: setattr(w.behind, "value", 2), {10}),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen_through_what_leads_to_it(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        world = World()
        roots = world.roots()
        make, seen_by = CHANGES[change]
        before = [_look(each).found for each in roots]
        make(world, monkeypatch)
        after = [_look(each).found for each in roots]
        assert {at for at, found in enumerate(before) if found != after[at]} == seen_by

    contextvars.copy_context().run(run)


# -- modules -----------------------------------------------------------------------------------------------------------

SOURCE = """
SCALE = 1.0
OPTIONS = {"scale": 1.0}
def scaled(x):
    return x * SCALE
"""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A module of the program's, and one in it."""
    found = types.ModuleType("settings_of_a_program")
    found.__file__ = str(tmp_path / "settings_of_a_program.py")
    exec(compile(SOURCE, found.__file__, "exec"), found.__dict__)
    inner = types.ModuleType("inner")
    inner.__file__, inner.LIST = found.__file__, [1.0]  # type: ignore[attr-defined]
    found.inner = inner  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, found.__name__, found)
    monkeypatch.setitem(globals(), "program", found)
    return found


program: Any = None


def _by_name() -> Any:
    return program.SCALE, program.OPTIONS["scale"]


def _by_function(x: float) -> Any:
    return program.scaled(x)


def _by_module_in_it() -> Any:
    return program.inner.LIST[0]


def _by_import() -> Any:
    from settings_of_a_program import (  # type: ignore[import-not-found]
        OPTIONS,
        SCALE,
    )

    return OPTIONS, SCALE


def test_members_of_the_programs_modules_are_seen(settings: Any) -> None:
    functions = (_by_name, _by_function, _by_module_in_it, _by_import, Holder(settings))

    def looks() -> list[list[Any]]:
        return [Looking(lambda address: None).look([each]).found for each in functions]

    def seen(before: list[list[Any]]) -> list[bool]:
        return [one != other for one, other in zip(before, looks(), strict=True)]

    before = looks()
    settings.SCALE = None  # the next number may lie where this one lay
    settings.SCALE = 2.0
    assert seen(before) == [True, True, False, True, True]
    before = looks()
    settings.OPTIONS["scale"] = 2.0
    assert seen(before) == [True, False, False, True, True]
    before = looks()
    settings.inner.LIST[0] = 2.0
    assert seen(before) == [False, False, True, False, False]
    before = looks()
    settings.unnamed = 2.0
    assert seen(before) == [False, False, False, False, True]


# -- PyTorch -----------------------------------------------------------------------------------------------------------


def test_hooks_of_all_optimizers_and_saved_tensors_are_seen() -> None:
    before = _look(None).found
    hook = register_optimizer_step_post_hook(lambda *given: None)
    assert _look(None).found != before
    hook.remove()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert _look(None).found != before
    with torch.device("cpu"):
        assert _look(None).found != before
    assert _look(None).found == before
    assert len(contexts()) > 10


@pytest.mark.parametrize("value", [len, object, sys.stdout, torch.Size([1]), nn.Linear(1, 1)])
def test_what_says_nothing_is_refused(value: Any) -> None:
    with pytest.raises(NothingToldError):
        held_by(value, torch.Size if value is object else type(value))
