"""Two parties that install the same releases make the same image, to the byte."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.station import ROOT

from weighbridge.execution.sealed import image as images


@pytest.mark.soak
def test_another_environment_makes_the_same_image(sealed_image: Path, tmp_path: Path) -> None:
    """It has its own copy of everything that is installed and of our code, at its own path and of its own time."""
    at = tmp_path / "another" / "place"
    shutil.copytree(sys.prefix, at / "env", symlinks=True, copy_function=os.link, ignore=_unneeded)
    for package in ("weighbridge", "verifier", "analysis", "protos", "prover", "firmware_sim"):
        shutil.copytree(ROOT / package, at / "own" / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (at / "own").rglob("*.py"):
        os.utime(path, (10**9, 10**9))
    (at / "own" / "weighbridge" / "scratch.bak").write_text("of an editor")
    (site,) = (at / "env" / "lib").glob("python*/site-packages")
    for path in [*(site / "cbor2").rglob("*.py"), *site.glob("cbor2-*.dist-info/RECORD")]:
        content = path.read_bytes()
        path.unlink()  # it is a link to the other's
        path.write_bytes(content)
    done = subprocess.run(
        [at / "env" / "bin" / "python", "-P", "-m", "weighbridge.cli", "site", "image", at / "image"],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(at / "own")},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    one, other = images.load(sealed_image), images.load(at / "image")
    assert images.differences(one, other) == []
    assert one.measurement == other.measurement
    loops = [each.name for each in other.files if each.name.endswith(".nbc")]
    assert len(loops) > 20
    places = [str(at).encode(), sys.prefix.encode(), str(ROOT).encode()]
    for name in (each.name for each in other.files if each.name.endswith((".nbc", ".nbi", ".pyc"))):
        content = (at / "image" / images.FILES / name).read_bytes()
        assert not any(place in content for place in places), name


def _unneeded(directory: str, names: list[str]) -> set[str]:
    return {each for each in names if each in ("__pycache__", "IPython", "mypy", "plotly", "playwright")}
