"""Completion in real shells, as it is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import fails, weighbridge

ROOT = Path(__file__).resolve().parents[2]
BASH, FISH, ZSH = (shutil.which(name) for name in ("bash", "fish", "zsh"))


def environment(home: Path) -> dict[str, str]:
    """A home directory whose `weighbridge` is this one."""
    tools = home / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "weighbridge").write_text(f'#!/bin/sh\nexec {sys.executable} -m weighbridge.cli "$@"\n')
    (tools / "weighbridge").chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "HOME": str(home), "PATH": path, "PYTHONPATH": str(ROOT), "TERM": "dumb"}


def installed(home: Path, shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home))
    code, out, err = weighbridge("--install-completion", shell)
    assert (code, err) == (0, "")
    assert str(home) in out


def completed(home: Path, line: str) -> list[str]:
    """What bash offers for the last word of a line, with what is installed in a home directory."""
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
    done = subprocess.run(
        command, env={**environment(home), "LINE": line}, cwd=home, capture_output=True, text=True, check=False,
        timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.split()


@pytest.mark.skipif(BASH is None, reason="no bash on this machine")
def test_bash_completes_commands_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, "bash", monkeypatch)
    assert completed(tmp_path, "weighbridge insp") == ["inspect"]
    assert completed(tmp_path, "weighbridge inspect st") == ["start"]
    assert {"up", "down", "status"} <= set(completed(tmp_path, "weighbridge "))
    assert completed(tmp_path, "weighbridge inspect report --cred") == ["--credentials"]


@pytest.mark.skipif(FISH is None, reason="no fish on this machine")
def test_fish_completes_commands_and_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, "fish", monkeypatch)
    assert FISH is not None
    for line, word in (("insp", "inspect"), ("inspect st", "start"), ("inspect report --cred", "--credentials")):
        done = subprocess.run(
            [FISH, "-c", f'complete -C "weighbridge {line}"'], env=environment(tmp_path), cwd=tmp_path,
            capture_output=True, text=True, check=True, timeout=120,
        )  # fmt: skip
        assert done.stdout.split("\t")[0] == word


@pytest.mark.skipif(ZSH is None, reason="no zsh on this machine")
def test_zsh_completes_at_the_first_key_press(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pexpect = pytest.importorskip("pexpect")
    installed(tmp_path, "zsh", monkeypatch)
    with (tmp_path / ".zshrc").open("a") as settings:
        settings.write("PROMPT='ready> '\nunset zle_bracketed_paste\n")
    assert ZSH is not None
    terminal = pexpect.spawn(ZSH, ["-i"], env=environment(tmp_path), cwd=tmp_path, timeout=60, encoding="utf-8")
    try:
        terminal.expect("ready> ")
        terminal.send("weighbridge inspect st\t")
        terminal.expect("art")
    finally:
        terminal.close(force=True)


def test_scripts_are_shown_for_shells_that_are_known() -> None:
    for shell in ("bash", "zsh", "fish"):
        code, out, err = weighbridge("--show-completion", shell)
        assert (code, err) == (0, "")
        assert f"complete_{shell}" in out
    assert fails("--show-completion", "tcsh") == "usage"
