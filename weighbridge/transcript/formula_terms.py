"""Formulas: how a value that changes from step to step follows from the step's number, declared before training.

Learning-rate schedules and bias corrections are such values. Their formulas stand in the draft, or in the record of
step 0, as data in a language of its own: numbers, `t`, host values, counts of schedules, earlier names, arithmetic, a
few functions, comparisons and one conditional. It has no loops, no calls of anything else and a bounded size; nothing
in it is ever executed as a program.

Every formula has one value, the same on every machine (`formula_arithmetic`), and a bound on how far a program may be
from it that computes the same in another order or with another libm. Format: docs/formats/transcript.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from weighbridge.core.errors import TapeError
from weighbridge.transcript.formula_arithmetic import Number, UndefinedError, apply

MAX_FORMULAS = 256
MAX_LENGTH = 1000
MAX_DEPTH = 40
MAX_NODES = 4000

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
COUNTS = ("count", *(f"count{number}" for number in range(1, 8)))
"""How far the schedules of a step record are."""
_VARIABLES = ("t", "host", "host1", *COUNTS)
RESERVED = frozenset((*_ARITY, *_CONSTANTS, *_VARIABLES, "if", "else"))
"""Words that cannot name a formula."""

Node = tuple[Any, ...]


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

    def evaluate(
        self, name: str, t: int, hosts: Sequence[float] = (), index: int = 0, counts: Sequence[int] = ()
    ) -> Number:
        """Evaluates a formula.

        Args:
            name: Of the formula.
            t: Number of the optimizer step.
            hosts: The step's host values.
            index: Which of them `host` is; `host1` is the next one.
            counts: How far the step's schedules are.

        Returns:
            Its value and how far a program may be from it; (nan, 0) where it is undefined.
        """
        known: dict[str, Number] = {"t": (float(t), 0.0)}
        for variable, host in zip(("host", "host1"), hosts[index : index + 2], strict=False):
            known[variable] = float(host), 0.0
        known.update({variable: (float(count), 0.0) for variable, count in zip(COUNTS, counts, strict=False)})
        try:
            value, error = self._named(name, known)
        except UndefinedError:
            return math.nan, 0.0
        return (value, error) if math.isfinite(error) else (math.nan, 0.0)

    def _named(self, name: str, known: dict[str, Number]) -> Number:
        if name not in known:
            if name in _VARIABLES:
                raise UndefinedError("a value that the step does not have")
            known[name] = self._value(self.items[name].tree, known)
        value = known[name]
        if not math.isfinite(value[0]):
            raise UndefinedError("a host value that is no number")
        return value

    def _value(self, tree: Node, known: dict[str, Number]) -> Number:
        kind = tree[0]
        if kind == "number":
            return tree[1], 0.0
        if kind == "name":
            return self._named(tree[1], known)
        if kind == "if":
            return self._value(tree[2] if self._value(tree[1], known)[0] else tree[3], known)
        return apply(kind, [self._value(part, known) for part in tree[1:]], known["t"][0])


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
