"""Environments that lack a package: real ones, whose other packages are those of this one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path


def without(path: Path, *packages: str) -> Path:
    """Makes an environment at `path` that has all packages of this one but some; returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", path], check=True)
    (site,) = (path / "lib").glob("python*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if entry.name.partition("-")[0] not in packages:
            (site / entry.name).symlink_to(entry)
    return path / "bin" / "python"


def run(python: Path, *arguments: str | Path, cwd: Path, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    """Runs `weighbridge ARGUMENTS` with that interpreter, in `cwd`, for `seconds` at most."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    command = [python, "-m", "weighbridge.cli", *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=seconds)
