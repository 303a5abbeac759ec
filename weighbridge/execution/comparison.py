"""Compares two local runs of one program: says where they part, and shows the elements of the first differing result.

The caller has both runs: recorded on two machines, say, or one with a change. As in a replay, a confined worker process
executes both, and its answer is read as hostile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weighbridge.core.errors import ReplayWorkerError, UsageError
from weighbridge.execution import location
from weighbridge.execution.worker_process import Limits, raise_error, rules_named, run_worker

MAX_ELEMENTS = 1000
_LIMITS = Limits()
_DEPTH, _ITEMS, _TEXT = 6, 2000, 4000


@dataclass(slots=True)
class Comparison:
    """Where two runs part.

    Attributes:
        equal: Nothing in the steps compared differs; what the drafts say differently does not count.
        runs: Their directories.
        steps: How many steps each has.
        compared: First step compared and the one after the last, had all been equal.
        draft: What they fixed differently before the first step: `name`, `a`, `b`.
        differences: Of the first step that differs, what entered it differently and then what came of it
            (`weighbridge.execution.differences`).
        operation: The operation whose results are shown (`step`, `op`, `operation`, `path`, `upstream`), or None.
        results: Its results, or the storages of the state that differ, side by side (`elements.compare`,
            and `name`).
        device: What executed both.
        confinement: Which restrictions the worker was under.
    """

    equal: bool
    runs: tuple[str, str]
    steps: tuple[int, int]
    compared: tuple[int, int]
    draft: list[dict[str, Any]] = field(default_factory=list)
    differences: list[dict[str, Any]] = field(default_factory=list)
    operation: dict[str, Any] | None = None
    results: list[dict[str, Any]] = field(default_factory=list)
    device: str = "cpu"
    confinement: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-compatible dictionary with every field."""
        return asdict(self)


def compare(
    a: str | Path,
    b: str | Path,
    *,
    step: int | None = None,
    op: int | None = None,
    elements: int = 16,
    device: str = "cpu",
    limits: Limits = _LIMITS,
    env: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    op_rules: Sequence[str] = (),
) -> Comparison:
    """Compares two runs.

    Args:
        a: Directory of the first transcript.
        b: Directory of the second.
        step: Compare this step alone; by default all, up to the first that differs.
        op: Show what this operation of `step` returned, whether or not it differs.
        elements: Differing elements to show of a result, at most.
        device: Where both are executed.
        limits: On memory and time.
        env: Environment for the worker, as for `replay`.
        progress: Called with (runs executed, 2).
        op_rules: Modules, or paths of Python files, that register rules, as for `replay`.

    Raises:
        UsageError: If the arguments make no sense for these runs.
        TranscriptError: If one is unreadable or altered, or (`replay.comparison`) cannot be executed here.
        ReplayWorkerError: If the worker died, ran out of its limits or answered nonsense.
    """
    if op is not None and step is None:
        raise UsageError("an operation is one of a step; give the step too")
    if not 0 < elements <= MAX_ELEMENTS:
        raise UsageError(f"the number of elements to show is 1 to {MAX_ELEMENTS}")
    runs = str(Path(a).resolve()), str(Path(b).resolve())
    request = {
        "paths": runs, "step": step, "op": op, "elements": elements, "device": device,
        "memory": limits.memory, "seconds": limits.seconds,
        "op_rules": rules_named(op_rules),
    }  # fmt: skip
    return _parse(run_worker("weighbridge.execution.workers.comparison_worker", request, limits, env, progress), runs)


def _parse(message: dict[str, Any], runs: tuple[str, str]) -> Comparison:
    """Reads the worker's answer as hostile: every field has its type or the answer is refused."""
    try:
        raise_error(message)
        raw = message["result"]
        return Comparison(
            equal=raw["equal"] is True,
            runs=runs,
            steps=_two(raw["steps"]),
            compared=_two(raw["compared"]),
            draft=_maps(raw["draft"]),
            differences=_maps(raw["differences"]),
            operation=None if raw["operation"] is None else _operation(raw["operation"]),
            results=_maps(raw["results"]),
            device=str(raw["device"])[:200],
            confinement=[str(c)[:50] for c in raw["confinement"]],
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise ReplayWorkerError(f"the comparison worker's answer is malformed ({type(error).__name__})") from None


def _two(raw: Any) -> tuple[int, int]:
    first, second = (int(n) for n in raw)
    return first, second


def _operation(raw: Any) -> dict[str, Any]:
    numbers = {key: int(raw[key]) for key in ("step", "op")}
    return {**numbers, "operation": str(raw["operation"])[:200], **location.checked(raw)}


def _maps(raw: Any) -> list[dict[str, Any]]:
    found = _plain(raw, _DEPTH)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise TypeError("expected a list of maps")
    return found


def _plain(raw: Any, depth: int) -> Any:
    """Copies maps, lists, whole numbers, texts and the like, within limits."""
    if depth == 0:
        raise ValueError("nested too deeply")
    if isinstance(raw, dict):
        return {str(k)[:100]: _plain(v, depth - 1) for k, v in list(raw.items())[:_ITEMS]}
    if isinstance(raw, list):
        return [_plain(v, depth - 1) for v in raw[:_ITEMS]]
    if isinstance(raw, str):
        return raw[:_TEXT].encode(errors="replace").decode()
    if raw is None or isinstance(raw, (bool, int)):
        return raw
    raise TypeError("expected plain data")
