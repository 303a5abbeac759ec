"""Makes the evidence: records and replays everywhere, measures, and signs what came out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from verifier.evidence import bundle
from weighbridge.attest.manifest import SigningKey
from weighbridge.cli.gpu_evidence.places import Place, pairs
from weighbridge.cli.gpu_evidence.statement import MOST_PRODUCTS, STATEMENT, Recording, Replayed, Statement
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.execution.replay import replay
from weighbridge.execution.worker_process import Limits
from weighbridge.transcript.export import export

Progress = Callable[[str, int, int], None]
"""Told what is going on, and how much of how much of it is done."""

LIMITS = Limits(memory=64 << 30, seconds=6 * 3600)
_LONGEST = 300
_MEASURED = {"full": ["gpt2", "llama", "resnet", "perceptron"], "tiny": ["perceptron"]}
"""Trainings whose operations are measured, by the size of the evidence."""


def make(
    out: Path, here: Sequence[Place], subjects: Sequence[str], *, size: str, steps: int, key: SigningKey,
    progress: Progress,
) -> Statement:  # fmt: skip
    """Measures and writes the file.

    Args:
        out: The file; it must not exist.
        here: Where to compute.
        subjects: Names of the trainings.
        size: `full` or `tiny`.
        steps: Updates of each training.
        key: Signs.
        progress: Told what is going on.

    Returns:
        What was signed.

    Raises:
        UsageError: Something could not be measured; the message says what. Or the file cannot be written.
    """
    if out.exists():
        raise UsageError(f"{out} exists; choose another file")
    tiny = size == "tiny"
    with tempfile.TemporaryDirectory(prefix="weighbridge-evidence-", dir=out.absolute().parent) as name:
        root = Path(name)
        recordings, replays, times = [], [], {}
        about, units, errors = {}, {}, {}
        for place in here:
            tasks: list[dict[str, Any]] = [{"task": task, "device": place.device} for task in ("about", "units")]
            tasks.append({"task": "errors", "device": place.device, "trainings": _MEASURED[size]})
            about[place.name], units[place.name], errors[place.name] = measure(place, tasks, progress)
        for subject in subjects:
            for number, place in enumerate(here):
                done, run, times[f"{subject} on {place.name}"] = _record(
                    place, subject, root, number, tiny, steps, progress
                )
                recordings.append(done)
                for recorded_on, replayed_on in pairs(here):
                    if recorded_on is place:
                        replays.append(_replay(run, len(recordings) - 1, subject, replayed_on, progress))
        names = _products([root / each.folder for each in recordings])
        for place in here if names else ():
            task = {"task": "products", "device": place.device, "products": names}
            units[place.name] |= measure(place, [task], progress)[0]
        statement = Statement(
            made_at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            size=size,
            places=about,
            recordings=tuple(recordings),
            replays=tuple(replays),
            times=times,
            units=units,
            errors=errors,
            software=software(),
        )
        parts = {path.relative_to(root).as_posix(): path for path in sorted(root.rglob("*")) if path.is_file()}
        statement = replace(statement, parts=bundle.describe(parts))
        signed = root / STATEMENT
        signed.write_bytes(statement.sign(key))
        bundle.write(out, {**parts, STATEMENT: signed})
    return statement


def software() -> dict[str, str]:
    """Returns versions of what measures, and the digest of its rule table."""
    from weighbridge.numerics.rule_table import table_digest

    return {"weighbridge": version("weighbridge"), "torch": version("torch"), "rules": table_digest()}


def _products(runs: Sequence[Path]) -> list[str]:
    """Returns the products of 16-bit matrices that the trainings have, in words."""
    from weighbridge.execution.narrow_products import largest, products_of
    from weighbridge.transcript.reader import Transcript

    found = [each for run in runs for each in products_of(Transcript.open(run))]  # our own
    return [str(each) for each in largest(found, MOST_PRODUCTS)]


def _record(
    place: Place, subject: str, root: Path, number: int, tiny: bool, steps: int, progress: Progress
) -> tuple[Recording, Path, dict[str, Any]]:
    """Records a training, keeps the copy from which a replay makes the rest, and times it unrecorded."""
    from weighbridge.transcript.reader import Transcript

    folder = f"runs/{subject}-{number}"
    with tempfile.TemporaryDirectory(prefix="recording-", dir=root.parent) as name:
        whole = Path(name) / "run"
        what = {"subject": subject, "device": place.device, "tiny": tiny}
        tasks = [
            {"task": "record", **what, "steps": steps, "out": str(whole)},
            {"task": "unrecorded", **what, "rounds": steps},
        ]
        said, times = measure(place, tasks, progress, subject)
        export(whole, root / folder, minimal=True)
    transcript = Transcript.open(root / folder)  # our own
    recording = Recording(
        subject=subject, place=place.name, folder=folder, transcript=transcript.digest,
        state=transcript.step(transcript.steps - 1).state.hex(), steps=transcript.steps, **said,
    )  # fmt: skip
    return recording, root / folder, times


def _replay(run: Path, recording: int, subject: str, place: Place, progress: Progress) -> Replayed:
    begin = time.perf_counter()
    verdict, state, followed, says = "error", "", 0, ""
    try:
        found = replay(
            run, device=place.device, limits=LIMITS, env=place.environment,
            progress=lambda done, of: progress(f"replaying {subject} on {place.name}", done, of),
        )  # fmt: skip
        verdict, state, followed = found.verdict, found.state, found.followed
        if found.first_difference is not None:
            where = found.first_difference
            says = f"step {where['step']}, operation {where['op']} ({where['operation']})"
    except WeighbridgeError as error:
        says = error.message
    says = "".join(each if each.isprintable() else " " for each in says)[:_LONGEST]
    seconds = round(time.perf_counter() - begin, 3)
    return Replayed(
        recording=recording, place=place.name, verdict=verdict, state=state, followed=followed, seconds=seconds,
        says=says,
    )  # fmt: skip


def measure(place: Place, tasks: Sequence[Mapping[str, Any]], progress: Progress, of: str = "") -> list[dict[str, Any]]:
    """Has a process measure something at a place; returns what it found, task by task.

    Raises:
        UsageError: It failed; the message has its last line.
    """
    titles = {
        "about": "looking at", "record": f"recording {of} on", "unrecorded": f"timing {of} on",
        "units": "multiplying on", "products": "multiplying on", "errors": "measuring errors on",
    }  # fmt: skip
    title, results = f"starting on {place.name}", []
    progress(title, 0, 1)
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-P", "-m", "weighbridge.cli.gpu_evidence.measurement"],
            env={**os.environ, **place.environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            text=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(list(tasks)))
            process.stdin.close()
            for line in process.stdout:
                try:
                    message = json.loads(line)
                except ValueError:
                    continue  # some library printed something
                if "task" in message:
                    title = f"{titles[message['task']]} {place.name}"
                    progress(title, 0, 1)
                elif "result" in message:
                    results.append(message["result"])
                elif "done" in message:
                    progress(title, message["done"], message["of"])
            failed = process.wait()
        finally:
            process.kill()
        if failed or len(results) != len(tasks):
            errors.seek(0)
            last = "".join(errors.read().strip().splitlines()[-1:])
            raise UsageError(f"{title} failed: {last or f'exit code {failed}'}")
    return results
