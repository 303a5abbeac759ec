"""Replays a transcript in a process of its own and says whether it holds.

The parent never looks into the transcript: a spawned worker without keys, database or network does, and the parent
reads its small answer as hostile. `import weighbridge` loads this module, so it loads no PyTorch until there is an
answer to read.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from weighbridge.core.announcement import compiling
from weighbridge.core.bounded import decode_json
from weighbridge.core.errors import (
    Finding,
    FormatError,
    ReplayWorkerError,
    Severity,
    TranscriptError,
    UsageError,
    WeighbridgeError,
)
from weighbridge.execution import fork_server
from weighbridge.execution.recognition.outcome import Recognition
from weighbridge.execution.recognition.outcome import parse as parse_recognition
from weighbridge.execution.sensitivity import SEED, Sensitivity, check_count
from weighbridge.execution.sensitivity import parse as parse_sensitivity
from weighbridge.program import chosen_bits
from weighbridge.program.tape_policy import AS_DESIGNED, TapePolicy

if TYPE_CHECKING:
    from weighbridge.transcript.job_record import MeshCoordinate
from weighbridge.transcript.training_claims import CLAIMS

Verdict = Literal["match", "match given collectives", "mismatch", "inconclusive"]

_PASSED = (
    "PATH", "HOME", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "PYTHONPATH", "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR",
    "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUBLAS_WORKSPACE_CONFIG", "ATEN_CPU_CAPABILITY", "OMP_NUM_THREADS",
    "MKL_NUM_THREADS", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA",
)  # fmt: skip
MAX_LINE, _MAX_ITEMS = 256 << 20, 1 << 24
"""Bytes and items of one line of a worker's answer."""
MOST_FINDINGS = 1_000
"""Findings in an answer: a transcript may have a hundred thousand programs, each with something to be said of it."""
_GRAVEST: tuple[Severity, ...] = ("violation", "warning", "info")
_MAX_COUNT = 1 << 40
_MAX_RECOGNISED = 1 << 12
_WATCH_SECONDS = 0.2
Worker = Callable[
    [
        str,
        Mapping[str, Any],
        "Limits",
        Mapping[str, str] | None,
        Callable[[int, int], None] | None,
        Callable[[], bool] | None,
    ],
    dict[str, Any],
]
"""Has a worker process run somewhere: takes what `run_worker` takes, and returns and raises the same."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a replay may use.

    Attributes:
        memory: Bytes of storages of one tape, and (on the CPU) of address space beyond the interpreter's own, times
            two.
        seconds: Wall-clock and processor time.
    """

    memory: int = 16 << 30
    seconds: int = 6 * 3600


@dataclass(slots=True)
class ReplayResult:
    """What a replay found.

    Attributes:
        verdict: `match`, `mismatch`, or `inconclusive` (not evidence against the Prover); `match given collectives` of
            one rank whose collectives' results were taken as given.
        steps: First step executed and the one after the last.
        state: Hex digest of the final state.
        followed: Roundings that the log changed: without the log this replay would have differed there.
        logged: Entries in the rounding logs of the executed steps.
        rounded: Elements rounded.
        calibrated: Those of them whose bounds are calibrated (measured); the bounds of the others are strict (proven).
        evidence: What the rounding logs chose (`weighbridge.execution.choice_statistics`): counts, and `tests` with
            p-values.
        tapes: By hex digest of each tape that this replay ran: `kind`, `count` of executions, `operations`; and over
            the whole transcript `free_values` and `free_bytes` (values and tensors that entered undeclared),
            `once_bytes` of constants if it ran only once, and how many changing values are `derived` by formulas.
        chosen: The ledger of chosen bits over the whole transcript, by channel (`weighbridge.program.chosen_bits`):
            `bits`, the `step` that brought most (-1 for the whole run) with its `step_bits`, and `what` brought most.
            Its `roundings` are those of the executed steps.
        findings: What is wrong or worth knowing.
        recognised: What training the steps that were looked at are; see docs/recognition.md.
        first_difference: `step`, `op`, `operation`, `expected`, `found`; `path` and `upstream` (see
            `weighbridge.execution.location.locate`): the module, by the Prover's word, and what the operands came
            from. None on a match.
        live: At a stop: live storages as (bytes, hex keyed digest).
        running: At a stop: hex digest of the step's operations so far.
        head: At a stop: hex running head of the transcript before the step in progress.
        weights: At a stop: those of the live storages that the transcript names as the model's weights; None if it
            names none.
        touched: At a stop: bytes of the storages that the next operation reads or makes.
        flops: At a stop: FLOPs of all operations of the transcript up to there, by `weighbridge.program.flops`; None
            if a tape cannot be counted.
        narrow: At a stop: elements in 16 bits that these operations computed.
        sensitivity: How steps that the Verifier sampled responded (`weighbridge.execution.sensitivity`); None if it
            asked for none.
        device: What replayed it.
        confinement: Which restrictions the worker was under.
        recognition_failed: Why no step was recognised although that was asked for; empty otherwise.
    """

    verdict: Verdict
    steps: tuple[int, int]
    state: str
    followed: int = 0
    logged: int = 0
    rounded: int = 0
    calibrated: int = 0
    evidence: dict[str, Any] = field(default_factory=dict)
    tapes: dict[str, dict[str, Any]] = field(default_factory=dict)
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    recognised: list[Recognition] = field(default_factory=list)
    first_difference: dict[str, Any] | None = None
    live: list[tuple[int, str]] | None = None
    running: str | None = None
    head: str | None = None
    weights: list[tuple[int, str]] | None = None
    touched: int = 0
    flops: int | None = None
    narrow: int = 0
    sensitivity: Sensitivity | None = None
    device: str = "cpu"
    confinement: list[str] = field(default_factory=list)
    recognition_failed: str = ""

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-compatible dictionary with every field."""
        return asdict(self)


def replay(
    path: str | Path,
    *,
    steps: tuple[int, int] | None = None,
    device: str = "cpu",
    stop: tuple[int, int] | None = None,
    salt: bytes | None = None,
    limits: Limits = Limits(),
    env: Mapping[str, str] | None = None,
    op_rules: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
    tapes: TapePolicy = AS_DESIGNED,
    results: str | Path | None = None,
    coordinate: MeshCoordinate | None = None,
    cancelled: Callable[[], bool] | None = None,
    worker: Worker | None = None,
    recognise: int = 0,
    recognise_seed: int | None = None,
    claims: str | Path | None = None,
    sensitivity: int = 0,
    supplements: str | Path | None = None,
) -> ReplayResult:
    """Replays a transcript: executes its tapes, follows its rounding logs, compares every checksum and state digest.

    Args:
        path: Transcript directory.
        steps: (first, last + 1); all by default. Execution starts at the nearest checkpoint at or before `first`.
        device: `cpu`, `cuda`, `cuda:1`, ...
        stop: Replay to exactly this position (step, operations complete) instead, and return the live storages there.
        salt: Keys the digests of the live storages; required with `stop`.
        limits: On memory and time.
        env: Environment for the worker on top of the few variables passed on, e.g. `OMP_NUM_THREADS`.
        op_rules: Modules, or paths of Python files, that register rules for operators outside ATen. They run in the
            worker with the rights it has before it confines itself: name only what you trust, never what a Prover sent.
        progress: Called with (steps done, steps to do).
        tapes: What may enter programs, and how grave it is if more does.
        results: For one rank of a job: a file with the results of its collectives, to be taken as given.
        coordinate: The rank whose transcript it must be.
        cancelled: Asked several times a second, from another thread; once it is true, the worker is ended.
        worker: Runs the worker process; `run_worker` by default, which does so on this machine.
        recognise: Of so many of the executed steps, drawn at random, the training is recognised.
        recognise_seed: 64 bits of which this draw follows; chance by default.
        claims: Another run, or its `claims.cbor`, whose claims hold for programs of which this one has none.
        sensitivity: How many of the steps, drawn here, to test for whether weights respond as training lets them.
        supplements: Directory with rounding logs of a run that has its logs on demand; by default `PATH.supplements`,
            if it exists.

    Returns:
        The result; a mismatch is a result, not an error.

    Raises:
        TranscriptError: If the transcript is unreadable, altered or incomplete (or another `WeighbridgeError` with its
            code).
        UsageError: If the arguments make no sense for it.
        ReplayWorkerError: If the worker died, ran out of its limits or answered nonsense.
    """
    check_count(sensitivity)
    if supplements is None and (beside := _beside(path)).is_dir():
        supplements = beside
    request = {
        **request_of(path, steps, device, stop, salt, limits, op_rules, tapes),
        "recognise": [recognise, secrets.randbits(64) if recognise_seed is None else recognise_seed]
        if recognise
        else None,
        "claims": None if claims is None else str(_claims_of(Path(claims)).resolve()),
        "results": None if results is None else str(Path(results).resolve()),
        "supplements": None if supplements is None else str(Path(supplements).resolve()),
        "coordinate": None if coordinate is None else [coordinate.job.encode().hex(), coordinate.rank],
        "sensitivity": [sensitivity, secrets.token_hex(SEED)] if sensitivity else None,
        "paths": [str(Path(p).resolve()) for p in (path, results, claims, supplements) if p is not None],
    }
    return parse(
        (worker or run_worker)("weighbridge.execution.workers.replay_worker", request, limits, env, progress, cancelled)
    )


def _claims_of(path: Path) -> Path:
    found = path / CLAIMS if path.is_dir() else path
    if not found.is_file():
        raise UsageError(
            f"{path} has no {CLAIMS}; record a few steps of the same program with this version, and give that run"
        )
    return found


def _beside(path: str | Path) -> Path:
    """Where supplements lie (`weighbridge.transcript.supplements`, which loads PyTorch)."""
    run = Path(path).resolve()
    return run.with_name(run.name + ".supplements")


def request_of(
    path: str | Path,
    steps: tuple[int, int] | None,
    device: str,
    stop: tuple[int, ...] | None,
    salt: bytes | None,
    limits: Limits,
    op_rules: Sequence[str],
    tapes: TapePolicy,
) -> dict[str, Any]:
    """Returns what every worker that replays is asked, of a transcript or a job; arguments as for `replay`.

    Raises:
        UsageError: There is a position to stop at, and no salt of 32 bytes.
    """
    if stop is not None and (salt is None or len(salt) != 32):
        raise UsageError("stop needs the 32-byte salt of the chip's boot")
    return {
        "path": str(Path(path).resolve()),
        "steps": steps,
        "device": device,
        "stop": stop,
        "salt": None if salt is None else salt.hex(),
        "memory": limits.memory,
        "seconds": limits.seconds,
        "op_rules": [str(Path(name).resolve()) if name.endswith(".py") else name for name in op_rules],
        "tapes": asdict(tapes),
    }


def run_worker(
    module: str,
    request: Mapping[str, Any],
    limits: Limits,
    env: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    cancelled: Callable[[], bool] | None = None,
) -> dict[str, Any]:
    """Asks a worker process that runs `module` and returns its answer, which is hostile.

    Args:
        module: One whose `main` is that of `weighbridge.execution.workers.replay_worker`.
        request: What it is asked, JSON-compatible.
        limits: On its time; those on memory are part of the request.
        env: Its environment on top of the few variables passed on.
        progress: Called with (steps done, steps to do).
        cancelled: As for `replay`.

    Raises:
        ReplayWorkerError: If it died, was ended, ran out of its limits or answered nonsense.
    """
    environment = {k: v for k, v in os.environ.items() if k in _PASSED}
    environment.update(env or {})
    with (
        tempfile.TemporaryDirectory(prefix="weighbridge-replay-") as scratch,
        _started(
            module, environment, scratch, on_cpu=not str(request.get("device", "cpu")).startswith("cuda")
        ) as worker,
    ):
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert worker.stderr is not None
        ended = threading.Event()
        watch = threading.Thread(target=_end_in_time, args=(worker, limits.seconds, ended, cancelled), daemon=True)
        watch.start()
        errors: list[bytes] = []
        drain = threading.Thread(target=lambda stream=worker.stderr: errors.extend(_tail(stream)), daemon=True)
        drain.start()
        try:
            worker.stdin.write(json.dumps(request).encode())
            worker.stdin.close()
            answer = _read(worker.stdout, progress)
            code = worker.wait()
        except BrokenPipeError:
            code, answer = worker.wait(), None
        finally:
            ended.set()
            if worker.poll() is None:
                worker.kill()
        drain.join(timeout=5)
    if answer is None:
        last = b"".join(errors).decode(errors="replace").strip().splitlines()[-1:]
        why = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise ReplayWorkerError(
            f"the replay worker ended with {why} and no answer ({last[0][:300] if last else 'no message'}); "
            "if it ran out of memory or time, raise the limits",
            exit=code,
        )
    return answer


def _started(
    module: str, environment: Mapping[str, str], scratch: str, *, on_cpu: bool
) -> subprocess.Popen[bytes] | fork_server.Worker:
    """Starts a worker process; one that uses a GPU as a fresh program, as CUDA's state is not to be forked."""
    if on_cpu and fork_server.SUPPORTED:
        return fork_server.start(module, environment, scratch)
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment, "TMPDIR": scratch, fork_server.PARENT: str(os.getpid())},
        cwd=scratch,
    )


def _end_in_time(
    worker: subprocess.Popen[bytes] | fork_server.Worker,
    seconds: float,
    ended: threading.Event,
    cancelled: Callable[[], bool] | None,
) -> None:
    """Kills the worker when its time is over or its answer is not wanted any more."""
    deadline = time.monotonic() + seconds
    while not ended.wait(max(0.0, min(_WATCH_SECONDS, deadline - time.monotonic()))):
        if time.monotonic() >= deadline or (cancelled is not None and cancelled()):
            worker.kill()
            return


def _tail(stream: Any) -> list[bytes]:
    kept: list[bytes] = []
    for line in iter(lambda: stream.readline(65536), b""):
        kept = [*kept[-20:], line]
    return kept


def _read(stream: Any, progress: Callable[[int, int], None] | None) -> dict[str, Any] | None:
    """Reads the worker's lines until its answer."""
    announcement = compiling()
    for line in iter(lambda: stream.readline(MAX_LINE), b""):
        try:
            message = decode_json(line, max_items=_MAX_ITEMS)
            if "compiling" in message:
                announcement(*_counts(message["compiling"]))
                continue
            if "progress" in message:
                counts = _counts(message["progress"])
                if progress is not None:
                    progress(*counts)
                continue
            if "error" in message or "result" in message:
                return cast("dict[str, Any]", message)
        except (FormatError, ValueError, TypeError, KeyError, OverflowError):
            pass
        raise ReplayWorkerError("the replay worker answered something that is not a result")
    return None


def _counts(raw: Any) -> tuple[int, int]:
    """Reads (done, total). Numbers that are no counts could make a progress bar run out of memory."""
    done, total = raw
    if type(done) is not int or type(total) is not int or not 0 <= done <= total <= _MAX_COUNT:
        raise ValueError("counts")
    return done, total


def raise_error(message: dict[str, Any]) -> None:
    """Raises the error that a worker answered, if it did.

    Raises:
        WeighbridgeError: That error.
        KeyError, TypeError, ValueError: The answer is malformed; for the caller to turn into its own error.
    """
    if "error" in message:
        error = message["error"]
        code, text = str(error["code"])[:200], str(error["message"])[:2000]
        kind: type[WeighbridgeError] = UsageError if code == "usage" else TranscriptError
        raise kind(text, code=code)


def parse(message: dict[str, Any]) -> ReplayResult:
    """Reads the worker's answer as hostile: every field has its type or the answer is refused.

    Raises:
        WeighbridgeError: The error that the worker answered.
        ReplayWorkerError: The answer is malformed.
    """
    from weighbridge.execution import choice_statistics as counted  # noqa: PLC0415 (loads PyTorch)

    try:
        raise_error(message)
        raw = message["result"]
        if raw["verdict"] not in get_args(Verdict):
            raise ValueError("verdict")
        if len(raw["findings"]) > MOST_FINDINGS:
            raise ValueError("findings")
        findings = [finding_of(f) for f in raw["findings"]]
        return ReplayResult(
            verdict=raw["verdict"],
            steps=(int(raw["steps"][0]), int(raw["steps"][1])),
            state=bytes.fromhex(raw["state"]).hex(),
            followed=int(raw["followed"]),
            logged=int(raw["logged"]),
            rounded=int(raw["rounded"]),
            calibrated=int(raw["calibrated"]),
            evidence=counted.report(counted.parse(raw["evidence"])),
            tapes={
                bytes.fromhex(k).hex(): {
                    "kind": str(v["kind"])[:10],
                    "count": int(v["count"]),
                    "operations": int(v["operations"]),
                    "free_values": int(v["free_values"]),
                    "free_bytes": int(v["free_bytes"]),
                    "once_bytes": int(v["once_bytes"]),
                    "derived": int(v["derived"]),
                }
                for k, v in raw["tapes"].items()
            },
            chosen=chosen_bits.parse(raw["chosen"]),
            findings=findings,
            recognised=[parse_recognition(each) for each in raw["recognised"][:_MAX_RECOGNISED]],
            first_difference=_difference(raw["first_difference"]),
            live=_leaves(raw["live"]),
            weights=_leaves(raw["weights"]),
            touched=int(raw["touched"]),
            flops=None if raw["flops"] is None else int(raw["flops"]),
            narrow=int(raw["narrow"]),
            sensitivity=parse_sensitivity(raw["sensitivity"]),
            running=None if raw["running"] is None else bytes.fromhex(raw["running"]).hex(),
            head=None if raw["head"] is None else bytes.fromhex(raw["head"]).hex(),
            device=str(raw["device"])[:200],
            confinement=[str(c)[:50] for c in raw["confinement"]],
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise ReplayWorkerError(f"the replay worker's answer is malformed ({type(error).__name__})") from None


def _leaves(raw: Any) -> list[tuple[int, str]] | None:
    return None if raw is None else [(int(size), bytes.fromhex(digest).hex()) for size, digest in raw]


def told(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Returns what a worker answers of its findings, as JSON: the gravest, if they are too many for an answer.

    Then the last one has under `further`, in its evidence, how many more there are.
    """
    if len(findings) <= MOST_FINDINGS:
        return [finding.to_json() for finding in findings]
    gravest = sorted(findings, key=lambda finding: _GRAVEST.index(finding.severity))[:MOST_FINDINGS]
    answer = [finding.to_json() for finding in gravest]
    answer[-1]["evidence"] = {**answer[-1]["evidence"], "further": len(findings) - MOST_FINDINGS}
    return answer


def finding_of(raw: Any) -> Finding:
    """Reads a finding in a worker's answer; malformed, it raises what `parse` turns into its own error."""
    if raw["severity"] not in ("info", "warning", "violation") or not isinstance(raw["evidence"], dict):
        raise ValueError("finding")
    names = ("id", "message", "expected", "found", "subject")
    text = {k: str(raw[k])[:4000].encode(errors="replace").decode() for k in names}  # half characters cannot be shown
    evidence = {str(k)[:100]: v[:4000] if isinstance(v, str) else v for k, v in list(raw["evidence"].items())[:100]}
    if not all(v is None or isinstance(v, (str, int)) or math.isfinite(v) for v in evidence.values()):
        raise ValueError("evidence")
    return Finding(**text, severity=raw["severity"], evidence=evidence)


def _difference(raw: Any) -> dict[str, Any] | None:
    if raw is None:
        return None
    from weighbridge.execution import location  # noqa: PLC0415 (loads PyTorch)

    return {
        "step": int(raw["step"]),
        "op": int(raw["op"]),
        **{k: str(raw[k])[:200] for k in ("operation", "expected", "found")},
        **location.checked(raw),
    }
