"""Formulas: how a value that changes from step to step follows from the step's number, declared before training.

Learning-rate schedules and bias corrections are such values. Their formulas stand in the draft as data, in a language
of its own: numbers, `t`, host values, earlier names, arithmetic, a few functions, comparisons and one conditional. It
has no loops, no calls of anything else and a bounded size; nothing in it is ever executed as a program.

Every formula is evaluated in float64 together with a bound on how far another conforming evaluation may be from it
(another libm, another order of factors), so that a value can be compared with it. Format: docs/formats/transcript.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weighbridge.errors import TapeError

MAX_FORMULAS = 256
MAX_LENGTH = 1000
MAX_DEPTH = 40
MAX_NODES = 4000

_ULP = 2.0**-52
_WIDEST = 2.0**-20
"""Most that a value may differ from its formula, relative to it, whatever the formula's own bound is."""

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)|(?P<name>[a-z_][a-z0-9_]*)"
    r"|(?P<sign>\*\*|<=|>=|==|!=|[-+*/(),<>]))"
)
_ARITY = {
    "sqrt": (1, 1), "exp": (1, 1), "log": (1, 1), "cos": (1, 1), "floor": (1, 1), "drift": (1, 1),
    "min": (2, 8), "max": (2, 8),
}  # fmt: skip
_CONSTANTS = {"pi": math.pi}
_VARIABLES = ("t", "host", "host1")
RESERVED = frozenset((*_ARITY, *_CONSTANTS, *_VARIABLES, "if", "else"))
"""Words that cannot name a formula."""

Node = tuple[Any, ...]
Number = tuple[float, float]
"""A value and a bound on its error."""


@dataclass(frozen=True, slots=True)
class Formula:
    """One declared formula.

    Attributes:
        name: Its name.
        text: As declared.
        tree: As parsed.
        hosts: Whether it depends on host values, itself or through an earlier name.
    """

    name: str
    text: str
    tree: Node
    hosts: bool


@dataclass(slots=True)
class Formulas:
    """The formulas of a draft, in order; a later one may use the names of earlier ones."""

    items: dict[str, Formula] = field(default_factory=dict)

    @staticmethod
    def parse(declared: Any) -> Formulas:
        """Reads formulas.

        Args:
            declared: Map of name to text, or a list of [name, text] as in a draft.

        Raises:
            TapeError: With code `tape.formula`, if anything about them breaks the language's rules.
        """
        pairs = list(declared.items()) if isinstance(declared, Mapping) else declared
        if not isinstance(pairs, (list, tuple)) or len(pairs) > MAX_FORMULAS:
            raise _wrong(f"formulas are a list of at most {MAX_FORMULAS} pairs of name and text")
        formulas, budget = Formulas(), MAX_NODES
        for pair in pairs:
            match pair:
                case [str(name), str(text)]:
                    pass
                case _:
                    raise _wrong("formulas are pairs of name and text")
            if not _NAME.fullmatch(name) or name in RESERVED or name in formulas.items:
                raise _wrong(f"{name[:40]!r} cannot name a formula: use a new lower-case word that is not reserved")
            parser = _Parser(name, text, formulas.items)
            tree = parser.whole()
            budget -= parser.nodes
            if budget < 0:
                raise _wrong(f"the formulas have more than {MAX_NODES} parts together; declare fewer")
            formulas.items[name] = Formula(name, text, tree, parser.hosts)
        return formulas

    def to_list(self) -> list[list[str]]:
        """Returns the form that a draft holds: [name, text] in order; `Formulas.parse` gives the same again."""
        return [[f.name, f.text] for f in self.items.values()]

    def evaluate(self, name: str, t: int, hosts: Sequence[float] = (), index: int = 0) -> Number:
        """Evaluates a formula.

        Args:
            name: Of the formula.
            t: Number of the optimizer step.
            hosts: The step's host values.
            index: Which of them `host` is; `host1` is the next one.

        Returns:
            Its value and the bound on its error; (nan, 0) where it is undefined.
        """
        known: dict[str, Number] = {"t": (float(t), 0.0)}
        for place, variable in enumerate(("host", "host1"), index):
            known[variable] = (float(hosts[place]), 0.0) if place < len(hosts) else (math.nan, 0.0)
        value, error = self._named(name, known)
        return (value, error) if math.isfinite(value) and math.isfinite(error) else (math.nan, 0.0)

    def _named(self, name: str, known: dict[str, Number]) -> Number:
        if name not in known:
            known[name] = self._value(self.items[name].tree, known)
        return known[name]

    def _value(self, tree: Node, known: dict[str, Number]) -> Number:
        kind = tree[0]
        if kind == "number":
            return tree[1], 0.0
        if kind == "name":
            return self._named(tree[1], known)
        if kind == "if":
            chosen = tree[2] if self._value(tree[1], known)[0] else tree[3]
            return self._value(chosen, known)
        operands = [self._value(part, known) for part in tree[1:]]
        try:
            if kind == "drift":
                (x, e), t = operands[0], known["t"][0]
                return x, (e + _ULP * abs(x)) * (t + 1)
            return _OPERATIONS[kind](*operands)
        except (ValueError, OverflowError, ZeroDivisionError):
            return math.nan, 0.0


def agrees(value: float, formula: Number, precision: float = 0.0) -> bool:
    """True if a value is what a formula gives, as far as conforming evaluations may differ.

    The tolerance is four times the formula's error bound plus two units in the last place, and never more than 2^-20
    of the formula's value.

    Args:
        value: What entered the step.
        formula: From `Formulas.evaluate`.
        precision: Relative precision of the type that holds the value, beyond float64's.
    """
    expected, error = formula
    scale = abs(expected)
    return abs(value - expected) <= min(4 * error + (2 * _ULP + precision) * scale, _WIDEST * scale)


def _wrong(message: str) -> TapeError:
    return TapeError(message, code="tape.formula")


class _Parser:
    """Recursive descent over: conditional, comparison, sum, product, sign, power, atom."""

    def __init__(self, name: str, text: str, earlier: Mapping[str, Formula]) -> None:
        self._name, self._earlier = name, earlier
        self.nodes, self.hosts, self._depth = 0, False, 0
        if len(text) > MAX_LENGTH:
            raise self._error(f"has more than {MAX_LENGTH} characters")
        self._tokens: list[tuple[str, str]] = []
        at = 0
        while text[at:].strip():
            found = _TOKEN.match(text, at)
            if found is None:
                raise self._error(f"has something that is not in the language at {text[at:].strip()[:20]!r}")
            kind = found.lastgroup or ""
            self._tokens.append((kind, found[kind]))
            at = found.end()
        self._tokens.append(("end", ""))
        self._at = 0

    def _error(self, why: str) -> TapeError:
        return _wrong(f"the formula {self._name[:40]!r} {why}; docs/formats/transcript.md has the language")

    def _peek(self) -> str:
        return self._tokens[self._at][1]

    def _take(self, *signs: str) -> str | None:
        if self._tokens[self._at][0] != "number" and self._peek() in signs:
            self._at += 1
            return self._tokens[self._at - 1][1]
        return None

    def _node(self, *parts: Any) -> Node:
        self.nodes += 1
        return parts

    def whole(self) -> Node:
        tree = self._conditional()
        if self._tokens[self._at][0] != "end":
            raise self._error(f"goes on where it should end, at {self._peek()[:20]!r}")
        return tree

    def _conditional(self) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error("is nested too deeply")
        chosen = self._comparison()
        if self._take("if"):
            condition = self._comparison()
            if not self._take("else"):
                raise self._error("has an `if` without `else`")
            chosen = self._node("if", condition, chosen, self._conditional())
        self._depth -= 1
        return chosen

    def _comparison(self) -> Node:
        left = self._sum()
        sign = self._take("<", "<=", ">", ">=", "==", "!=")
        return left if sign is None else self._node(sign, left, self._sum())

    def _sum(self) -> Node:
        left = self._product()
        while sign := self._take("+", "-"):
            left = self._node(sign, left, self._product())
        return left

    def _product(self) -> Node:
        left = self._signed()
        while sign := self._take("*", "/"):
            left = self._node(sign, left, self._signed())
        return left

    def _signed(self) -> Node:
        negative = False
        while sign := self._take("-", "+"):
            negative ^= sign == "-"
        power = self._power()
        return self._node("negative", power) if negative else power

    def _power(self) -> Node:
        base = self._atom()
        if not self._take("**"):
            return base
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error("is nested too deeply")
        exponent = self._signed()
        self._depth -= 1
        return self._node("**", base, exponent)

    def _atom(self) -> Node:
        kind, text = self._tokens[self._at]
        if kind == "number":
            self._at += 1
            if not math.isfinite(float(text)):
                raise self._error("has a number that float64 cannot hold")
            return self._node("number", float(text))
        if self._take("("):
            inner = self._conditional()
            if not self._take(")"):
                raise self._error("lacks a closing parenthesis")
            return inner
        if kind == "name" and text not in ("if", "else"):
            self._at += 1
            if text in _ARITY:
                return self._call(text)
            if text in _CONSTANTS:
                return self._node("number", _CONSTANTS[text])
            if text not in _VARIABLES and text not in self._earlier:
                raise self._error(f"uses {text[:40]!r}, which is neither a variable nor an earlier formula")
            self.hosts |= text in ("host", "host1") or (text in self._earlier and self._earlier[text].hosts)
            return self._node("name", text)
        raise self._error(f"lacks a number or a name at {text[:20]!r}")

    def _call(self, function: str) -> Node:
        if not self._take("("):
            raise self._error(f"uses the function {function} without operands")
        operands = [self._conditional()]
        while self._take(","):
            operands.append(self._conditional())
        least, most = _ARITY[function]
        if not self._take(")") or not least <= len(operands) <= most:
            raise self._error(f"calls {function} with other operands than it takes")
        return self._node(function, *operands)


def _add(a: Number, b: Number) -> Number:
    value = a[0] + b[0]
    return value, a[1] + b[1] + _ULP * abs(value)


def _multiply(a: Number, b: Number) -> Number:
    value = a[0] * b[0]
    return value, abs(a[0]) * b[1] + abs(b[0]) * a[1] + a[1] * b[1] + _ULP * abs(value)


def _divide(a: Number, b: Number) -> Number:
    value, least = a[0] / b[0], abs(b[0]) - b[1]
    return value, (a[1] + abs(value) * b[1]) / least + _ULP * abs(value) if least > 0 else math.inf


def _power(a: Number, b: Number) -> Number:
    value = math.pow(a[0], b[0])
    error = 2 * _ULP * abs(value)
    if a[0] and (a[1] or b[1]):
        error += abs(value) * (abs(b[0]) * a[1] / abs(a[0]) + abs(math.log(abs(a[0]))) * b[1])
    return value, error


def _sqrt(a: Number) -> Number:
    value = math.sqrt(a[0])
    return value, (a[1] / (2 * value) if value else math.sqrt(a[1])) + _ULP * value


def _exp(a: Number) -> Number:
    value = math.exp(a[0])
    return value, value * a[1] + 2 * _ULP * value


def _log(a: Number) -> Number:
    value = math.log(a[0])
    return value, a[1] / a[0] + 2 * _ULP * abs(value)


_OPERATIONS: dict[str, Callable[..., Number]] = {
    "+": _add,
    "-": lambda a, b: _add(a, (-b[0], b[1])),
    "*": _multiply,
    "/": _divide,
    "**": _power,
    "negative": lambda a: (-a[0], a[1]),
    "<": lambda a, b: (float(a[0] < b[0]), 0.0),
    "<=": lambda a, b: (float(a[0] <= b[0]), 0.0),
    ">": lambda a, b: (float(a[0] > b[0]), 0.0),
    ">=": lambda a, b: (float(a[0] >= b[0]), 0.0),
    "==": lambda a, b: (float(a[0] == b[0]), 0.0),
    "!=": lambda a, b: (float(a[0] != b[0]), 0.0),
    "sqrt": _sqrt,
    "exp": _exp,
    "log": _log,
    "cos": lambda a: (math.cos(a[0]), a[1] + 2 * _ULP),
    "floor": lambda a: (float(math.floor(a[0])), 0.0),
    "min": lambda *operands: min(operands),
    "max": lambda *operands: max(operands),
}
