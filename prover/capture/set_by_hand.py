"""Reads how a training loop sets the numbers of its optimizer: `group["lr"] = get_lr(step)`.

Assignments to the groups of an optimizer are looked for in the source of the functions that run, and in those that they
call. What is assigned is read as a formula (`prover.capture.code_formulas`) of the loop's counters: names that a `for`
binds to numbers, or that are counted up. How far those are is looked up in the running program at each step, and
recorded as the counts of a schedule are.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import weighbridge
from prover.capture import code_formulas
from prover.capture.code_formulas import Later, Reading, Text, Unknown, UnreadableError, Value
from weighbridge.core.errors import WeighbridgeError
from weighbridge.transcript.formula_arithmetic import tolerance
from weighbridge.transcript.formula_terms import COUNTS, Formulas

KEYS = ("lr", "momentum", "weight_decay")
"""What is looked for."""

_TRIED = (*range(33), *range(48, 1025, 64))
"""At which counts a reading is compared with what the source computes."""
_OURS = (str(Path(__file__).parents[1]), str(Path(weighbridge.__file__).parent), str(Path(torch.__file__).parent), "<")
_MOST = 64
"""Assignments and calls that are looked at."""
_LOOPS = (ast.For, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.Lambda)

Path_ = tuple[ast.AST, ...]
"""A node, after all that it lies in."""


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter of the program.

    Attributes:
        code: The function (or module) that has it.
        name: Its name.
    """

    code: CodeType
    name: str

    def now(self) -> int:
        """Returns what it is now; 0 if that is no natural number."""
        found = _local(_frame_of(self.code), self.name)
        return found if type(found) is int and found >= 0 else 0


@dataclass(slots=True)
class Settings:
    """What was read.

    Attributes:
        counters: The counters, in the order of their variables.
        values: For each optimizer and group, the formulas of each key.
    """

    counters: list[Counter] = field(default_factory=list)
    values: dict[tuple[int, int], dict[str, list[str]]] = field(default_factory=dict)


def read(optimizers: Sequence[torch.optim.Optimizer], first: int) -> Settings:
    """Looks through the running program for how it sets the numbers of some optimizers.

    Args:
        optimizers: The optimizers.
        first: Number of the first variable of `COUNTS` that is free.

    Returns:
        The formulas that give what the source computes, for counters up to a thousand.
    """
    found = Settings()
    frames = list(_frames())
    for frame in frames:
        tree = code_formulas.parsed(frame.f_code.co_filename)
        if tree is None:
            continue
        here = [path for path in _paths(tree) if _is_setting(path[-1])][:_MOST]
        for path in here:
            for number, optimizer in enumerate(optimizers):
                for index, group in enumerate(optimizer.param_groups):
                    setting = _Setting(frame, tree, path, index, group)
                    text = setting.tried(found.counters, first)
                    texts = found.values.setdefault((number, index), {}).setdefault(setting.key, [])
                    if text is not None and text not in texts:
                        texts.append(text)
    return found


class _Setting:
    """One assignment to the groups of an optimizer, seen from a function that runs."""

    def __init__(self, frame: FrameType, tree: ast.Module, path: Path_, index: int, group: Mapping[str, Any]) -> None:
        self._frame, self._tree, self._path, self._index, self._group = frame, tree, path, index, group
        line: Any = path[-1]
        self._target, self._given = line.targets[0], line.value
        self.key = str(self._target.slice.value)

    def tried(self, counters: list[Counter], first: int) -> str | None:
        """Returns the formula, if it gives what the source computes; adds the counters that it needs."""
        known = list(counters)

        def variable(name: str) -> Text:
            counter = Counter(self._frame.f_code, name)
            if counter not in known:
                known.append(counter)
            if first + known.index(counter) >= len(COUNTS):
                raise UnreadableError
            return Text(COUNTS[first + known.index(counter)])

        try:
            text = self._value(variable)
            if not isinstance(text, Text):
                return None  # a constant
            parsed = Formulas.parse({"set": code_formulas.formula(text)})
            for at in _TRIED:
                given = parsed.evaluate("set", at + 1, counts=[at] * len(COUNTS))
                if not abs(float(self._value(partial(_always, at))) - given[0]) <= tolerance(given, 0.0):
                    return None
        except (UnreadableError, WeighbridgeError, ArithmeticError, LookupError, TypeError, ValueError, RecursionError):
            return None
        counters[:] = known
        return text.text

    def _value(self, variable: Callable[[str], Value]) -> Value:
        owner = next((n for n in range(len(self._path) - 1, -1, -1) if isinstance(self._path[n], _FUNCTIONS)), 0)
        if code_formulas.starts(self._path[owner], self._frame.f_code):
            reading = self._at(self._path[owner:], variable)
        else:
            reading = self._called(self._path[owner:], variable)
        self._bind_group(reading)
        return reading.value(self._given)

    def _at(self, path: Path_, variable: Callable[[str], Value]) -> Reading:
        """What names stand for at a place of the function that runs."""
        frame = self._frame
        names = _stored(path[0])
        scope: dict[str, Value] = {name: Later(partial(_local, frame, name)) for name in names}
        reading = Reading(scope, (_Outer(frame), frame.f_globals, frame.f_builtins))
        _go(reading, path, lambda name: self._counter(name, variable))
        return reading

    def _counter(self, name: str, variable: Callable[[str], Value]) -> Value:
        now = _local(self._frame, name)
        if isinstance(now, Unknown) or type(now) is int:
            return variable(name)
        return now if isinstance(now, torch.optim.Optimizer) else Unknown()

    def _called(self, path: Path_, variable: Callable[[str], Value]) -> Reading:
        """What names stand for in a function that the one that runs calls."""
        function: Any = path[0]
        if not isinstance(function, ast.FunctionDef):
            raise UnreadableError
        for call in _paths(self._tree):
            node: Any = call[-1]
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != function.name:
                continue
            around = next((n for n in range(len(call) - 1, -1, -1) if isinstance(call[n], _FUNCTIONS)), 0)
            if not code_formulas.starts(call[around], self._frame.f_code):
                continue
            outer = self._at(call[around:], variable)
            names = [each.arg for each in function.args.args]
            scope: dict[str, Value] = dict.fromkeys(names, Unknown())
            given = [*zip(names, node.args, strict=False), *((each.arg, each.value) for each in node.keywords)]
            for name, each in given:
                try:
                    scope[str(name)] = outer.value(each)
                except UnreadableError:
                    scope[str(name)] = Unknown()
            reading = Reading(scope, (self._frame.f_globals, self._frame.f_builtins))
            _go(reading, path, lambda _: Unknown(), called=True)
            return reading
        raise UnreadableError

    def _bind_group(self, reading: Reading) -> None:
        """Lets the name of the group stand for this one."""
        owner = self._target.value
        if isinstance(owner, ast.Name):
            reading.scope[owner.id] = {k: v for k, v in self._group.items() if k not in ("params", self.key)}
        elif not (isinstance(owner, ast.Subscript) and reading.value(owner.slice) == self._index):
            raise UnreadableError


def _go(reading: Reading, path: Path_, counter: Callable[[str], Value], *, called: bool = False) -> None:
    """Carries out what comes before a place in the loops that it lies in; of a function that is called, all of it."""
    inside = called
    for node, next_node in pairwise(path):
        if isinstance(node, _LOOPS):
            inside = True
            counted = {name for each in ast.walk(node) if (name := _counts(each)) is not None}
            if isinstance(node, ast.For):
                counted |= {each.id for each in ast.walk(node.target) if isinstance(each, ast.Name)}
            for name in _stored(node) - counted:
                reading.scope[name] = Unknown()
            for name in counted:
                reading.scope[name] = Later(partial(counter, name))
        body = next((body for body in _bodies(node) if any(each is next_node for each in body)), None)
        if body is not None and inside:
            for line in body:
                if line is next_node:
                    break
                if _counts(line) is None:
                    reading.run([line])


class _Outer(Mapping[str, Any]):
    """The names of a frame, read one by one."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame

    def __getitem__(self, name: str) -> Any:
        found = _local(self._frame, name)
        if isinstance(found, Unknown):
            raise KeyError(name)
        return found

    def __contains__(self, name: object) -> bool:
        return not isinstance(_local(self._frame, str(name)), Unknown)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


def _local(frame: FrameType | None, name: str) -> Any:
    """What a name is in a frame, without keeping alive what else is there."""
    if frame is None:
        return Unknown()
    names = frame.f_locals
    try:
        return names.get(name, Unknown())
    finally:
        if names is not frame.f_globals and type(names) is dict:
            names.clear()  # a copy, which the frame would keep


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith(_OURS) and "site-packages" not in filename:
            yield frame
        frame = frame.f_back


def _frame_of(code: CodeType) -> FrameType | None:
    return next((frame for frame in _frames() if frame.f_code is code), None)


def _paths(node: ast.AST, before: Path_ = ()) -> Iterator[Path_]:
    path = (*before, node)
    yield path
    for child in ast.iter_child_nodes(node):
        yield from _paths(child, path)


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        found = getattr(node, name, None)
        if isinstance(found, list):
            yield found


def _stored(node: ast.AST) -> set[str]:
    """The names that a node assigns, but for those in functions within it."""
    found: set[str] = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
            found.add(child.id)
        if isinstance(child, ast.arg):
            found.add(child.arg)
        if not isinstance(
            child, (*_FUNCTIONS, ast.ClassDef, ast.GeneratorExp, ast.ListComp, ast.SetComp, ast.DictComp)
        ):
            found |= _stored(child)
    return found


def _counts(node: ast.AST) -> str | None:
    """The name that a statement counts up; None if it is no such statement."""
    up = isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add)
    return node.target.id if up and isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) else None


def _always(value: int, _: str) -> int:
    return value


def _is_setting(node: ast.AST) -> bool:
    """True for an assignment to a key of something, such as `group["lr"] = ...`."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Subscript):
        return False
    key = node.targets[0].slice
    return isinstance(key, ast.Constant) and key.value in KEYS
