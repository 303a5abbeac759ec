"""Completion in a real bash, as it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import fails, weighbridge

ROOT = Path(__file__).resolve().parents[2]
BASH = shutil.which("bash")


def completed(home: Path, line: str) -> list[str]:
    """What bash offers for the last word of a line, with what is installed in a home directory."""
    tools = home / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "weighbridge").write_text(f'#!/bin/sh\nexec {sys.executable} -m weighbridge.cli "$@"\n')
    (tools / "weighbridge").chmod(0o755)
    environment = {
        **os.environ, "HOME": str(home), "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
        "LINE": line,
    }  # fmt: skip
    script = """
        source ~/.bashrc
        read -ra COMP_WORDS <<< "$LINE"
        [[ $LINE == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$(( ${#COMP_WORDS[@]} - 1 ))
        [[ $(complete -p weighbridge) =~ -F\\ ([^ ]+) ]]
        ${BASH_REMATCH[1]} weighbridge
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    assert BASH is not None
    command = [BASH, "--norc", "-c", script]
    done = subprocess.run(command, env=environment, cwd=home, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.split()


@pytest.mark.skipif(BASH is None, reason="no bash on this machine")
def test_bash_completes_commands_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    code, out, err = weighbridge("--install-completion", "bash")
    assert (code, err) == (0, "")
    assert str(tmp_path) in out
    assert completed(tmp_path, "weighbridge insp") == ["inspect"]
    assert completed(tmp_path, "weighbridge inspect st") == ["start"]
    assert {"up", "down", "status"} <= set(completed(tmp_path, "weighbridge "))
    assert completed(tmp_path, "weighbridge inspect report --cred") == ["--credentials"]


def test_scripts_are_shown_for_shells_that_are_known() -> None:
    for shell in ("bash", "zsh", "fish"):
        code, out, err = weighbridge("--show-completion", shell)
        assert (code, err) == (0, "")
        assert f"complete_{shell}" in out
    assert fails("--show-completion", "tcsh") == "usage"
