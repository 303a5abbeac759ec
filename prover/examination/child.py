"""Runs a script for an examination, in a process of its own: `python -m prover.examination.child FOLDER SCRIPT ...`.

FOLDER holds `request.json`; the answer is written there, one for each rank, before the process ends. The script runs
either followed, or plain to learn how fast it is by itself.
"""

from __future__ import annotations

import json
import math
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from prover.capture.user_line import text_of, user_line
from prover.examination.examined_program import ExaminedFollower, examined
from prover.examination.observations import Observations, Obstacle
from prover.examination.pace import Enough, LineTimes, TimedOperations, now, peaks
from prover.following.follow import Following, begin, require_alone
from prover.following.jobs import has_ranks, joined
from prover.following.notes import Notes, UndeclaredInputWarning
from prover.following.script import Ended, once_joined, run_script
from weighbridge.core.errors import WeighbridgeError
from weighbridge.program.origins import analyse
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import Tape

REQUEST = "request.json"
_OURS = ("prover", "weighbridge")

UNTRAINED = Obstacle(
    "usage",
    "the script trained nothing: no model was called with gradients after an optimizer was made for it",
    "examine the script that trains; if this one starts others, or processes, for that, examine those (--ranks)",
)


def answer_name(way: str, rank: int) -> str:
    """Returns the name of the file with the answer of a rank."""
    return f"{way}-{rank}.json"


def main() -> None:
    """Runs the script that the command line names."""
    folder, script, arguments = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    request = json.loads((folder / REQUEST).read_text())
    work: Callable[[Path, dict[str, Any], Path, list[str]], dict[str, Any]] = (
        _followed if request["way"] == "followed" else _plain
    )
    answer = work(folder, request, script, arguments)
    name = answer_name(request["way"], int(os.environ.get("RANK", "0")))
    (folder / f"{name}.new").write_text(json.dumps(answer))
    (folder / f"{name}.new").rename(folder / name)


def _followed(folder: Path, request: dict[str, Any], script: Path, arguments: list[str]) -> dict[str, Any]:
    """Runs a script followed, and says what it met."""
    warnings.filterwarnings("ignore", category=UndeclaredInputWarning)
    observed, notes = Observations(), Notes()
    begun: list[tuple[Following, ExaminedFollower]] = []

    def start() -> None:
        require_alone()
        job = joined(None)
        options = {"seed": request["seed"], "policy": request["policy"], "job": job}
        recorder = examined(folder / "run", observed, **options)
        native = request["evaluation"] == "native" and job is None
        writable = request["writable"]
        follower = ExaminedFollower(recorder, notes, native=native, steps=request["steps"], writable=writable)
        begun.append((begin(recorder, notes, follower), follower))

    joins = has_ranks()
    with ExitStack() as stack:
        stack.enter_context(_Watched(observed))
        if not joins:
            start()
        stack.enter_context(once_joined(start) if joins else nullcontext())
        ended = run_script(script, arguments)
        memory = peaks()
        for following, follower in begun:
            _close(following, follower, observed, ended)
    answer = {
        **observed.to_json(),
        **_end(ended, enough=any(follower.over for _, follower in begun)),
        "memory": memory,
        "begun": bool(begun),
    }
    for following, follower in begun:
        answer |= _told(following, follower, observed, notes)
    return answer


def _close(following: Following, follower: ExaminedFollower, observed: Observations, ended: Ended) -> None:
    """Ends the recording; what is wrong with it then is taken down."""
    if not ended.code and not follower.over and not following.updates and not follower.cuts:
        observed.add(UNTRAINED, 0)
    try:
        following.close(ended.error if ended.code else None)
    except WeighbridgeError as error:
        if not ended.code and UNTRAINED not in observed.obstacles:
            observed.met(error, following.updates)
    except Enough:
        pass
    if len(follower.cuts) <= following.updates:
        follower.cuts.append(len(follower.times))


def _told(following: Following, follower: ExaminedFollower, observed: Observations, notes: Notes) -> dict[str, Any]:
    """What the recording says once it is closed."""
    undeclared = [
        {
            "step": note.step, "line": note.line, "shape": list(note.shape), "dtype": str(note.dtype),
            "module": note.module, "cause": note.cause, "source": note.source,
            "bytes": math.prod(note.shape) * note.dtype.itemsize,
        }
        for note in notes.undeclared
        if (note.step, note.name) not in observed.entered
    ]  # fmt: skip
    taken = [
        {"line": each.line, "name": each.name, "shape": list(each.shape), "dtype": str(each.dtype)}
        for each in notes.taken.values()
    ]
    whole = Transcript.open(following.path) if (following.path / "manifest.json").is_file() else None
    training = [] if whole is None else [record for record in whole.records() if record.kind == "step"]
    return {
        "steps": following.updates,
        "failed": following.failed,
        "times": follower.times,
        "cuts": follower.cuts,
        "keeping": follower.keeping,
        "state_bytes": follower.state_bytes,
        "lines": follower.operations.lines.to_json(),
        "undeclared": undeclared,
        "taken": taken,
        "programs": len({record.tape for record in training}),
        "batches": len({_shapes(whole, record.step) for record in training}) if whole is not None else 0,
        "values": {} if whole is None else _values(whole, follower, observed),
    }


def _shapes(transcript: Transcript, step: int) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Names and shapes of a step's batch."""
    return tuple(sorted((name, tuple(t.shape)) for name, t in transcript.batch(step).items()))


def _values(transcript: Transcript, follower: ExaminedFollower, observed: Observations) -> dict[str, list[str]]:
    """Returns lines of the values that follow from no formula, by hex digest of the tape."""
    found: dict[str, list[str]] = {}
    tapes = {digest: Tape.decode(transcript.tape(digest)) for digest in transcript.programs()}
    try:
        values = analyse(transcript, tapes.__getitem__)
    except WeighbridgeError:
        return found  # a Verifier says the same, and why
    for digest, each in values.items():
        places = follower.operations.values.get(each.first, [])
        numbers = [i.name for i in tapes[digest].inputs if i.origin == "free" and i.bytes <= 8]
        lines: dict[str, None] = {}
        for position, formula in sorted(each.changing.items()):
            if formula is not None:
                continue
            if position < len(places):
                place = places[position]
                lines[text_of(place) if place else ""] = None
            elif not any((each.first, name) in observed.entered for name in numbers):
                lines[""] = None
        if each.undeclared_values:
            found[digest.hex()] = list(lines)
    return found


def _plain(folder: Path, request: dict[str, Any], script: Path, arguments: list[str]) -> dict[str, Any]:
    """Runs a script as it is, until its optimizers have made so many steps, and one step more with a profile."""
    times: list[float] = []
    lines = LineTimes()
    memory: dict[str, int] = {}
    profile = TimedOperations(lines)
    until, more = request["until"], request["more"]

    def stepped(*_: Any) -> None:
        if len(times) < until:
            times.append(now())
            if len(times) == until:
                memory.update(peaks())
                if not more:
                    raise Enough
                profile.__enter__()  # type: ignore[no-untyped-call]
            return
        profiled.append(None)
        if len(profiled) >= more:
            raise Enough

    profiled: list[None] = []
    hook = register_optimizer_step_post_hook(stepped)
    ended = run_script(script, arguments)
    hook.remove()
    whole = len(profiled) >= more > 0
    return {
        **_end(ended, enough=len(times) >= until),
        "times": times,
        "memory": memory or peaks(),
        "lines": lines.to_json() if whole else [],
    }


def _end(ended: Ended, *, enough: bool) -> dict[str, Any]:
    """How a script ended: by itself, with enough seen, or by an error."""
    error = ended.error
    if isinstance(error, Enough) or (enough and not ended.code):
        return {"ended": "enough", "failure": None}
    if not ended.code:
        return {"ended": "itself", "failure": None}
    if isinstance(error, SystemExit):
        what = f"it ended with exit code {ended.code}"
    else:
        what = f"{type(error).__name__}: {error}"
    frames = [] if error is None else traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith("<")]
    roots = [str(Path(sys.modules[name].__file__ or "").parent) for name in _OURS]
    theirs = [f for f in own if not f.filename.startswith(tuple(roots))]
    line = f"{theirs[-1].filename}:{theirs[-1].lineno}: {theirs[-1].line}" if theirs else ""
    ours = bool(frames) and frames[-1].filename.startswith(tuple(roots))
    return {"ended": "failed", "failure": {"what": what, "line": line, "ours": ours, "code": ended.code}}


class _Watched:
    """Notices what a recording does not follow: compiled functions, and processes that the script starts."""

    def __init__(self, observed: Observations) -> None:
        self._observed = observed
        self._stack = ExitStack()

    def __enter__(self) -> None:
        self._replace(torch, "compile", self._compile)
        self._replace(torch.multiprocessing, "spawn", self._spawn)

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _replace(self, owner: Any, name: str, told: Callable[[], None]) -> None:
        plain = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            told()
            return plain(*args, **kwargs)

        setattr(owner, name, watched)
        self._stack.callback(setattr, owner, name, plain)

    def _compile(self) -> None:
        what = "torch.compile compiles nothing while the script is recorded: its operations are recorded one by one"
        self._observed.notes[what, user_line()] = None

    def _spawn(self) -> None:
        self._observed.add(
            Obstacle(
                "usage", "the script starts processes of its own, in which nothing is recorded",
                "let torchrun start the script on every rank, and examine it with --ranks", user_line(),
            ),
            0,
        )  # fmt: skip
        raise Enough


if __name__ == "__main__":
    main()
