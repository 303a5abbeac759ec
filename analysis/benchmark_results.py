"""Results of this repository's benchmarks, read as data: what recording and replaying took on one machine.

The files are those that `make bench` writes to `benchmarks/results`. They say when and on what they were measured, and
so must any text that quotes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.domain import DetectionDomainError, positive
from analysis.economics import Shape

_LARGEST_FILE = 16 * 2**20
_WAYS = ("plain", "wide", "recorded", "replayed", "published")


class ResultError(DetectionDomainError):
    """A result file that is not there or not what its benchmark writes; the message names file and key."""


@dataclass(frozen=True)
class Machine:
    """When and on what a result was measured."""

    date: str
    processor: str
    threads: int
    torch: str

    def __str__(self) -> str:
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{self.date}: {self.processor}, {threads}, torch {self.torch}"


@dataclass(frozen=True)
class StepTime:
    """Median milliseconds of a model's step: plain, computed in the wide type, recorded, replayed, and as published."""

    model: str
    plain: float
    wide: float
    recorded: float
    replayed: float
    published: float


@dataclass(frozen=True)
class LogSize:
    """What one recorded shape keeps for a step.

    Attributes:
        shape: The model and its batch.
        elements: Rounded elements.
        contested: Contested ones among them.
        log_bytes: Bytes of the rounding log.
        record_bytes: Bytes of the step record of a run with its logs on demand.
    """

    shape: Shape
    elements: float
    contested: float
    log_bytes: float
    record_bytes: float


def step_times(results: Path) -> tuple[Machine, tuple[StepTime, ...]]:
    """Reads `steps.json`, which `benchmarks.bench_steps` writes.

    Args:
        results: Directory of the result files.

    Raises:
        ResultError: It is not there or not what it should be.
    """
    path = results / "steps.json"
    content = _read(path)
    found = []
    for name, model in _mapping(content, "models", path).items():
        times = _mapping(model, "milliseconds", path)
        medians = {way: _number(_mapping(times, way, path), "median", path) for way in _WAYS}
        found.append(StepTime(name, **medians))
    return _machine(content, path), tuple(found)


def log_sizes(results: Path) -> tuple[Machine, dict[str, tuple[LogSize, ...]]]:
    """Reads `shapes.json`, which `benchmarks.bench_shapes` writes, by precision.

    Args:
        results: Directory of the result files.

    Raises:
        ResultError: It is not there or not what it should be.
    """
    path = results / "shapes.json"
    content = _read(path)
    found = {}
    for precision, rows in _mapping(content, "precisions", path).items():
        if not isinstance(rows, list):
            raise ResultError(f"{path}: {precision!r:.40} is no list of shapes; measure again")
        found[precision] = tuple(_size(row, path) for row in rows)
    return _machine(content, path), found


def regenerations(results: Path) -> tuple[Machine, dict[str, tuple[float, float]]]:
    """Reads `logs_on_demand.json`: by model and precision, times of a step over the plain one.

    Args:
        results: Directory of the result files.

    Returns:
        What it was measured on; and of each model how long recording with logs on demand takes, and making a log later.

    Raises:
        ResultError: It is not there or not what it should be.
    """
    path = results / "logs_on_demand.json"
    content = _read(path)
    found = {}
    for name, model in _mapping(content, "models", path).items():
        times = _mapping(model, "milliseconds", path)
        plain, recorded, again = (
            _number(_mapping(times, way, path), "median", path) for way in ("plain", "on-demand", "regenerated")
        )
        found[name] = recorded / plain, again / plain
    return _machine(content, path), found


def sketches(results: Path) -> tuple[Machine, dict[str, float]]:
    """Reads `sketched_logs.json`: by model and precision, bytes of a step's sketched log over those of its full log.

    Args:
        results: Directory of the result files.

    Raises:
        ResultError: It is not there or not what it should be.
    """
    path = results / "sketched_logs.json"
    content = _read(path)
    found = {}
    for name, model in _mapping(content, "models", path).items():
        sizes = _mapping(model, "bytes_a_step", path)
        found[name] = _number(sizes, "sketch", path) / _number(sizes, "full", path)
    return _machine(content, path), found


def stalls(results: Path) -> tuple[Machine, tuple[tuple[float, float], ...]]:
    """Reads from `chip.json` how long a snapshot stops a chip: pairs of bytes of memory and seconds.

    Args:
        results: Directory of the result files.

    Raises:
        ResultError: It is not there or not what it should be.
    """
    path = results / "chip.json"
    content = _read(path)
    rows = content.get("stalls")
    if not isinstance(rows, list) or not rows:
        raise ResultError(f"{path}: has no list 'stalls'; measure again with python -m benchmarks.bench_chip")
    pairs = [(_number(row, "mebibytes", path) * 2**20, _number(row, "median_ms", path) / 1e3) for row in rows]
    return _machine(content, path), tuple(pairs)


def _size(row: Any, path: Path) -> LogSize:
    names = ("parameters", "layers", "width", "heads", "context", "vocabulary")
    shape = Shape(
        **{name: _number(row, name, path) for name in names},
        tokens=_number(row, "rows", path) * _number(row, "context", path),
    )
    steps, rounded = _number(row, "steps", path), _number(row, "rounded", path)
    return LogSize(
        shape=shape,
        elements=rounded / steps,
        contested=_number(row, "logged", path) / steps,
        log_bytes=_number(row, "log_bytes", path) / steps,
        record_bytes=_number(row, "record_bytes", path) / steps,
    )


def _machine(content: Mapping[str, Any], path: Path) -> Machine:
    texts = {name: content.get(name) for name in ("date", "processor", "torch")}
    for name, text in texts.items():
        if not isinstance(text, str):
            raise ResultError(f"{path}: has no {name!r}, so what it was measured on is unknown; measure again")
    return Machine(
        date=str(texts["date"]),
        processor=str(texts["processor"]),
        threads=int(_number(content, "threads", path)),
        torch=str(texts["torch"]),
    )


def _read(path: Path) -> Mapping[str, Any]:
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ResultError(f"{path}: larger than {_LARGEST_FILE} bytes, so no result of a benchmark")
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise ResultError(f"{path}: cannot be read ({error.strerror}); `make bench` writes it") from None
    except (ValueError, RecursionError):
        raise ResultError(f"{path}: no JSON; `make bench` writes it") from None
    if not isinstance(content, dict):
        raise ResultError(f"{path}: no JSON object; `make bench` writes it")
    return content


def _mapping(content: Any, key: str, path: Path) -> Mapping[str, Any]:
    value = content.get(key) if isinstance(content, dict) else None
    if not isinstance(value, dict):
        raise ResultError(f"{path}: has no object {key!r}; measure again")
    return value


def _number(content: Any, key: str, path: Path) -> float:
    value = content.get(key) if isinstance(content, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ResultError(f"{path}: has no number {key!r}; measure again")
    try:
        return float(positive(key, value, "anything"))
    except (DetectionDomainError, OverflowError):
        raise ResultError(f"{path}: {key} is {value!r:.40}, which is no positive number; measure again") from None
