"""`weighbridge replay RUN --executor jax`: the same question to a second implementation of what operations mean."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from weighbridge.cli._exits import Exit, one_line, print_json
from weighbridge.cli._inputs import require_transcript
from weighbridge.cli._packages import require
from weighbridge.core.errors import UsageError


def command(run: Path, steps: Callable[[], tuple[int, int] | None], executor: str, others: bool, as_json: bool) -> int:
    """Replays a run on one chip, on the CPU; returns the exit code.

    Args:
        run: The transcript.
        steps: Reads which steps are wanted, None for all.
        executor: As it was asked for.
        others: Whether options were given that only the first Executor has.
        as_json: Whether to print JSON.
    """
    if executor != "jax":
        raise UsageError(f"--executor takes torch or jax, not {executor!r}")
    if others or (run / "job.cbor").is_file():
        raise UsageError("--executor jax replays runs on one chip, on the CPU; of other options it takes --steps only")
    require_transcript(run)
    require("jax")
    from weighbridge.execution.second_replay import second_replay

    result = second_replay(run, steps=steps())
    if as_json:
        print_json(result.to_json())
        return Exit.NOTHING_FOUND if result.verdict == "match" else Exit.FINDINGS
    first, last = result.steps
    lacks = f": {one_line(result.lacks)}" if result.lacks else ""
    print(f"{result.verdict}{lacks}  steps {first}:{last}  state {result.state}")
    print(
        f"{result.rounded:,} roundings, {result.contested:,} of them in the log; "
        f"{result.followed:,} would have gone the other way here without it"
    )
    if result.first_difference is not None:
        print(f"first difference: {one_line(result.first_difference['message'])}")
    return Exit.NOTHING_FOUND if result.verdict == "match" else Exit.FINDINGS
