"""Compiled loops: what is kept, what cannot be kept, and when. `tests/cli/test_cli_warm.py` has whole machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

_LOADED = """
import json, sys
from support import first_recording
from numba.core.dispatcher import Dispatcher
from prover.recording.recorder import Recorder

def loops():
    found = [(n, k, v) for n, m in list(sys.modules.items()) if n.startswith("weighbridge") for k, v in vars(m).items()]
    return {f"{n}.{k}": len(v.signatures) for n, k, v in found if isinstance(v, Dispatcher)}

entered, enter = [], Recorder.__enter__
def noted(recorder):
    entered.append((result := enter(recorder), loops()))
    return result
Recorder.__enter__ = noted
first_recording.record(__import__("pathlib").Path(sys.argv[1]))
print(json.dumps([entered[0][1], loops()]))
"""


def test_no_loop_is_compiled_or_loaded_within_a_step(tmp_path: Path) -> None:
    """The compiler's leavings would hold tensors, and autograd copies the gradients that something else holds."""
    tests = Path(__file__).parents[2]
    paths = os.pathsep.join(map(str, (tests.parent, tests)))
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _LOADED, str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    before, after = json.loads(ran.stdout)
    assert sum(before.values()) > 20
    assert before == after


def test_what_cannot_be_kept_is_compiled_all_the_same(tmp_path: Path) -> None:
    """An index of compiled code that is a directory can be read and written by no process, whatever its rights."""
    source = tmp_path / "loops.py"
    source.write_text(
        "from weighbridge.core.jit import compiled\n"
        "@compiled()\n"
        "def double(x):\n"
        "    return 2 * x\n"
        "from pathlib import Path\n"
        "index = Path(double._cache.cache_path) / double._cache._cache_file._index_name\n"
        "index.mkdir(parents=True)\n"
        "from weighbridge.core.jit import lost\n"
        "print(double(21), lost())\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    ran = subprocess.run([sys.executable, str(source)], env=environment, capture_output=True, text=True, timeout=120)
    assert ran.stdout == "42 1\n", ran.stderr


def test_without_any_directory_for_them_loops_are_compiled_each_time(tmp_path: Path) -> None:
    source = tmp_path / "loops.py"
    source.write_text(
        "from numba.core.caching import CacheImpl\n"
        "CacheImpl._locator_classes = []\n"
        "from weighbridge.core.jit import compiled, lost, watched\n"
        "@compiled()\n"
        "def double(x):\n"
        "    return 2 * x\n"
        "seen = []\n"
        "with watched(lambda: seen.append(1)):\n"
        "    print(double(21), double(22), seen, lost())\n"
    )
    ran = subprocess.run([sys.executable, str(source)], capture_output=True, text=True, timeout=120)
    assert ran.stdout == "42 44 [1] 1\n", ran.stderr


def test_loops_that_are_compiled_are_noticed_and_those_that_are_loaded_are_not(tmp_path: Path) -> None:
    source = tmp_path / "loops.py"
    source.write_text(
        "from weighbridge.core.jit import compiled, watched\n"
        "@compiled()\n"
        "def double(x):\n"
        "    return 2 * x\n"
        "seen = []\n"
        "with watched(lambda: seen.append(len(double.signatures))):\n"
        "    double(21), double(22), double(2.5)\n"
        "double(1j)\n"
        "print(seen)\n"
    )
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    said = [
        subprocess.run(
            [sys.executable, str(source)], env=environment, capture_output=True, text=True, timeout=120, check=True
        ).stdout
        for _ in range(2)
    ]
    assert said == ["[0, 1]\n", "[]\n"]


def test_a_machine_that_lacks_a_loop_knows_it(tmp_path: Path) -> None:
    """Also if it is one that has only some of them, or that has them of another version of the source."""
    source = tmp_path / "loops.py"
    text = (
        "from weighbridge.core import jit\n"
        "@jit.compiled()\n"
        "def double(x):\n"
        "    return 2 * x\n"
        "@jit.compiled()\n"
        "def half(x):\n"
        "    return x / 2\n"
        "@jit.compiled(early=False)\n"
        "def rare(x):\n"
        "    return x\n"
        "import sys\n"
        "print(jit.lacks(), *sorted({str(path) for path in jit.directories()}))\n"
        "[globals()[name](2) for name in sys.argv[1:]]\n"
    )
    source.write_text(text)

    def lacks(*used: str) -> tuple[str, int]:
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        command = [sys.executable, str(source), *used]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)
        said, *directories = ran.stdout.split()
        assert all(Path(each).is_relative_to(tmp_path / "cache") for each in directories)
        return said, len(directories)

    assert lacks("double")[0] == "True"
    assert lacks("half") == ("True", 1)
    assert lacks() == ("False", 1)
    source.write_text(text + "# another version\n")
    assert lacks()[0] == "True"
