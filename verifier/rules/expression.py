"""One rule's expression: parsed and evaluated by cel-python, checked here before anything is evaluated.

CEL (https://github.com/google/cel-spec) has no types before run time in cel-python, so that a misspelt name would only
show when it is too late. The checker here knows the schema: it refuses unknown names and wrong types, allows a small
part of the language, and bounds the work from the sizes of the lists before any is done. Facts that were not
established are absent; CEL's `&&`, `||`, `all` and `exists` then decide if the facts that are there suffice, and raise
an error if not. What would make a rule undecided by itself is refused too: whole numbers that could exceed 64 bits, and
words that no run may declare.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import celpy
import lark
from celpy import celtypes
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError, Evaluator, celstr

from verifier.rules.errors import RuleError
from verifier.rules.schema import (
    BOOL,
    DECLARED,
    DOUBLE,
    INT,
    LARGEST_INT,
    LONGEST_TEXT,
    MOST_LISTED,
    STRING,
    Schema,
    Type,
    listed,
    record,
)

MAX_CHARACTERS = 2000
MAX_NESTING = 24
"""Of brackets; and of parts of the parsed expression, times `_LEVELS`."""
_LEVELS = 16
MAX_WORK = 100_000
"""Operations that an evaluation may take at most, by the sizes of the lists: some seconds."""
NOMINAL_SIZE = 50
"""Length of every list, where an expression is checked without facts."""

_LONGEST = max(MOST_LISTED, LONGEST_TEXT)
_NUMBERS = (INT, DOUBLE)
_MACROS = ("all", "exists", "exists_one", "filter", "map")
_WITH_TEXT = ("startsWith", "endsWith", "contains")
_AGGREGATES = ("sum", "greatest", "least")


class UndecidedError(Exception):
    """An evaluation came to no result; for the judge, never for users."""


class _Evaluator(Evaluator):
    """cel-python's evaluator, where `&&` and `||` absorb an error in map() and filter() too, as CEL has it."""

    def sub_evaluator(self, ast: lark.Tree[Any]) -> Evaluator:
        return _Evaluator(ast, activation=self.activation)

    def member_dot_arg(self, tree: lark.Tree[Any]) -> Any:
        try:
            return super().member_dot_arg(tree)
        except CELEvalError as error:
            return error


@dataclass(frozen=True, slots=True)
class _Checked:
    """What is known of a part of an expression.

    Attributes:
        type: Its type.
        size: The largest length that it may have.
        work: Operations that it takes.
        most: Of a whole number, or of those in a list: the largest magnitude that it may have.
        texts: Of a text, or of those in a list: what it is, if the rule or the rule set says so.
    """

    type: Type
    size: int = 1
    work: int = 1
    most: int = LARGEST_INT
    texts: Collection[str] | None = None


@dataclass(slots=True)
class Expression:
    """A checked expression of type bool.

    Attributes:
        text: As written.
        needs: (record, field) of every fact that it names, ascending.
        work: Operations that it takes at most, for the sizes that it was checked with.
    """

    text: str
    needs: tuple[tuple[str, str], ...]
    work: int
    _tree: lark.Tree[Any] = field(repr=False)

    def evaluate(self, facts: Mapping[str, Any]) -> bool:
        """Returns whether the rule holds.

        Args:
            facts: Conforming facts, of sizes no larger than those that the expression was checked with.

        Raises:
            UndecidedError: A fact that decides it is absent, or an operation has no result (a division by zero).
        """
        runner = celpy.Environment().program(self._tree, functions=dict(_FUNCTIONS))
        evaluator = _Evaluator(ast=self._tree, activation=runner.new_activation())
        try:
            result: object = evaluator.evaluate(cast("Any", json_to_cel(dict(facts))))
        except CELEvalError as error:
            raise UndecidedError(str(error.args[0] if error.args else error)[:300]) from None
        except (ArithmeticError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise UndecidedError(f"{type(error).__name__}: {error}"[:300]) from None
        if not isinstance(result, celtypes.BoolType | bool):
            raise UndecidedError("it has no result")
        return bool(result)


def _aggregate(fold: Callable[[list[Any]], Any]) -> Callable[[Any], Any]:
    def function(values: Any) -> Any:
        return fold(list(values))

    return function


def _finite(operation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Lets an operation on doubles fail where its result is no number: NaN would make every comparison false."""

    def function(left: Any, right: Any) -> Any:
        found = operation(left, right)
        if isinstance(found, float) and not math.isfinite(found):
            raise OverflowError("a double overflows")
        return found

    return function


def _sum(values: list[Any]) -> celtypes.DoubleType:
    return celtypes.DoubleType(_finite(operator.add)(sum(float(each) for each in values), 0.0))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "_+_": _finite(operator.add),
    "_-_": _finite(operator.sub),
    "_*_": _finite(operator.mul),
    "_/_": _finite(operator.truediv),
    # A sum of nothing is 0.0, which compares with doubles; sums of whole numbers are turned into doubles, too.
    "sum": _aggregate(_sum),
    "greatest": _aggregate(max),
    "least": _aggregate(min),
}


def check(text: str, schema: Schema, sizes: Mapping[tuple[str, str], int] | None = None) -> Expression:
    """Parses and checks an expression.

    Args:
        text: In CEL.
        schema: What it may speak about.
        sizes: By (record, field), the largest length of a list or map; `NOMINAL_SIZE` for all if None.

    Raises:
        RuleError: It is too long, too deep or too much work, no CEL, names what there is not, or mixes types.
    """
    if not text.strip() or len(text) > MAX_CHARACTERS:
        raise RuleError(f"an expression has 1 to {MAX_CHARACTERS} characters, not {len(text)}; split the rule")
    if _nesting(text) > MAX_NESTING:
        raise RuleError(f"brackets are nested deeper than {MAX_NESTING}; split the rule")
    try:
        tree = celpy.Environment().compile(text)
    except CELParseError as error:
        raise RuleError(f"this is no CEL, near column {error.column}: {text!r:.120}; correct the syntax") from None
    except (RecursionError, lark.exceptions.LarkError, ValueError) as error:
        raise RuleError(f"this is no CEL ({type(error).__name__}): {text!r:.120}; correct the syntax") from None
    if _depth(tree) > MAX_NESTING * _LEVELS:
        raise RuleError("the expression has too many parts in a row; use all(), exists() or several rules")
    checker = _Checker(schema, sizes)
    found = checker.type_of(tree, {})
    if found.type != BOOL:
        raise RuleError(f"a rule must be true or false, and this is of type {found.type}: {text!r:.120}")
    if found.work > MAX_WORK:
        raise RuleError(
            f"evaluating this takes up to {found.work} operations, more than {MAX_WORK}; do not nest all(), exists(), "
            "map() and filter() over long lists"
        )
    return Expression(text, tuple(sorted(checker.needs)), found.work, tree)


def _nesting(text: str) -> int:
    depth = most = 0
    for sign in text:
        depth += (sign in "([{") - (sign in ")]}")
        most = max(most, depth)
    return most


def _depth(tree: lark.Tree[Any]) -> int:
    most, level = 0, [tree]
    while level:
        most += 1
        level = [child for each in level for child in each.children if isinstance(child, lark.Tree)]
    return most


class _Checker:
    """Finds types, sizes and work, part by part."""

    def __init__(self, schema: Schema, sizes: Mapping[tuple[str, str], int] | None) -> None:
        self._schema, self._sizes = schema, sizes
        self._largest = NOMINAL_SIZE if sizes is None else max(sizes.values(), default=0)
        self.needs: set[tuple[str, str]] = set()

    def type_of(self, tree: lark.Tree[Any], scope: Mapping[str, _Checked]) -> _Checked:
        """Returns what is known of one part.

        Raises:
            RuleError: It is not allowed or does not fit.
        """
        handler = getattr(self, f"_{tree.data}", None)
        if handler is None:
            raise RuleError(f"rules cannot use {tree.data.replace('_', ' ')}; see docs/rules.md for what they can")
        found: _Checked = handler(tree.children, scope)
        return found

    def _expr(self, parts: list[Any], scope: Mapping[str, _Checked]) -> _Checked:
        found = [self.type_of(part, scope) for part in parts]
        if len(found) == 1:
            return found[0]
        condition, yes, no = found
        if condition.type != BOOL or yes.type != no.type:
            raise RuleError(f"? : needs a bool and two values of one type, not {condition.type}, {yes.type}, {no.type}")
        size, work = max(yes.size, no.size), 1 + sum(each.work for each in found)
        return _Checked(yes.type, size, work, max(yes.most, no.most))

    def _logical(self, parts: list[Any], scope: Mapping[str, _Checked]) -> _Checked:
        found = [self.type_of(part, scope) for part in parts]
        if len(found) == 1:
            return found[0]
        for each in found:
            if each.type != BOOL:
                raise RuleError(f"&& and || join bools, not a {each.type}")
        return _Checked(BOOL, work=1 + sum(each.work for each in found))

    _conditionalor = _conditionaland = _logical

    def _relation(self, parts: list[Any], scope: Mapping[str, _Checked]) -> _Checked:
        if len(parts) == 1:
            return self.type_of(parts[0], scope)
        sign = parts[0].data.removeprefix("relation_")
        left, right = self.type_of(parts[0].children[0], scope), self.type_of(parts[1], scope)
        work = 1 + left.work + right.work
        if sign == "in":
            inside = right.type.of if right.type.kind == "list" else STRING if right.type.kind == "map" else None
            if inside != left.type:
                raise RuleError(
                    f"`in` looks for a value in a list of such, or for a key: not {left.type} in {right.type}"
                )
            _check_words(left, right)
            return _Checked(BOOL, work=work + right.size)
        if left.type != right.type:
            raise RuleError(f"{left.type} cannot be compared with {right.type}{_ADVICE}")
        if left.type.kind in ("list", "map", "record") or (sign not in ("eq", "ne") and left.type == BOOL):
            raise RuleError(f"a {left.type} cannot be compared so; compare what is in it")
        _check_words(left, right)
        return _Checked(BOOL, work=work)

    def _arithmetic(self, parts: list[Any], scope: Mapping[str, _Checked]) -> _Checked:
        if len(parts) == 1:
            return self.type_of(parts[0], scope)
        sign = parts[0].data.rpartition("_")[2]
        left, right = self.type_of(parts[0].children[0], scope), self.type_of(parts[1], scope)
        if left.type != right.type or left.type not in _NUMBERS:
            raise RuleError(f"{left.type} and {right.type} cannot be calculated with{_ADVICE}")
        if sign == "mod" and left.type != INT:
            raise RuleError("% is for whole numbers")
        most = LARGEST_INT
        if left.type == INT:
            most = {"add": left.most + right.most, "sub": left.most + right.most, "mul": left.most * right.most}.get(
                sign, left.most
            )
        if most > LARGEST_INT:
            raise RuleError(
                "this can exceed the 64 bits of a whole number, and the rule would then be undecided; calculate with "
                "doubles, as in double(r.steps) * 2.0"
            )
        return _Checked(left.type, work=1 + left.work + right.work, most=most)

    _addition = _multiplication = _arithmetic

    def _unary(self, parts: list[Any], scope: Mapping[str, _Checked]) -> _Checked:
        found = self.type_of(parts[-1], scope)
        if len(parts) == 1:
            return found
        fits = found.type == BOOL if parts[0].data == "unary_not" else found.type in _NUMBERS
        if not fits:
            raise RuleError(f"{'!' if parts[0].data == 'unary_not' else '-'} cannot stand before a {found.type}")
        return _Checked(found.type, work=1 + found.work, most=found.most)

    def _only(self, parts: list[Any], scope: Mapping[str, _Checked]) -> _Checked:
        return self.type_of(parts[0], scope)

    _member = _primary = _paren_expr = _only

    def _member_dot(self, parts: list[Any], scope: Mapping[str, _Checked]) -> _Checked:
        of, name = self.type_of(parts[0], scope), str(parts[1])
        if of.type.kind == "map":
            assert of.type.of is not None
            return _Checked(of.type.of, self._largest, 1 + of.work)
        return self._field(of.type, name, 1 + of.work)

    def _field(self, of: Type, name: str, work: int) -> _Checked:
        fields = self._schema[of.name] if of.kind == "record" else {}
        if name not in fields and of == record(DECLARED):
            raise RuleError(
                f"the rule set does not say what runs may declare as {name!r:.80}; give it the words, as in "
                '[declarations] kind = ["pretraining", "rl"]'
            )
        if name not in fields:
            there = f"it has {', '.join(fields)}" if fields else "only records and maps have"
            raise RuleError(f"there is no {name!r:.80} in {_article(of)}; {there}")
        self.needs.add((of.name, name))
        size = NOMINAL_SIZE if self._sizes is None else self._sizes.get((of.name, name), 0)
        type_ = fields[name][0]
        if of == record("lists") and type_.of is not None:  # it is known what is in it
            return _Checked(listed(STRING), size, work, texts=type_.of.words)
        return _Checked(type_, size, work)

    def _member_index(self, parts: list[Any], scope: Mapping[str, _Checked]) -> _Checked:
        of, index = self.type_of(parts[0], scope), self.type_of(parts[1], scope)
        wanted = {"list": INT, "map": STRING}.get(of.type.kind)
        if wanted is None or index.type != wanted or of.type.of is None:
            raise RuleError(
                f"[ ] takes a whole number behind a list or a text behind a map, not {index.type} behind {of.type}"
            )
        return _Checked(of.type.of, self._largest, 1 + of.work + index.work, of.most)

    def _ident(self, parts: list[Any], scope: Mapping[str, _Checked]) -> _Checked:
        name = str(parts[0])
        if name in scope:
            return scope[name]
        return self._field(record(""), name, 1)

    def _ident_arg(self, parts: list[Any], scope: Mapping[str, _Checked]) -> _Checked:
        name, arguments = str(parts[0]), _arguments(parts)
        if name == "has":
            return self._has(arguments, scope)
        found = [self.type_of(each, scope) for each in arguments]
        if len(found) != 1:
            raise RuleError(f"{name[:80]!r} is no function of {len(found)} values; rules have {_KNOWN}")
        (of,) = found
        work = 1 + of.work + of.size
        if name == "size" and of.type.kind in ("list", "map", "string"):
            return _Checked(INT, work=work, most=_LONGEST)
        if name == "int":
            raise RuleError(
                "int() can exceed 64 bits, and the rule would then be undecided; compare doubles, as in r.flops < 5e24"
            )
        if name == "double" and of.type in _NUMBERS:
            return _Checked(DOUBLE, work=work)
        if name in _AGGREGATES and of.type.kind == "list" and of.type.of in _NUMBERS:
            return _Checked(DOUBLE if name == "sum" else of.type.of, work=work, most=of.most)
        raise RuleError(f"there is no {name[:80]}() of a {of.type}; rules have {_KNOWN}")

    def _has(self, arguments: list[Any], scope: Mapping[str, _Checked]) -> _Checked:
        """Whether a fact was established: it need not be there, so it is not among what the rule needs."""
        before = set(self.needs)
        found = [self.type_of(each, scope) for each in arguments]
        if len(arguments) != 1 or not _is_field(arguments[0]):
            raise RuleError("has() asks for one fact, as in has(r.flops)")
        self.needs = before
        return _Checked(BOOL, work=1 + found[0].work)

    def _member_dot_arg(self, parts: list[Any], scope: Mapping[str, _Checked]) -> _Checked:
        of, name, arguments = self.type_of(parts[0], scope), str(parts[1]), _arguments(parts)
        if name in _MACROS and of.type.kind == "list" and of.type.of is not None:
            return self._macro(of, name, arguments, scope)
        found = [self.type_of(each, scope) for each in arguments]
        if name == "size" and not found and of.type.kind in ("list", "map", "string"):
            return _Checked(INT, work=1 + of.work, most=_LONGEST)
        if name in _WITH_TEXT and [of.type, *(each.type for each in found)] == [STRING, STRING]:
            return _Checked(BOOL, work=1 + of.work + found[0].work)
        raise RuleError(f"there is no .{name[:80]}() of a {of.type} like this; rules have {_KNOWN}")

    def _macro(self, of: _Checked, name: str, arguments: list[Any], scope: Mapping[str, _Checked]) -> _Checked:
        variable = _plain_name(arguments[0]) if len(arguments) == 2 else None
        if variable is None or variable in scope or variable in self._schema[""]:
            raise RuleError(f"{name}() takes a new name for each element and an expression, as in runs.{name}(r, ...)")
        assert of.type.of is not None
        body = self.type_of(arguments[1], {**scope, variable: _Checked(of.type.of, self._largest, most=of.most)})
        work = 1 + of.work + of.size * (1 + body.work)
        if name == "map":
            return _Checked(listed(body.type), of.size, work, body.most)
        if body.type != BOOL:
            raise RuleError(f"{name}() needs an expression that is true or false, not a {body.type}")
        return _Checked(of.type, of.size, work, of.most) if name == "filter" else _Checked(BOOL, work=work)

    def _list_lit(self, parts: list[Any], scope: Mapping[str, _Checked]) -> _Checked:
        found = [self.type_of(each, scope) for part in parts for each in part.children]
        if not found or len({each.type for each in found}) != 1:
            raise RuleError("a list in a rule has at least one element, and all of one type")
        texts = [text for each in found for text in each.texts or ()]  # of those that are written out
        work = 1 + sum(each.work for each in found)
        return _Checked(listed(found[0].type), len(found), work, max(each.most for each in found), texts)

    def _literal(self, parts: list[Any], scope: Mapping[str, _Checked]) -> _Checked:
        kind = {"FLOAT_LIT": DOUBLE, "INT_LIT": INT, "STRING_LIT": STRING, "BOOL_LIT": BOOL}.get(parts[0].type)
        if kind is None:
            raise RuleError(f"rules cannot use {str(parts[0])[:40]!r}; write a text, a number, true or false")
        if kind == INT and not _fits(str(parts[0])):
            raise RuleError(f"{str(parts[0])[:40]} is no number of 64 bits; write a double, or leave out zeros")
        if kind == DOUBLE and not math.isfinite(float(parts[0])):
            raise RuleError(f"{str(parts[0])[:40]} is larger than any double; write a smaller number")
        if kind == STRING:
            return _Checked(kind, texts=(_text(parts[0]),))
        return _Checked(kind, most=abs(int(str(parts[0]), 0)) if kind == INT else LARGEST_INT)


def _text(literal: lark.Token) -> str:
    """Returns what a literal says.

    Raises:
        RuleError: It has letters beyond ASCII, which may look like others and are none.
    """
    try:
        text = str(celstr(literal))
    except ValueError:
        raise RuleError(f"{str(literal)[:40]} has an escape for no character; correct it") from None
    if not text.isascii():
        raise RuleError(
            f"the text {ascii(text)[:80]} in an expression has characters beyond ASCII, which may look like others; "
            "write ASCII, or put the text into a list of the rule set"
        )
    return text


def _check_words(left: _Checked, right: _Checked) -> None:
    """Refuses a comparison of a declaration with what it can never be."""
    for one, other in ((left, right), (right, left)):
        words = one.type.words or (one.type.of.words if one.type.of is not None else ())
        for text in (other.texts or ()) if words else ():
            if text not in words:
                raise RuleError(
                    f"{ascii(text)[:80]} is none of the words that runs may declare: {', '.join(words)[:300]}; correct "
                    "it, or add it to [declarations]"
                )


def _fits(literal: str) -> bool:
    try:
        return abs(int(literal, 0)) <= LARGEST_INT
    except ValueError:  # CEL's grammar lets zeros stand before a number, Python's does not
        return False


_ADVICE = "; write 3.0 instead of 3, or double(...)"
_KNOWN = (
    "size(), has(), double(), sum(), greatest(), least(), all(), exists(), exists_one(), filter(), map(), "
    "startsWith(), endsWith(), contains()"
)


def _article(of: Type) -> str:
    return "the facts" if of.kind == "record" and not of.name else f"a {of}"


def _arguments(parts: list[Any]) -> list[Any]:
    return [each for part in parts if isinstance(part, lark.Tree) and part.data == "exprlist" for each in part.children]


def _inner(tree: lark.Tree[Any]) -> lark.Tree[Any]:
    """Follows parts that have one part only."""
    while len(tree.children) == 1 and isinstance(tree.children[0], lark.Tree):
        tree = tree.children[0]
    return tree


def _is_field(tree: lark.Tree[Any]) -> bool:
    return _inner(tree).data == "member_dot"


def _plain_name(tree: lark.Tree[Any]) -> str | None:
    inner = _inner(tree)
    return str(inner.children[0]) if inner.data == "ident" else None
