"""timm and torchvision beside a PyTorch without CUDA, in a folder of their own for PYTHONPATH.

The package index has torchvision for CUDA only. Its operators cannot be loaded beside a CPU build of PyTorch, and its
Python code refuses to be imported without two of them. So the folder has a `sitecustomize` that declares those two;
nothing here calls them. With a torchvision that fits the installed PyTorch none of this is needed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import torch

REQUIREMENTS = ("timm==1.0.31", "torchvision==0.28.0")
TORCH = "2.13."
"""The PyTorch that this torchvision is made for."""

_DECLARED = """import torch

_library = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def fits() -> bool:
    """True if the installed PyTorch is the one that they are made for."""
    return torch.__version__.startswith(TORCH)


def environment(cache: Path) -> Mapping[str, str]:
    """Returns what to set for a process that imports timm; installs it where that has not been done yet.

    Args:
        cache: Where the folder is kept.

    Raises:
        CalledProcessError: It cannot be installed.
    """
    told = f"{REQUIREMENTS} {_DECLARED} {sys.version}"
    folder = cache / hashlib.sha256(told.encode()).hexdigest()[:16]
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        quiet = ("--quiet", "--disable-pip-version-check")
        command = [sys.executable, "-m", "pip", "install", *quiet, "--no-deps", "--target", str(folder), *REQUIREMENTS]
        subprocess.run(command, check=True)
        (folder / "sitecustomize.py").write_text(_DECLARED)
        (folder / "complete").touch()
    repository = Path(__file__).parents[1]
    paths = (str(folder), str(repository), os.environ.get("PYTHONPATH", ""))
    return {"PYTHONPATH": os.pathsep.join(path for path in paths if path)}
