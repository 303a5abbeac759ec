"""The public surface, read from `__all__` without importing anything but the command line.

`python -m tests.support.public_surface` compares it with the golden and prints what differs; `make lint` does so.
"""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Iterator, Set
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "docs" / "goldens" / "public_surface.txt"
PACKAGES = (
    "weighbridge", "weighbridge.attest", "weighbridge.core", "weighbridge.numerics", "weighbridge.transcript",
    "prover", "firmware_sim", "verifier", "analysis",
)  # fmt: skip
"""Whose `__all__` is a promise. An entry that is a module promises that module's `__all__`, or all that it defines."""

_Definition = ast.FunctionDef | ast.ClassDef | ast.Assign | ast.AnnAssign


def promised() -> dict[str, list[str]]:
    """Returns what docs/api.md has to name of each package, relative to it."""
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        names = found[package] = list[str]()
        for name in _all(package) or ():
            inner = _all(f"{package}.{name}") if _file(f"{package}.{name}") else None
            names += [name] if inner is None else [f"{name}.{each}" for each in inner]
    return found


def surface() -> str:
    """Returns every promised name with its signature, and every command with its options, as text."""
    lines = [line for module, name in _promised() for line in _described(module, name)]
    return "\n".join([*lines, *_commands()]) + "\n"


@cache
def _promised() -> tuple[tuple[str, str], ...]:
    """Returns (module, name) of everything that is promised, where users find it."""
    found = []
    for package in PACKAGES:
        for name in sorted(_all(package) or ()):
            module = f"{package}.{name}"
            if _file(module) and name not in _names(package):
                found += [(module, each) for each in sorted(_all(module) or _defined(module))]
            else:
                found.append((package, name))
    return tuple(found)


@cache
def _known() -> frozenset[tuple[str, str]]:
    """Returns (module, name) of everything that is promised, where it is defined."""
    return frozenset(_resolved(*each)[:2] for each in _promised())


@cache
def _file(module: str) -> Path | None:
    path = ROOT.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in candidates if file.is_file()), None)


@cache
def _tree(module: str) -> ast.Module:
    file = _file(module)
    if file is None:
        raise SystemExit(f"{module} is promised, and there is no such module")
    return ast.parse(file.read_text(encoding="utf-8"))


def _targets(line: ast.stmt) -> list[str]:
    if isinstance(line, ast.FunctionDef | ast.ClassDef):
        return [line.name]
    targets = line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _all(module: str) -> list[str] | None:
    """Returns `__all__` of a module; None if it has none."""
    for line in _tree(module).body:
        if "__all__" in _targets(line) and isinstance(line, ast.Assign | ast.AnnAssign) and line.value is not None:
            return list(ast.literal_eval(line.value))
    return None


@cache
def _names(module: str) -> dict[str, _Definition | tuple[str, str]]:
    """Returns what a module's names are: definitions, or (module, name) of what it imports."""
    found: dict[str, _Definition | tuple[str, str]] = {}
    for line in ast.walk(_tree(module)):
        if isinstance(line, ast.ImportFrom) and line.module is not None:
            found.update({each.asname or each.name: (line.module, each.name) for each in line.names})
    for line in _tree(module).body:
        if isinstance(line, _Definition):
            found.update(dict.fromkeys(_targets(line), line))
    return found


def _defined(module: str) -> list[str]:
    """Returns the names without underscore that a module defines."""
    return [name for name, what in _names(module).items() if not isinstance(what, tuple) and not name.startswith("_")]


def _resolved(module: str, name: str) -> tuple[str, str, _Definition | None]:
    """Follows a name through the modules that pass it on, to (module, name, definition); None if it is not ours."""
    what = _names(module).get(name)
    while isinstance(what, tuple):
        module, name = what
        what = _names(module).get(name) if _file(module) else None
    return module, name, what


def _described(module: str, name: str) -> Iterator[str]:
    """Yields the lines of one promised name."""
    where, _, what = _resolved(module, name)
    full = f"{module}.{name}"
    if what is None:
        raise SystemExit(f"{full} is promised, and there is no such name")
    if isinstance(what, ast.FunctionDef):
        yield f"{_decorators(what)}def {full}{_signature(what)}"
    elif isinstance(what, ast.ClassDef):
        bases = ", ".join(ast.unparse(base) for base in what.bases)
        yield f"{_decorators(what)}class {full}({bases})"
        yield from (f"    {line}" for line in _members(where, what))
    else:
        yield full


def _members(module: str, what: ast.ClassDef, hidden: Set[str] = frozenset()) -> Iterator[str]:
    """Yields the public members of a class but the hidden ones, after those of our bases that promise nothing."""
    known = _known()
    for base in what.bases:
        where, name, inherited = _resolved(module, ast.unparse(base))
        if isinstance(inherited, ast.ClassDef) and (where, name) not in known:
            own = {target for line in what.body for target in _targets(line)}
            yield from _members(where, inherited, hidden | own)
    for line in what.body:
        if hidden.isdisjoint(_targets(line)):
            yield from _member(line)


def _decorators(what: ast.FunctionDef | ast.ClassDef) -> str:
    return "".join(f"@{ast.unparse(each)} " for each in what.decorator_list)


def _member(line: ast.stmt) -> Iterator[str]:
    """Yields the line of one public attribute or method of a class."""
    (name,) = _targets(line) or [""]
    if not name or (name.startswith("_") and name != "__init__"):
        return
    if isinstance(line, ast.FunctionDef):
        yield f"{_decorators(line)}def {name}{_signature(line)}"
    elif isinstance(line, ast.Assign | ast.AnnAssign):
        yield ast.unparse(line)


def _signature(function: ast.FunctionDef) -> str:
    returns = "" if function.returns is None else f" -> {ast.unparse(function.returns)}"
    return f"({ast.unparse(function.args)}){returns}"


def _commands() -> Iterator[str]:
    from typer.main import get_command

    from weighbridge.cli.main import application

    pending: list[tuple[str, Any]] = [("weighbridge", get_command(application()))]
    while pending:
        path, command = pending.pop(0)
        inner = getattr(command, "commands", None)
        if inner is not None:
            pending = [*((f"{path} {name}", inner[name]) for name in sorted(inner)), *pending]
            continue
        options = sorted(name for each in command.params if each.param_type_name == "option" for name in each.opts)
        arguments = [str(each.name).upper() for each in command.params if each.param_type_name == "argument"]
        yield " ".join([path, *arguments, *(f"[{name}]" for name in options)])


def main() -> int:
    """Prints how the surface differs from the golden; returns 1 if it does."""
    was = GOLDEN.read_text(encoding="utf-8").splitlines() if GOLDEN.exists() else []
    difference = list(difflib.unified_diff(was, surface().splitlines(), "promised", "in the code", lineterm="", n=0))
    if difference:
        print("\n".join(difference))
        print("the public surface has changed; if that is meant: pytest tests/docs/test_api.py --update-goldens")
    return int(bool(difference))


if __name__ == "__main__":
    sys.exit(main())
