"""The keys of a draft, read off the code: those that the Recorder writes, and those that any code of ours looks up."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cbor2

from weighbridge.transcript import writer

ROOT = Path(__file__).parents[2]


def draft_keys() -> set[str]:
    """The keys of a draft: those that the Recorder and its writer write, and those that any code of ours looks up."""
    found = set(cbor2.loads(writer.draft_bytes({}, None)))
    for room in ("prover", "weighbridge", "verifier"):
        for path in sorted((ROOT / room).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            if "draft" in text:
                found |= set(_keys_in(ast.parse(text), path))
    return found


def _keys_in(tree: ast.Module, path: Path) -> Iterator[str]:
    for node in ast.walk(tree):
        keys: list[ast.expr] = []
        match node:
            case ast.Assign(targets=[ast.Name(id="draft")], value=made):
                keys = list(_top_keys(made))
            case ast.Call(func=ast.Attribute(value=about, attr="get"), args=[key, *_]) if _is_draft(about):
                keys = [key]
            case ast.Subscript(value=about, slice=key) if _is_draft(about):
                keys = [key]
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()], comparators=[about]) if _is_draft(about):
                keys = [key]
            case _:
                pass
        yield from (value for key in keys if (value := _value(key, path)) is not None)


def _top_keys(value: ast.expr) -> Iterator[ast.expr]:
    """The keys of a dictionary as it is written down, and of those that are unpacked into it."""
    match value:
        case ast.Dict(keys=keys, values=values):
            for key, inner in zip(keys, values, strict=True):
                yield from _top_keys(inner) if key is None else [key]
        case ast.IfExp(body=one, orelse=other):
            yield from (*_top_keys(one), *_top_keys(other))
        case _:
            pass


def _is_draft(value: ast.expr) -> bool:
    return (isinstance(value, ast.Name) and value.id == "draft") or (
        isinstance(value, ast.Attribute) and value.attr == "draft"
    )


def _value(key: ast.expr, path: Path) -> str | None:
    """What a key is: a text, or a constant of the module; None if only running the code would tell."""
    match key:
        case ast.Constant(value=str(text)):
            return text
        case ast.Name(id=name):
            owner: Any = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
            found = getattr(owner, name, None)
        case ast.Attribute(value=ast.Name(id=module), attr=name):
            owner = importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
            found = getattr(getattr(owner, module, None), name, None)
        case _:
            return None
    return found if isinstance(found, str) else None
