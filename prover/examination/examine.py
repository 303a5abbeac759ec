"""Examines a script: runs it followed and plain for a few steps, replays what was recorded, and says what that shows.

The script runs in processes of its own. What is recorded lies in a temporary folder, which is removed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prover.examination.child import REQUEST, answer_name
from prover.following.jobs import has_ranks
from prover.following.script import require_script
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.execution.job_replay import replay_job
from weighbridge.execution.replay import replay
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.transcript.job_record import RECORD

CHILD = "prover.examination.child"
_POLL_SECONDS = 0.05
_PATIENCE_SECONDS = 20.0
"""How long a script may take to end once it has been told to."""
_READ_ONLY = ("ValueError", "is read-only")
"""What stands in NumPy's error where an array is written to that lies on recorded memory."""

_TAIL = 20
"""Lines of the output of a script that failed."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to examine.

    Attributes:
        script: A Python file.
        arguments: Its arguments.
        steps: How many steps to record.
        seed: As for `follow`.
        policy: As for `follow`.
        evaluation: As for `follow`.
        ranks: On how many ranks it trains.
        seconds: How long each of its two runs may take.
    """

    script: Path
    arguments: Sequence[str] = ()
    steps: int = 5
    seed: int = 0
    policy: str = "mixed"
    evaluation: str = "native"
    ranks: int = 1
    seconds: float = 600.0


@dataclass(slots=True)
class Ran:
    """One run of a script.

    Attributes:
        folder: Where it wrote what was recorded.
        answers: What it answered, one of each rank; fewer if it ended without.
        timed_out: Whether it was ended because it took too long.
        seconds: How long it took.
        output: The last lines that it wrote.
    """

    folder: Path
    answers: list[dict[str, Any]]
    timed_out: bool
    seconds: float
    output: list[str]


@dataclass(slots=True)
class Evidence:
    """All that an examination has seen.

    Attributes:
        request: What was asked.
        followed: The run that was recorded.
        arrays: How the script failed because an array could not be written to; it was then allowed to.
        plain: The same script unrecorded; None if that could show nothing.
        replays: Results of the replays, by rank.
        verdict: Of all of them; None if there was nothing to replay.
        replay_seconds: How long that took.
        fault: Why there is no result of a replay, if there is none.
        sizes: Bytes of the transcript by folder.
    """

    request: Request
    followed: Ran
    arrays: dict[str, Any] | None
    plain: Ran | None
    replays: list[ReplayResult]
    verdict: str | None
    replay_seconds: float
    fault: WeighbridgeError | None
    sizes: dict[str, int]


def examine(request: Request, say: Callable[[str], None] = lambda text: None) -> Evidence:
    """Examines a script.

    Args:
        request: What to examine.
        say: Told what is being done.

    Raises:
        UsageError: There is no such script, or this is itself one of several ranks.
    """
    require_script(request.script)
    if has_ranks():
        raise UsageError("this is one of several ranks; start it once, without torchrun, and give --ranks instead")
    with tempfile.TemporaryDirectory(prefix="weighbridge-doctor-") as directory:
        folder = Path(directory)
        say("recording")
        followed = _run(request, folder / "strict", {"way": "followed", "writable": False})
        failure = next((answer["failure"] for answer in followed.answers if answer["failure"]), None)
        arrays = failure if failure is not None and all(text in failure["what"] for text in _READ_ONLY) else None
        if arrays is not None:  # so that what comes after it is seen too
            say("recording again, with arrays that may be written to")
            followed = _run(request, folder / "writable", {"way": "followed", "writable": True})
        say("running unrecorded")
        plain = _plain(request, folder / "plain", followed)
        run = followed.folder / "run"
        replays: list[ReplayResult] = []
        verdict, fault, seconds = None, None, 0.0
        if _steps(followed) and all(answer["faithful"] for answer in followed.answers):
            say("replaying")
            begin = time.monotonic()
            try:
                if (run / RECORD).is_file():
                    job = replay_job(run)
                    replays, verdict = [each for each in job.ranks if each is not None], job.verdict
                else:
                    replays = [replay(run)]
                    verdict = replays[0].verdict
            except WeighbridgeError as error:
                fault = error
            seconds = time.monotonic() - begin
        return Evidence(request, followed, arrays, plain, replays, verdict, seconds, fault, _sizes(run))


def _steps(followed: Ran) -> int:
    return min((answer.get("steps", 0) for answer in followed.answers), default=0)


def _plain(request: Request, folder: Path, followed: Ran) -> Ran | None:
    """Runs the script unrecorded, as far as it was recorded, or to learn whether it fails by itself."""
    answers = followed.answers
    failed = any(answer["ended"] == "failed" for answer in answers)
    if not answers or not (_steps(followed) or failed):
        return None
    cuts = max((answer["cuts"] for answer in answers if answer.get("cuts")), key=len, default=[0])
    until = len(answers[0].get("times", ())) + 1 if failed else max(cuts[-1], 1)
    more = cuts[2] - cuts[1] if len(cuts) > 2 and not failed else 0
    return _run(request, folder, {"way": "plain", "until": until, "more": more})


def _run(request: Request, folder: Path, what: dict[str, Any]) -> Ran:
    """Runs the script once, with a folder of its own."""
    folder.mkdir()
    options = {"seed": request.seed, "policy": request.policy, "evaluation": request.evaluation}
    (folder / REQUEST).write_text(json.dumps({"steps": request.steps, **options, **what}))
    launcher = ["-m", CHILD]
    if request.ranks > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(request.ranks), *launcher]
    command = [sys.executable, *launcher, str(folder), str(request.script), *request.arguments]
    names = [folder / answer_name(what["way"], rank) for rank in range(request.ranks)]
    # Modules beside the script are compiled into its folder otherwise, which is the user's.
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    begin = time.monotonic()
    with (folder / f"{what['way']}.output").open("w+b") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment, start_new_session=True
        )
        timed_out = False
        answered: float | None = None
        try:
            while process.poll() is None:
                time.sleep(_POLL_SECONDS)
                now = time.monotonic()
                if answered is None and all(name.is_file() for name in names):
                    answered = now
                timed_out = answered is None and now - begin > request.seconds
                if timed_out or (answered is not None and now - answered > _PATIENCE_SECONDS):
                    break
        finally:
            _end(process)
        output.seek(0)
        tail = output.read().decode(errors="replace").splitlines()[-_TAIL:]
    answers = [json.loads(name.read_text()) for name in names if name.is_file()]
    return Ran(folder, answers, timed_out, time.monotonic() - begin, tail)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a script, and what it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _sizes(run: Path) -> dict[str, int]:
    """Bytes of a transcript: of its steps (records, roundings, batches), and of tapes."""
    sizes = {"log": 0, "batches": 0, "steps": 0, "tapes": 0}
    places = {"rounding": "log", "batches": "batches", "steps": "steps", "tapes": "tapes"}
    for path in run.rglob("*"):
        if not path.is_file():
            continue
        name = path.parent.name
        if name == "tapes" or (name in places and not path.name.startswith("00000000")):
            sizes[places[name]] += path.stat().st_size
    return sizes
