"""The commands of docs/operating.md are one session of a shell that works from first to last, with real processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)


@pytest.mark.soak
def test_the_page_works_as_it_stands(tmp_path: Path) -> None:
    assert len(BLOCKS) >= 6
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, module in (("weighbridge", " -m weighbridge.cli"), ("python", "")):
        (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable}{module} "$@"\n')
        (tools / name).chmod(0o755)
    site = tmp_path / "site"
    site.mkdir()
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    output = tmp_path / "output"
    with output.open("wb") as file:
        script = "set -euxo pipefail\n" + "\n".join(BLOCKS)
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=site, env=environment, stdout=file, stderr=file, start_new_session=True
        )
        try:
            code = shell.wait(timeout=240)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)  # What a page that stopped half-way left running.
    assert code == 0, output.read_text(errors="replace")[-4000:]
    report = json.loads((site / "report" / "report.json").read_text())
    assert report["findings"] == []
    assert (site / "again" / "report.json").read_text() == (site / "report" / "report.json").read_text()


def test_options_of_the_page_exist() -> None:
    command = [sys.executable, "-m", "weighbridge.cli", "serve", "verifier", "--help"]
    help_text = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    options = set(re.findall(r"`(--[a-z-]+)`", PAGE))
    assert {"--metrics", "--streams"} < options
    assert [option for option in options - {"--host", "--days"} if option not in help_text] == []
