"""The public surface is the one that was promised, and docs/api.md names all of it and nothing else."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support import public_surface

PAGE = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")


def test_the_surface_is_the_one_that_was_promised(golden: Callable[[str, str], None]) -> None:
    golden(public_surface.GOLDEN.name, public_surface.surface())


def test_the_page_names_what_is_promised() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)
    named = {
        heading[1]: re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
        for section in sections
        if (heading := re.match(r"`([a-z_.]+)`\n", section))
    }
    assert named.keys() == set(public_surface.PACKAGES)
    assert {package: sorted(names) for package, names in named.items()} == {
        package: sorted(names) for package, names in public_surface.promised().items()
    }


@pytest.mark.parametrize("package", public_surface.PACKAGES)
def test_what_is_promised_can_be_imported(package: str) -> None:
    for name in public_surface.promised()[package]:
        module, _, attribute = f"{package}.{name}".rpartition(".")
        owner = importlib.import_module(module)
        assert hasattr(owner, attribute) or importlib.import_module(f"{module}.{attribute}"), name


def test_what_is_imported_is_described_by_where_it_is_defined() -> None:
    lines = public_surface.surface().splitlines()
    assert any(line.startswith("def weighbridge.replay(path: str | Path, *, steps:") for line in lines)
    assert "@dataclass(slots=True) class weighbridge.ReplayResult()" in lines
    assert "    verdict: Verdict" in lines
    assert any(line.startswith("weighbridge replay RUN [--claims] ") for line in lines)
