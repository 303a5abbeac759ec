"""The workers of an inspection in the test's own process: the code that they run, without their start-up time.

A worker imports PyTorch anew, which takes longer than the rest of a small inspection. That the same comes out of
workers of their own is shown by `pytest tests/findings --apart` (part of `make soak`), which does not use this.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from weighbridge import job_replay, runfacts, runfacts_worker, scoring, scoring_worker
from weighbridge.errors import WeighbridgeError
from weighbridge.job_worker import JobReplay
from weighbridge.replay_worker import Replay
from weighbridge.transcript import Transcript

allowed = True
"""False with `--apart`."""

Answered = Callable[[dict[str, Any], Callable[[Any], None]], dict[str, Any]]

WORKERS: dict[str, Answered] = {
    "weighbridge.replay_worker": lambda request, send: Replay(request, [], send).run(),
    "weighbridge.job_worker": lambda request, send: JobReplay(request, [], send).run(),
    "weighbridge.runfacts_worker": lambda request, send: runfacts_worker.count(Transcript.open(request["path"])),
    "weighbridge.scoring_worker": lambda request, send: scoring_worker.score(request, [], send),
}


def run_worker(module: str, request: Mapping[str, Any], *_: Any) -> dict[str, Any]:
    """Answers as `weighbridge.replay.run_worker` does, without confinement and limits on time."""
    try:
        with torch.no_grad(), torch.backends.mkldnn.flags(enabled=False):
            result = WORKERS[module](json.loads(json.dumps(request)), lambda message: None)
    except WeighbridgeError as error:
        return {"error": {"code": error.reason, "message": error.message}}
    answer: dict[str, Any] = json.loads(json.dumps({"result": result}))
    return answer


@contextmanager
def workers_here() -> Iterator[None]:
    """Keeps workers in this process for a while, if that is allowed."""
    if not allowed:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for module in (sys.modules["weighbridge.replay"], job_replay, runfacts, scoring):
            patch.setattr(module, "run_worker", run_worker)
        yield
