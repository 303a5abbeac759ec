"""The second Executor, imported by the first test that runs it: JAX starts threads, and other tests fork."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from weighbridge.execution.second_replay import SecondResult

NEEDED = pytest.mark.skipif(find_spec("jax") is None, reason="the second Executor needs the extra [jax]")
"""Marks what needs JAX."""


def replay(path: Path, **options: Any) -> SecondResult:
    """Replays a transcript in this process; see `weighbridge.execution.second.replay.replay`."""
    from weighbridge.execution.second import replay as second

    return second.replay(path, **options)
