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

from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution import job_questions, job_replay, run_facts, scoring, transcript_facts
from weighbridge.execution.dispute import asking, recorded
from weighbridge.execution.workers import (
    dispute_worker,
    job_questions_worker,
    run_facts_worker,
    scoring_worker,
    transcript_facts_worker,
)
from weighbridge.execution.workers.job_worker import JobReplay
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.transcript.reader import Transcript

allowed = True
"""False with `--apart`."""

Answered = Callable[[dict[str, Any], Callable[[Any], None]], dict[str, Any]]

WORKERS: dict[str, Answered] = {
    "weighbridge.execution.workers.replay_worker": lambda request, send: Replay(request, [], send).run(),
    "weighbridge.execution.workers.job_worker": lambda request, send: JobReplay(request, [], send).run(),
    "weighbridge.execution.workers.run_facts_worker": lambda request, send: run_facts_worker.count(
        Transcript.open(request["path"])
    ),
    "weighbridge.execution.workers.transcript_facts_worker": lambda request, send: transcript_facts_worker.answer(
        request
    ),
    "weighbridge.execution.workers.job_questions_worker": lambda request, send: job_questions_worker.answer(request),
    "weighbridge.execution.workers.dispute_worker": lambda request, send: dispute_worker.answer(request),
    "weighbridge.execution.workers.scoring_worker": lambda request, send: scoring_worker.score(request, [], send),
}


def run_worker(module: str, request: Mapping[str, Any], *_: Any) -> dict[str, Any]:
    """Answers as `weighbridge.execution.worker_process.run_worker` does, without confinement and limits on time."""
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
        for module in (
            sys.modules["weighbridge.execution.replay"],
            job_replay,
            run_facts,
            scoring,
            transcript_facts,
            job_questions,
            asking,
            recorded,
        ):
            patch.setattr(module, "run_worker", run_worker)
        yield
