"""Rules for operators outside the reviewed table: one decorated function for each (docs/custom-operators.md).

A rule belongs to what Prover and Verifier agree on, so its text is part of the table's digest, which stands in the
manifest draft. The Verifier chooses by itself which module of rules it loads; nothing that a Prover sends is looked at.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

from weighbridge.core.digests import record_digest
from weighbridge.core.errors import UsageError
from weighbridge.numerics.flops import counts
from weighbridge.numerics.flops.formulas import Formula, bound
from weighbridge.numerics.rewrites import decompositions
from weighbridge.numerics.rewrites.rewrite_table import TABLE
from weighbridge.numerics.rule_table import RULES, Kind, register

T = TypeVar("T")
How = Literal["rounded", "move", "exact", "decomposed"]

_NAME = re.compile(r"([A-Za-z_]\w*)::([A-Za-z_]\w*)(?:\.([A-Za-z_]\w*))?")


def rule(operator: str, *, kind: How = "rounded", flops: Formula | None = None) -> Callable[[T], T]:
    """Registers the rule of an operator, as a decorator.

    Args:
        operator: `library::name` or `library::name.overload`.
        kind: What the decorated function is.
            `rounded`: the bound. It takes a `weighbridge.numerics.bounds.Call` and returns one
            `weighbridge.numerics.rounding.bound.Bound` for each floating result; the operator is called with float64
            operands.
            `move`: the operator itself, which copies or selects and has one right answer.
            `exact`: the operator itself, which is one IEEE operation.
            `decomposed`: a function that computes the operator by others that have rules.
        flops: How many FLOPs a call does: a function of the operands by schema name and the list of results, of which
            it looks at `shape` and `numel()` only. Without it, `move` and `exact` count one for each element, and
            `rounded` counts what a product of all operands and results could need. A `decomposed` one takes none.

    Returns:
        A decorator that returns the function unchanged. For `move` and `exact` it stands on the operator itself.

    Raises:
        UsageError: The name is malformed, the operator has another rule, or the text of the rule cannot be read.
    """
    if kind == "decomposed" and flops is not None:
        raise UsageError(f"{operator} is decomposed, so its parts are counted; leave out flops=")
    match = _NAME.fullmatch(operator)
    if match is None:
        raise UsageError(f"{operator!r} names no operator; write library::name, or library::name.overload")
    if kind not in ("rounded", "move", "exact", "decomposed"):
        raise UsageError(f"there is no kind {kind!r} for a rule of yours; choose rounded, move, exact or decomposed")
    library, name, overload = match.groups()
    key = f"{'' if library == 'aten' else library + '::'}{name}.{overload or 'default'}"

    def add(function: T) -> T:
        if key in TABLE or (kind == "decomposed" and key in RULES):
            raise _taken(operator)
        if kind == "decomposed":
            decompositions.add(key, function)  # type: ignore[arg-type]
            return function
        source = _text(operator, function) if kind == "rounded" else ""
        if flops is not None:
            source = record_digest("rule-flops/1", [source, _text(operator, flops)]).hex()
        own = RULES.get(key)
        if own is not None and not (own.kind == kind and own.source == source and "::" in key):
            raise _taken(operator)
        RULES.pop(key, None)  # the same text read again, as when a module is reloaded
        register(key, Kind(kind), function if kind == "rounded" else None, source=source)  # type: ignore[arg-type]
        if flops is not None or "::" in key:  # an overload of ATen has a count already
            counts.declare(key, flops or (bound if kind == "rounded" else 1))
        return function

    return add


def _taken(operator: str) -> UsageError:
    return UsageError(f"{operator} has another rule already; rules are not replaced, so choose another name")


def _text(operator: str, function: object) -> str:
    """Digest of the text of a bound or a count; Prover and Verifier must have the same."""
    try:
        text = inspect.getsource(function)  # type: ignore[arg-type]
    except (OSError, TypeError):
        raise UsageError(
            f"the bound or the count of {operator} has no text that could be read; define it with def, in a file that "
            "the Verifier can have too"
        ) from None
    return record_digest("rule/1", "\n".join(line.rstrip() for line in textwrap.dedent(text).splitlines())).hex()


def load(name: str) -> None:
    """Imports a module that registers rules.

    Args:
        name: The module, or the path of a Python file (with `.py`), whose directory is then searched for imports.

    Raises:
        UsageError: It cannot be imported.
    """
    try:
        if not name.endswith(".py"):
            importlib.import_module(name)
            return
        path = Path(name).resolve()
        sys.path.insert(0, str(path.parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is no Python file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"the rules {name} cannot be loaded ({type(error).__name__}: {error}); give a module on PYTHONPATH or "
            "the path of a .py file"
        ) from error
