"""Models of matrix units return what eight GPUs computed: 240,000 sums that Khattak and Mikaitis published.

The recordings are fetched with git at the first use, or read from `WEIGHBRIDGE_UNIT_RECORDINGS`, which names a checkout
or an archive (see `benchmarks.units_against_recordings`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.units_against_recordings import COMMIT, REPOSITORY, Recordings, compare

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module")
def recordings(pytestconfig: pytest.Config) -> Recordings:
    given = os.environ.get("WEIGHBRIDGE_UNIT_RECORDINGS")
    if given:
        return Recordings(Path(given))
    directory = Path(pytestconfig.cache.mkdir("interop")) / f"recordings-{COMMIT[:16]}"  # type: ignore[union-attr]
    if not (directory / "model_validation").is_dir():
        shutil.rmtree(directory, ignore_errors=True)
        git = ["git", "-C", str(directory)]
        subprocess.run(["git", "init", "--quiet", str(directory)], check=True)
        fetched = subprocess.run(
            [*git, "fetch", "--quiet", "--depth", "1", REPOSITORY, COMMIT], capture_output=True, text=True, timeout=300
        )
        if fetched.returncode:
            pytest.skip(f"no recordings of GPUs: cannot fetch {REPOSITORY}: {fetched.stderr.strip()}")
        subprocess.run([*git, "checkout", "--quiet", "FETCH_HEAD"], check=True)
    return Recordings(directory)


def test_every_output_is_what_the_gpu_computed(recordings: Recordings) -> None:
    compared = list(compare(recordings))
    assert [each for each in compared if each.differ] == []
    assert sum(each.outputs for each in compared) == 240_000
