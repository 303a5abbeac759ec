"""Replays a transcript in a process of its own and says whether it holds.

The parent never looks into the transcript: a spawned worker without keys, database or network does, and the parent
reads its small answer as hostile. `import weighbridge` loads this module, so it loads no PyTorch.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weighbridge.core.digests import DIGEST_SIZE
from weighbridge.core.errors import UsageError
from weighbridge.execution.replay_answer import ReplayResult, parse
from weighbridge.execution.sensitivity import SEED, check_count
from weighbridge.execution.worker_process import Limits, Worker, rules_named, run_worker
from weighbridge.program.tape_policy import AS_DESIGNED, TapePolicy
from weighbridge.transcript.training_claims import CLAIMS

if TYPE_CHECKING:
    from weighbridge.transcript.job_record import MeshCoordinate
DEFAULT_LIMITS = Limits()


def replay(
    path: str | Path,
    *,
    steps: tuple[int, int] | None = None,
    device: str = "cpu",
    stop: tuple[int, int] | None = None,
    salt: bytes | None = None,
    limits: Limits = DEFAULT_LIMITS,
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
    work_key: bytes | None = None,
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
        work_key: Keys a digest over all operation results (32 bytes); not together with `stop` or `recognise`.

    Returns:
        The result; a mismatch is a result, not an error.

    Raises:
        TranscriptError: If the transcript is unreadable, altered or incomplete (or another `WeighbridgeError` with its
            code).
        UsageError: If the arguments make no sense for it.
        ReplayWorkerError: If the worker died, ran out of its limits or answered nonsense.
    """
    check_count(sensitivity)
    if work_key is not None and (len(work_key) != DIGEST_SIZE or stop is not None or recognise):
        raise UsageError("a digest of the work needs a key of 32 bytes; leave out the position and the recognition")
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
        "work_key": None if work_key is None else work_key.hex(),
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
        "op_rules": rules_named(op_rules),
        "tapes": asdict(tapes),
    }
