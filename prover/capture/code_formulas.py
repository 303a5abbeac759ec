"""Reads a formula from the source of a function or of a loop that computes a number, such as a learning rate.

The source is not run: a program's arithmetic on numbers (`+ - * / // % **`, comparisons, conditions, `min`, `max`, the
usual functions of `math` and NumPy, calls of functions that do the same) is carried out where the numbers are known,
and written down as a formula where they depend on what changes from step to step. Whatever else the source does has no
formula. It is a reading, not a proof: who declares it tries it first.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import inspect
import linecache
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial
from types import CodeType, FunctionType, LambdaType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from weighbridge.transcript.formula_terms import MAX_LENGTH

_DEEPEST = 12
"""Calls within calls, and names that stand for others."""


class UnreadableError(Exception):
    """The source does something that has no formula."""


@dataclass(frozen=True, slots=True)
class Text:
    """A formula, as the value of an expression that is not known yet."""

    text: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The value of a name that cannot be read; only using it is an error."""


@dataclass(frozen=True, slots=True)
class Later:
    """The value of a name that is asked for when the name is read.

    Attributes:
        value: Returns it.
    """

    value: Callable[[], Any]


Value = Any
"""A `Text`, an `Unknown`, a `Later`, or an object of the program."""

_NUMBERS = (bool, int, float, np.integer, np.floating)

_OPERATORS: Mapping[type[ast.operator], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.Pow: ("**", operator.pow),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Mod: ("%", operator.mod),
}
_COMPARISONS: Mapping[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}
_FUNCTIONS: Mapping[Any, str] = {
    math.cos: "cos", np.cos: "cos", math.sqrt: "sqrt", np.sqrt: "sqrt", math.exp: "exp", np.exp: "exp",
    math.log: "log", np.log: "log", math.floor: "floor", np.floor: "floor",
    min: "min", np.minimum: "min", max: "max", np.maximum: "max",
}  # fmt: skip
_CALLED = {*_FUNCTIONS, float, int, abs, round, len, math.ceil, np.ceil, math.pow, np.power, np.float32, np.float64}
"""What may be called on known numbers."""


def of_function(function: Any, at: str) -> str | None:
    """Returns the formula of a function of one number.

    Args:
        function: A function of the program, or a lambda.
        at: The formula of its argument.

    Returns:
        The formula; None if the source is not there or does something that has none.
    """
    try:
        before: tuple[Any, ...] = ()
        named: Mapping[str, Any] = {}
        if isinstance(function, partial):
            before, named, function = function.args, function.keywords, function.func
        for node in _definitions(function):
            try:
                return formula(_call(function, node, [*before, Text(f"({at})")], named, 0))
            except UnreadableError:
                continue
    except (OSError, SyntaxError, TypeError, RecursionError):
        pass
    return None


def formula(value: Value) -> str:
    """Returns the text of a value that is a formula or a number.

    Raises:
        UnreadableError: It is neither, or its text is too long.
    """
    if isinstance(value, Text):
        found = value.text
    elif isinstance(value, _NUMBERS):
        number = float(value)
        if not math.isfinite(number):
            raise UnreadableError
        found = repr(number) if number >= 0 else f"({number!r})"
    else:
        raise UnreadableError
    if len(found) > MAX_LENGTH:
        raise UnreadableError
    return found


def parsed(filename: str) -> ast.Module | None:
    """Returns the syntax tree of a source file; None if there is none."""
    source = "".join(linecache.getlines(filename))
    try:
        return ast.parse(source) if source else None
    except SyntaxError:
        return None


def starts(node: ast.AST, code: CodeType) -> bool:
    """True if a definition is the one that a code object was made from, as far as name and line tell."""
    if isinstance(node, ast.Lambda):
        first, last = (
            (node.body.lineno, node.body.col_offset),
            (node.body.end_lineno or 0, node.body.end_col_offset or 0),
        )
        places = [(line, column) for line, _, column, end in code.co_positions() if line and column is not None and end]
        return code.co_name == "<lambda>" and all(first <= place < last for place in places)
    if isinstance(node, ast.FunctionDef):
        return node.name == code.co_name and code.co_firstlineno in {
            node.lineno, *(each.lineno for each in node.decorator_list)
        }  # fmt: skip
    return isinstance(node, ast.Module) and code.co_name == "<module>"


def _definitions(function: Any) -> list[ast.Lambda | ast.FunctionDef]:
    """The definitions in the source that a function may have been made from; several lambdas can be on one line."""
    if not isinstance(function, (FunctionType, LambdaType)):
        return []
    tree = parsed(function.__code__.co_filename)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    return [
        node
        for node in ([] if tree is None else ast.walk(tree))
        if isinstance(node, (ast.Lambda, ast.FunctionDef))
        and starts(node, function.__code__)
        and tuple(each.arg for each in node.args.args) == names
    ]


def _call(
    function: Any, node: ast.Lambda | ast.FunctionDef, given: Sequence[Value], named: Mapping[str, Value], depth: int
) -> Value:
    """The value of a call of one of the program's own functions."""
    if depth > _DEEPEST or node.args.vararg or node.args.kwarg or node.args.posonlyargs:
        raise UnreadableError
    names = [each.arg for each in (*node.args.args, *node.args.kwonlyargs)]
    defaults = dict(zip(reversed(names[: len(node.args.args)]), reversed(function.__defaults__ or ()), strict=False))
    scope = {**defaults, **(function.__kwdefaults__ or {}), **dict(zip(names, given, strict=False)), **named}
    if len(given) > len(node.args.args) or set(scope) != set(names):
        raise UnreadableError
    around = inspect.getclosurevars(function).nonlocals
    reading = Reading(scope, (around, function.__globals__, vars(builtins)), depth)
    if isinstance(node, ast.Lambda):
        return reading.value(node.body)
    return reading.returned(node.body)


class Reading:
    """Carries out statements on values some of which are formulas."""

    def __init__(self, scope: dict[str, Value], around: Sequence[Mapping[str, Any]], depth: int = 0) -> None:
        """Prepares.

        Args:
            scope: What local names stand for; is changed by assignments.
            around: Where other names are looked up, one after the other.
            depth: How many calls this one is within.
        """
        self.scope, self._around, self._depth = scope, around, depth

    # -- statements ----------------------------------------------------------------------------------------------------

    def returned(self, body: Sequence[ast.stmt]) -> Value:
        """Returns what a function with a body returns.

        Raises:
            UnreadableError: It has no formula.
        """
        for number, line in enumerate(body):
            if isinstance(line, ast.Return) and line.value is not None:
                return self.value(line.value)
            if isinstance(line, ast.If):
                test = self.value(line.test)
                rest = list(body[number + 1 :])
                if not isinstance(test, Text):
                    return self.returned([*(line.body if test else line.orelse), *rest])
                yes, no = self._apart(), self._apart()
                return _choose(test, yes.returned([*line.body, *rest]), no.returned([*line.orelse, *rest]))
            if isinstance(line, (ast.Return, ast.For, ast.While, ast.With, ast.Try, ast.Raise, ast.Delete)):
                raise UnreadableError
            self.run([line])
        raise UnreadableError

    def run(self, body: Sequence[ast.stmt]) -> None:
        """Carries out assignments; what cannot be read makes the names unknown that it may assign."""
        for line in body:
            try:
                self._one(line)
            except UnreadableError:
                self._forget(line)

    def _one(self, line: ast.stmt) -> None:
        if isinstance(line, ast.Assign) and len(line.targets) == 1 and isinstance(line.targets[0], ast.Name):
            self.scope[line.targets[0].id] = self.value(line.value)
        elif isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None:
            self.scope[line.target.id] = self.value(line.value)
        elif isinstance(line, ast.AugAssign) and isinstance(line.target, ast.Name):
            before = ast.Name(line.target.id, ast.Load())
            self.scope[line.target.id] = self.value(ast.BinOp(before, line.op, line.value))
        elif isinstance(line, ast.If):
            test = self.value(line.test)
            if not isinstance(test, Text):
                self.run(line.body if test else line.orelse)
                return
            yes, no = self._apart(), self._apart()
            yes.run(line.body)
            no.run(line.orelse)
            for name in {*yes.scope, *no.scope}:
                both = yes.scope.get(name, Unknown()), no.scope.get(name, Unknown())
                if both[0] is not both[1]:
                    try:
                        self.scope[name] = _choose(test, *both)
                    except UnreadableError:
                        self.scope[name] = Unknown()
        else:
            self._forget(line)

    def _forget(self, line: ast.AST) -> None:
        for node in ast.walk(line):
            if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
                self.scope[node.id] = Unknown()

    def _apart(self) -> Reading:
        return Reading(dict(self.scope), self._around, self._depth)

    # -- expressions ---------------------------------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Value:
        """Returns the value of an expression.

        Raises:
            UnreadableError: It has none that can be read.
        """
        read = self._READERS.get(type(node))
        if read is None:
            raise UnreadableError
        try:
            found = read(self, node)
        except (ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise UnreadableError from error
        if isinstance(found, Unknown):
            raise UnreadableError
        return found

    def _constant(self, node: Any) -> Value:
        return node.value

    def _name(self, node: Any) -> Value:
        for names in (self.scope, *self._around):
            if node.id in names:
                found = names[node.id]
                return found.value() if isinstance(found, Later) else found
        raise UnreadableError

    def _attribute(self, node: Any) -> Value:
        owner = self.value(node.value)
        if isinstance(owner, ModuleType):
            return getattr(owner, node.attr)
        plain = isinstance(owner, (argparse.Namespace, SimpleNamespace)) or is_dataclass(owner)
        if plain or not isinstance(owner, (Text, type)):
            held = getattr(owner, "__dict__", {})
            found = held[node.attr] if type(held) is dict and node.attr in held else vars(type(owner))[node.attr]
            if isinstance(found, (*_NUMBERS, str, dict, list, tuple)):
                return found
        raise UnreadableError

    def _subscript(self, node: Any) -> Value:
        owner, index = self.value(node.value), self.value(node.slice)
        if not isinstance(owner, (dict, list, tuple)) or isinstance(index, Text):
            raise UnreadableError
        return owner[index]

    def _binary(self, node: Any) -> Value:
        return _binary(node.op, self.value(node.left), self.value(node.right))

    def _unary(self, node: Any) -> Value:
        operand = self.value(node.operand)
        if isinstance(node.op, ast.Not):
            return Text(f"(1 - ({operand.text} != 0))") if isinstance(operand, Text) else not operand
        if isinstance(node.op, ast.USub):
            return Text(f"(-{operand.text})") if isinstance(operand, Text) else -operand
        if isinstance(node.op, ast.UAdd):
            return operand
        raise UnreadableError

    def _comparison(self, node: Any) -> Value:
        left, found = self.value(node.left), None
        for kind, right_node in zip(node.ops, node.comparators, strict=True):
            right = self.value(right_node)
            if not isinstance(left, Text) and not isinstance(right, Text):
                if isinstance(kind, (ast.Is, ast.IsNot)):
                    one: Value = (left is right) is isinstance(kind, ast.Is)
                else:
                    one = _COMPARISONS[type(kind)][1](left, right)
            else:
                one = Text(f"({formula(left)} {_COMPARISONS[type(kind)][0]} {formula(right)})")
            found = one if found is None else _and(found, one)
            left = right
        return found

    def _logic(self, node: Any) -> Value:
        both = isinstance(node.op, ast.And)
        found: Value = None
        for number, each in enumerate(node.values):
            if number and not isinstance(found, Text) and bool(found) is not both:
                return found
            one = self.value(each)
            found = one if not number else _and(found, one) if both else _or(found, one)
        return found

    def _condition(self, node: Any) -> Value:
        test = self.value(node.test)
        if not isinstance(test, Text):
            return self.value(node.body if test else node.orelse)
        return _choose(test, self.value(node.body), self.value(node.orelse))

    def _called(self, node: Any) -> Value:
        if any(isinstance(each, ast.Starred) for each in node.args) or any(each.arg is None for each in node.keywords):
            raise UnreadableError
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and not node.keywords:
            owner = self.value(node.func.value)
            if isinstance(owner, dict):
                return owner.get(*(self.value(each) for each in node.args))
        function = self.value(node.func)
        given = [self.value(each) for each in node.args]
        named = {each.arg: self.value(each.value) for each in node.keywords}
        if isinstance(function, (FunctionType, LambdaType)):
            for definition in _definitions(function):
                return _call(function, definition, given, named, self._depth + 1)
        try:
            if named or function not in _CALLED:
                raise UnreadableError
        except TypeError as error:  # it cannot be looked up
            raise UnreadableError from error
        if not any(isinstance(each, Text) for each in given):
            return function(*given)
        texts = [formula(each) for each in given]
        if function in (float, np.float64) and len(texts) == 1:
            return given[0]
        if function is int and len(texts) == 1:
            return Text(f"(floor({texts[0]}) if {texts[0]} >= 0 else -floor(-{texts[0]}))")
        if function is abs:
            return Text(f"max({texts[0]}, -{texts[0]})")
        if function in (math.ceil, np.ceil):
            return Text(f"(-floor(-{texts[0]}))")
        if function in (math.pow, np.power):
            return Text(f"({texts[0]} ** {texts[1]})")
        if function in _FUNCTIONS and (len(texts) == 1) is not (_FUNCTIONS[function] in ("min", "max")):
            return Text(f"{_FUNCTIONS[function]}({', '.join(texts)})")
        raise UnreadableError

    _READERS: Mapping[type[ast.expr], Callable[[Reading, Any], Value]] = {
        ast.Constant: _constant, ast.Name: _name, ast.Attribute: _attribute, ast.Subscript: _subscript,
        ast.BinOp: _binary, ast.UnaryOp: _unary, ast.Compare: _comparison, ast.BoolOp: _logic, ast.IfExp: _condition,
        ast.Call: _called,
    }  # fmt: skip


def _binary(kind: ast.operator, left: Value, right: Value) -> Value:
    sign, compute = _OPERATORS.get(type(kind), ("", None))
    if compute is None:
        raise UnreadableError
    if not isinstance(left, Text) and not isinstance(right, Text):
        if not (isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS)):
            raise UnreadableError
        return compute(left, right)
    first, second = formula(left), formula(right)
    if sign == "//":
        return Text(f"floor({first} / {second})")
    if sign == "%":
        return Text(f"({first} - {second} * floor({first} / {second}))")
    return Text(f"({first} {sign} {second})")


def _choose(test: Text, yes: Value, no: Value) -> Value:
    return Text(f"({formula(yes)} if {test.text} else {formula(no)})")


def _and(left: Value, right: Value) -> Value:
    return Text(f"(({formula(left)} != 0) * ({formula(right)} != 0))")


def _or(left: Value, right: Value) -> Value:
    return Text(f"max({formula(left)} != 0, {formula(right)} != 0)")
