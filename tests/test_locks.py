"""What `make install` installs is pinned to the byte: by a hash for every file, and from one index at a time."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_ENTRY = re.compile(r"([A-Za-z0-9._-]+)==([^ \\\n]+)(?: ; [^\\\n]+)?((?: \\\n +--hash=sha256:[0-9a-f]{64})+)\n")


def locked(name: str) -> dict[str, str]:
    """Version by project; every line of the file must belong to an entry with hashes."""
    text = re.sub(r"^#.*\n", "", (ROOT / name).read_text(), flags=re.MULTILINE)
    assert _ENTRY.sub("", text) == ""
    return {normal(found[1]): found[2] for found in _ENTRY.finditer(text)}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_pin_has_its_hashes_and_nothing_else_has() -> None:
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#")
    found = {**locked("constraints.lock"), **locked("constraints-fuzz.lock")}
    assert found == {normal(name): version for name, version in pins.items()}
    assert set(locked("constraints-fuzz.lock")) == {"atheris"}
    assert locked("torch-cpu.lock") == {"torch": pins["torch"] + "+cpu"}
    assert not set(locked("constraints-cuda.lock")) & set(found)


def test_the_makefile_gives_pip_one_index_at_a_time() -> None:
    text = (ROOT / "Makefile").read_text()
    assert "--extra-index-url" not in text
    assert text.count("--index-url") == 2  # torch's, for either environment
    install = text[text.index("$(STAMP): pyproject") : text.index("NEEDS_CUDA :=")]
    lines = [line for line in install.splitlines() if "$(PIP)" in line]
    assert lines == ["\t$(PIP) --no-index --no-deps --no-build-isolation -e ."]
    assert re.search(r"^HASHED := .*--require-hashes --no-deps$", text, re.MULTILINE)


def wheel(directory: Path, content: str, requires: str = "") -> str:
    """Writes a small wheel and returns its SHA-256."""
    information = "thing-1.0.dist-info"
    files = {
        "thing.py": content,
        f"{information}/METADATA": f"Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n{requires}",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(text)}\n"
    path = directory / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{information}/RECORD": record}.items():
            archive.writestr(name, text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """The simple index of one project, as files."""
    (tmp_path / "simple" / "thing").mkdir(parents=True)
    return tmp_path / "simple" / "thing"


def pip(index: Path, lock: str, target: str) -> subprocess.CompletedProcess[str]:
    """Runs pip as the Makefile does, with that index alone."""
    (index / "index.html").write_text('<a href="thing-1.0-py3-none-any.whl">thing-1.0-py3-none-any.whl</a>')
    root = index.parents[1]
    (root / "lock").write_text(lock)
    command = [sys.executable, "-m", "pip", "--isolated", "install", "--disable-pip-version-check", "--no-cache-dir"]
    command += ["--require-hashes", "--no-deps", "--index-url", index.parent.as_uri(), "-r", str(root / "lock")]
    environment = {"PATH": "/usr/bin:/bin", "PIP_CONFIG_FILE": "/dev/null"}
    return subprocess.run(
        [*command, "--target", str(root / target)], capture_output=True, text=True, env=environment, timeout=120
    )


def test_a_changed_wheel_is_refused_and_the_pinned_one_installed(index: Path, tmp_path: Path) -> None:
    lock = f"thing==1.0 \\\n    --hash=sha256:{wheel(index, 'WHO = 1')}\n"
    assert pip(index, lock, "good").returncode == 0
    assert (tmp_path / "good" / "thing.py").read_text() == "WHO = 1"
    wheel(index, "WHO = 2")  # the same name and version, valid in itself
    refused = pip(index, lock, "bad")
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    assert not (tmp_path / "bad").exists()
    unpinned = pip(index, "thing==1.0\n", "bad")
    assert unpinned.returncode != 0
    assert not (tmp_path / "bad").exists()
