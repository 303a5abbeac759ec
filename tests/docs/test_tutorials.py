"""The first inspection of docs/tutorials/inspect.md works as it stands, pasted into a shell in an empty directory."""

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
PAGE = (ROOT / "docs" / "tutorials" / "inspect.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_first_inspection_takes_five_commands(tmp_path: Path) -> None:
    """It is typed as a user pastes it: one block, whatever a command's exit code is."""
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, flags=re.DOTALL)
    commands = block.strip().splitlines()
    assert len(commands) == 5
    assert all(line.startswith("weighbridge ") for line in commands)
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "weighbridge").write_text(f'#!/bin/sh\nexec {sys.executable} -P -m weighbridge.cli "$@"\n')
    (tools / "weighbridge").chmod(0o755)
    place = tmp_path / "empty"
    place.mkdir()
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    for name in ("WEIGHBRIDGE_VERIFIER", "WEIGHBRIDGE_CREDENTIALS", "WEIGHBRIDGE_BENCH"):
        environment.pop(name, None)
    script = "".join(f"{line}; codes+=($?)\n" for line in commands) + 'echo "${codes[@]}" > codes\n'
    output = tmp_path / "output"
    with output.open("wb") as file:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=place, env=environment, stdout=file, stderr=file, start_new_session=True
        )
        try:
            shell.wait(timeout=900)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            if (place / "weighbridge-bench").exists():
                subprocess.run([tools / "weighbridge", "down"], cwd=place, env=environment, check=False)
    said = output.read_text(errors="replace")
    assert (place / "codes").read_text().split() == ["0", "0", "0", "1", "0"], said[-6000:]
    report = json.loads((place / "report" / "report.json").read_text())
    chips = {chip["name"]: chip for chip in report["chips"]}
    assert {name: chip["verified"] for name, chip in chips.items()} == {"honest": True, "hidden": False}
    assert [snapshot["status"] for snapshot in chips["honest"]["snapshots"]].count("explained") >= 1
    found = [each for each in report["findings"] if each["severity"] != "info"]
    assert {each["id"] for each in found} == {"snapshot.unexplained"}, found
    assert all(chips["hidden"]["ueid"] in each["subject"] for each in found)
    assert f"[chip hidden ({chips['hidden']['ueid'][:8]}) entry " in said
    assert report["firmware"]["limits"]["clock_speed"] == 43200  # the report says that the clock runs fast
    assert "stopped: verifier, prover, chip hidden, chip honest" in said
