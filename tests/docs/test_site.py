"""The documentation site builds without a warning, and loads nothing from other hosts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return out


def test_every_page_is_there(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).is_file()} == set()


def test_nothing_comes_from_another_host(site: Path) -> None:
    loads = re.compile(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"?(?:https?:)?//[^\" >]+")
    found = {hit for page in site.rglob("*.html") for hit in loads.findall(page.read_text(encoding="utf-8"))}
    assert {hit for hit in found if 'rel="canonical"' not in hit} == set()


def test_signatures_of_the_promise_are_on_it(site: Path) -> None:
    text = (site / "reference" / "recording.html").read_text(encoding="utf-8")
    assert 'id="prover.Recorder.attach"' in text
    assert "checkpoint_every" in text
