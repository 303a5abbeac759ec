"""What README, manual and examples tell a user to type exists; the README's experiment and the example run."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.typed_pages import differs, typed

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MANUAL = "".join(
    (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    for name in ("installing", "recording", "inspecting", "analysis")
)
BLOCKS = re.findall(r"```sh\n(.*?)```", README + MANUAL, flags=re.DOTALL)
COMMANDS = sorted(
    {line.partition("  #")[0].strip() for block in BLOCKS for line in block.replace("\\\n", " ").splitlines()}
    - {"", "mkdir -p runs", "python train.py", "source .venv/bin/activate"}
)


def help_of(words: list[str]) -> str:
    done = subprocess.run([*words, "--help"], capture_output=True, text=True, check=False, timeout=60, cwd=ROOT)
    return done.stdout if done.returncode == 0 else ""


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_manual_exists(line: str) -> None:
    words = [word for word in shlex.split(re.sub(r"\$\([^)]*\)", "ADDRESS", line)) if not re.match(r"[A-Z_]+=", word)]
    if words[:2] == ["python", "train.py"]:
        return  # typed by the test below
    if words[0] == "export":
        assert re.findall(r"WEIGHBRIDGE_\w+", line) == ["WEIGHBRIDGE_VERIFIER", "WEIGHBRIDGE_CREDENTIALS"]
        return
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:.*##", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
        return
    if words[0] == "python":
        program = [sys.executable, *words[1:3]]
    elif words[0].endswith("/pip"):
        program = [sys.executable, "-m", "pip", words[1]]
    else:
        assert words[0].endswith("weighbridge")
        group = words[1] in ("identity", "chip", "serve", "inspect", "analysis", "transcript", "report", "rules")
        depth = 4 if words[1:3] == ["chip", "log"] else 3 if group else 2
        program = [sys.executable, "-m", "weighbridge.cli", *words[1:depth]]
    text = help_of(program)
    assert text, program
    for option in (word for word in words if word.startswith("--")):
        assert option in text, option


def test_the_examples_of_the_manual_compile() -> None:
    examples = re.findall(r"```python\n(.*?)```", MANUAL, flags=re.DOTALL)
    assert len(examples) >= 4
    for code in examples:
        compile(code, "docs", "exec")


@pytest.mark.slow
def test_the_experiment_of_the_readme_does_what_it_says(tmp_path: Path) -> None:
    page = README.replace("make demo", "true").replace("make test ", "true ").replace("source ", "true ")
    known: dict[str, str] = {}
    outcomes = [differs(each.said, each.printed, known) for each in typed(page, tmp_path, seconds=300) if each.said]
    assert outcomes == [None, None]


def test_the_readme_is_one_screen() -> None:
    prose = re.sub(r"```.*?```|<!-- begin.*?end measured -->", "", README, flags=re.DOTALL)
    assert len(prose.split()) <= 500


def test_the_example_runs_and_replays(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "avx2"}
    command = [sys.executable, str(ROOT / "examples" / "record.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("match ")
    assert "violation" not in done.stdout


def test_documents_that_the_readme_names_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
