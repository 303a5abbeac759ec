"""Makes everything that an emulated processor needs, from nothing, in a directory of its own; made once, then kept."""

from __future__ import annotations

import shutil
from pathlib import Path

from benchmarks.arm import debian, stubs, wheels

HOME = Path(__file__).parents[2] / ".arm"
STUBS = "stubs"
"""Directory of stand-ins for CUDA's libraries, below the directory of packages."""


def ready(home: Path = HOME) -> Path:
    """Sets up what is missing; returns the directory.

    Some 600 MB are downloaded, and 3 GB lie in the directory afterwards.

    Raises:
        debian.SetupError: This machine lacks a tool.
        subprocess.CalledProcessError: A tool failed, with its message on stderr.
    """
    home = home.resolve()
    debian.require()
    home.mkdir(parents=True, exist_ok=True)
    if not (home / ".system").exists():
        _say("Debian's Python for ARM, and QEMU")
        for name in ("root", "qemu", "cross"):
            shutil.rmtree(home / name, ignore_errors=True)
        debian.prepare(home)
        (home / ".system").touch()
    lock = wheels.locked(wheels.needed())
    if not (home / ".packages").exists() or (home / ".packages").read_text() != lock:
        _packages(home)
        (home / ".packages").write_text(lock)
    for name in ("cache", "runs"):
        (home / name).mkdir(exist_ok=True)
    return home


def _packages(home: Path) -> None:
    site, scratch = home / "site", home / "wheels"
    shutil.rmtree(site, ignore_errors=True)
    _say("the pinned packages, built for ARM")
    for wheel in wheels.download(scratch, wheels.needed()):
        wheels.unpack(wheel, site)
    wheels.describe_project(site)
    if (site / "torch/lib/libtorch_cuda.so").exists():
        _say("stand-ins for CUDA's libraries")
        wheels.cuda_runtime(site / STUBS, scratch / "cuda")
        libraries = stubs.missing(site, [home / "root", site / STUBS])
        stubs.build(libraries, site / STUBS, home / "cross")
    _say("bytecode of all packages")
    wheels.compile_modules(site)
    shutil.rmtree(scratch)


def _say(what: str) -> None:
    print(f"setting up: {what}", flush=True)
