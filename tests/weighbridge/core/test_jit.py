"""Compiled loops where nothing is compiled yet: a Verifier's new machine, whose replay worker may not write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.recordings import train
from torch import nn

from prover import Recorder
from weighbridge.transcript.reader import Transcript


def _record(path: Path) -> Recorder:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(3, 2), nn.Flatten(), nn.LayerNorm(36),
            nn.Softmax(-1), nn.Dropout(0.1), nn.Linear(36, 5),
        )  # fmt: skip
        return model, torch.optim.AdamW(model.parameters())

    def step(batch: dict[str, torch.Tensor], model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        nn.functional.cross_entropy(model(batch["x"]), batch["y"]).backward()
        optimizer.step()
        optimizer.zero_grad()

    generator = torch.Generator().manual_seed(1)
    batch = {"x": torch.randn(4, 1, 9, 9, generator=generator), "y": torch.tensor([0, 1, 2, 3])}
    return train(path, build, step, [batch])


def _files(cache: Path) -> set[str]:
    return {file.name for file in cache.rglob("*.nbc")}


@pytest.mark.slow
def test_a_machine_that_has_compiled_nothing_replays(tmp_path: Path) -> None:
    """All that a replay needs is compiled before the worker is confined, and kept for the next one."""
    _record(tmp_path / "run")
    cache = tmp_path / "cache"
    cache.mkdir()
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    warm = "from weighbridge.numerics.warm import warm; warm()"
    subprocess.run([sys.executable, "-c", warm], env=environment, check=True, timeout=300)
    before = _files(cache)
    command = [sys.executable, "-m", "weighbridge.cli", "replay", str(tmp_path / "run")]
    subprocess.run(command, env=environment, check=True, timeout=300, capture_output=True)
    assert _files(cache) == before
    assert before


_LOADED = """
import json, sys
import test_jit
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
test_jit._record(__import__("pathlib").Path(sys.argv[1]))
print(json.dumps([entered[0][1], loops()]))
"""


def test_no_loop_is_compiled_or_loaded_within_a_step(tmp_path: Path) -> None:
    """The compiler's leavings would hold tensors, and autograd copies the gradients that something else holds."""
    tests = Path(__file__).parents[2]
    paths = os.pathsep.join(map(str, (tests.parent, tests, Path(__file__).parent)))
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _LOADED, str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    before, after = json.loads(ran.stdout)
    assert sum(before.values()) > 20
    assert before == after


@pytest.mark.slow
def test_the_first_recording_on_a_machine_is_like_the_next(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    tests = Path(__file__).parents[2]
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (tests.parent, tests, Path(__file__).parent)))
    program = "import sys, pathlib, test_jit; test_jit._record(pathlib.Path(sys.argv[1]))"
    heads, said = [], []
    for number in range(2):
        run = tmp_path / str(number) / "run"
        command = [sys.executable, "-W", "ignore", "-c", program, str(run)]
        ran = subprocess.run(command, env=environment, check=True, timeout=300, stderr=subprocess.PIPE, text=True)
        heads.append(Transcript.open(run).manifest.head)
        said.append(ran.stderr.splitlines())
    assert heads[0] == heads[1]
    assert said[0][0].startswith("weighbridge: compiling kernels for this machine, once: 0/")
    assert said[1] == []


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
