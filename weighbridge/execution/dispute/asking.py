"""Asks a confined worker for a step's tree, an opening or a judgement, and reads what it answers as hostile."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from weighbridge.core.errors import ReplayWorkerError
from weighbridge.execution.dispute.messages import Course
from weighbridge.execution.dispute.recorded import WORKER
from weighbridge.execution.worker_answers import MALFORMED, digest, malformed, share, text
from weighbridge.execution.worker_process import Limits, raise_error, rules_named, run_worker
from weighbridge.transcript.supplements import folder_of

Verdict = Literal["false", "admissible", "undecided", "forfeit"]
"""`false`: the claim does not follow from what both parties agree on. `admissible`: it does. `undecided`: this referee
cannot say, and no party loses. `forfeit`: the party did not show what it had to show, in time or at all."""

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

MAX_REASON = 2000
"""Most characters of a judgement's reason."""

NOT_DISPUTED = "dispute.step"
"""Why `trace` refuses a step that is none for disputes: one with sketches, or of a job on several ranks."""

SLICES = "slices"
"""Name of the term that has the digest of `numerics.slices`, in hex; a dispute of an earlier version has none."""

WHOLE, STEP = "whole", "step"
"""Class of an operation that is executed whole, and of a leaf that has none: what enters or leaves the step."""

_DEFAULT = Limits()


@dataclass(frozen=True)
class Judgement:
    """What is said of one claim.

    Attributes:
        verdict: See `Verdict`.
        code: The reason, dotted.
        reason: The reason, for people.
    """

    verdict: Verdict
    code: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What a party says of one leaf.

    Attributes:
        terms: What both parties agree on: of the draft (seed, policy and orders, calibration, rules), and the table of
            slices; encoded.
        tape: The program that both agree on, encoded.
        state: Digest of the state before the step, agreed too (32 bytes).
        record: The step record that it is about, encoded.
        log: Digest of the rounding log that the party named (32 bytes).
        own: Whether the record is the party's own, so that it must say what the leaf says.
        count: How many leaves the party claims.
        index: Which leaf is judged.
        leaf: Its hash (32 bytes); nothing if the party claims none.
        previous: The hash of the agreed leaf before (32 bytes); nothing for the first one.
        first: The hash of the agreed first leaf (32 bytes); nothing for the first one.
        left: Digest of the state that the party's course has after the step (32 bytes); nothing without courses.
        input: What both courses have the step begin with (32 bytes); nothing without courses.
        step: Number of the step at which the courses part; None without courses.
        answered: Whether the other party answered. If not, all that is judged is whether the record and the program
            are what the courses have the step begin with.
        part: The chunk of the operation's result that is judged alone; None for all of it.
        parts: Chaining values of all chunks of that result, as the party named them; nothing without a part.
        shown: The leaf, encoded; nothing without a part.
        rival: What the other party shows of the same chunk, encoded; nothing without a part, or if it shows nothing.
        root: Root of the tree of all leaves that the party named (32 bytes); nothing if it signed no tree.
        supplements: Statements about the step with a tree that the party signed, as it signed them.
    """

    terms: bytes
    tape: bytes
    state: bytes
    record: bytes
    log: bytes
    own: bool
    count: int
    index: int
    leaf: bytes
    previous: bytes
    first: bytes
    left: bytes = b""
    input: bytes = b""
    step: int | None = None
    answered: bool = True
    part: int | None = None
    parts: bytes = b""
    shown: bytes = b""
    rival: bytes = b""
    root: bytes = b""
    supplements: tuple[bytes, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A step's tree, as a party made it.

    Attributes:
        terms: As for `Claim`.
        tape: As for `Claim`.
        state: As for `Claim`.
        record: As for `Claim`.
        log: As for `Claim`.
        leaves: Hash of every leaf that could be made.
        opening: The opening that was asked for, encoded, or None.
        parted: Why the tree ends before the step does; "" if it does not.
        seconds: What the execution took.
        leaf: The leaf that was asked for, encoded; nothing if it was not made.
        parts: Chaining values of the chunks of its operation's result; nothing if that is executed whole.
        draft: Digest of the run's draft (32 bytes) if the step's log was made on demand; else nothing.
        signed: The signed statement about the step that lies beside the transcript, if it has a tree.
    """

    terms: bytes
    tape: bytes
    state: bytes
    record: bytes
    log: bytes
    leaves: tuple[bytes, ...]
    opening: bytes | None
    parted: str
    seconds: float
    leaf: bytes = b""
    parts: bytes = b""
    draft: bytes = b""
    signed: bytes = b""


def trace(
    path: str | Path, step: int, *, place: int | None = None, part: int | None = None, device: str = "cpu",
    limits: Limits = _DEFAULT, env: Mapping[str, str] | None = None, op_rules: Sequence[str] = (),
) -> Traced:  # fmt: skip
    """Makes the tree of a step by executing it, up to where it parts from its record.

    Args:
        path: Transcript directory.
        step: The step.
        place: A leaf to be opened.
        part: Of its operation's result, the chunk that is to be opened alone.
        device: Where to execute it.
        limits: On memory and time.
        env: Environment for the worker.
        op_rules: Modules or files that register rules for custom operators.

    Raises:
        WeighbridgeError: The transcript is damaged, or the step cannot be disputed.
        ReplayWorkerError: The worker died, ran out of its limits or answered nonsense.
    """
    at = str(Path(path).resolve())
    request = {
        "task": "trace",
        "path": at,
        "paths": [at, *(str(each) for each in (folder_of(Path(at)),) if each.is_dir())],
        "step": step,
        "place": place,
        "part": part,
        "device": device,
        "op_rules": rules_named(op_rules),
    }
    message = run_worker(WORKER, request | {"memory": limits.memory, "seconds": limits.seconds}, limits, env)
    try:
        raise_error(message)
        raw = message["result"]
        hashes = bytes.fromhex(raw["leaves"])
        return Traced(
            terms=bytes.fromhex(raw["terms"]), tape=bytes.fromhex(raw["tape"]), state=digest(raw["state"]),
            record=bytes.fromhex(raw["record"]), log=digest(raw["log"]), leaves=split(hashes),
            opening=None if raw["opening"] is None else bytes.fromhex(raw["opening"]),
            parted=text(raw["parted"], 2000), seconds=share(raw["seconds"]), leaf=bytes.fromhex(raw["leaf"]),
            parts=bytes.fromhex(raw["parts"]), draft=bytes.fromhex(raw["draft"]), signed=bytes.fromhex(raw["signed"]),
        )  # fmt: skip
    except MALFORMED as error:
        raise malformed(error) from None


def roots(
    path: str | Path, steps: tuple[int, int, int], logs: str | Path, *, device: str = "cpu", limits: Limits = _DEFAULT,
    env: Mapping[str, str] | None = None,
) -> list[bytes]:  # fmt: skip
    """Makes the trees of some steps of a transcript that has its logs on demand, by executing them one after another.

    Args:
        path: Transcript directory.
        steps: (checkpoint to begin at, first step that is wanted, the one after the last).
        logs: Directory with the encoded rounding log of every step from the checkpoint on, each named by its number.
        device: Where to execute them.
        limits: On memory and time.
        env: Environment for the worker.

    Returns:
        The root of each wanted step (32 bytes); nothing for a step that only takes over a model.

    Raises:
        WeighbridgeError: The transcript is damaged, or a step has no tree.
        ReplayWorkerError: The worker died, ran out of its limits or answered nonsense.
    """
    at, beside = str(Path(path).resolve()), str(Path(logs).resolve())
    request = {"task": "roots", "path": at, "paths": [at, beside], "logs": beside, "steps": steps, "device": device}
    message = run_worker(WORKER, request | {"memory": limits.memory, "seconds": limits.seconds}, limits, env)
    try:
        raise_error(message)
        found = [each and digest(each) for each in message["result"]["roots"]]
        if len(found) != steps[2] - steps[1]:
            raise ValueError("roots")
        return [each or b"" for each in found]
    except MALFORMED as error:
        raise malformed(error) from None


def course(
    path: str | Path, *, limits: Limits = _DEFAULT, env: Mapping[str, str] | None = None
) -> Course:  # fmt: skip
    """Reads the course of a training from its transcript, without executing anything.

    Args:
        path: Transcript directory.
        limits: On memory and time.
        env: Environment for the worker.

    Raises:
        WeighbridgeError: The transcript is damaged.
        ReplayWorkerError: The worker died, ran out of its limits or answered nonsense.
    """
    request = {"task": "course", "path": str(Path(path).resolve()), "device": "cpu"}
    message = run_worker(WORKER, request | {"memory": limits.memory, "seconds": limits.seconds}, limits, env)
    try:
        raise_error(message)
        raw = message["result"]
        found = {name: bytes.fromhex(raw[name]) for name in ("terms", "states", "inputs")}
        if len(split(found["states"])) != len(split(found["inputs"])):
            raise ValueError("course")
        return Course(terms=found["terms"], states=found["states"], inputs=found["inputs"])
    except MALFORMED as error:
        raise malformed(error) from None


def judge(
    claim: Claim, opening: bytes, *, device: str = "cpu", limits: Limits = _DEFAULT,
    env: Mapping[str, str] | None = None, op_rules: Sequence[str] = (),
) -> Judgement:  # fmt: skip
    """Judges a claim about one leaf in a confined worker.

    Args:
        claim: The claim.
        opening: What the party shows, as it was sent.
        device: Where to execute the operation.
        limits: On memory and time.
        env: Environment for the worker.
        op_rules: As for `trace`.

    Returns:
        The judgement; `undecided` if the worker died or ran out of its limits.
    """
    with tempfile.TemporaryDirectory(prefix="weighbridge-dispute-") as at:
        for name, data in _files(claim, opening):
            (Path(at) / name).write_bytes(data)
        request: dict[str, Any] = {
            name: getattr(claim, name).hex()
            for name in ("terms", "state", "log", "leaf", "previous", "first", "left", "input")
        }
        request |= {"task": "judge", "path": at, "own": claim.own, "count": claim.count, "index": claim.index}
        request |= {"root": claim.root.hex(), "supplements": [each.hex() for each in claim.supplements]}
        request |= {"step": claim.step, "answered": claim.answered, "part": claim.part}
        request |= {
            "device": device,
            "memory": limits.memory,
            "seconds": limits.seconds,
            "op_rules": rules_named(op_rules),
        }
        try:
            message = run_worker(WORKER, request, limits, env)
            if "error" in message:
                error = message["error"]
                return Judgement("undecided", text(error["code"], 200), text(error["message"], MAX_REASON))
            return read(message["result"])
        except ReplayWorkerError as error:
            return Judgement("undecided", error.reason, error.message)
        except MALFORMED as error:
            return Judgement("undecided", "replay.worker", malformed(error).message)


def class_of(tape: bytes, leaf: int, *, limits: Limits = _DEFAULT, env: Mapping[str, str] | None = None) -> str:
    """Returns the class of the operation of a leaf, as `numerics.slices` has them, `WHOLE` or `STEP`; hostile.

    Args:
        tape: The program, encoded.
        leaf: Which leaf.
        limits: On memory and time.
        env: Environment for the worker.

    Raises:
        WeighbridgeError: It is no program.
        ReplayWorkerError: The worker died, ran out of its limits or answered nonsense.
    """
    with tempfile.TemporaryDirectory(prefix="weighbridge-dispute-") as at:
        (Path(at) / "tape").write_bytes(tape)
        request = {"task": "class", "path": at, "leaf": leaf, "device": "cpu"}
        message = run_worker(WORKER, request | {"memory": limits.memory, "seconds": limits.seconds}, limits, env)
        try:
            raise_error(message)
            return text(message["result"]["class"], 20)
        except MALFORMED as error:
            raise malformed(error) from None


def _files(claim: Claim, opening: bytes) -> tuple[tuple[str, bytes], ...]:
    return (
        ("tape", claim.tape), ("record", claim.record), ("parts", claim.parts), ("shown", claim.shown),
        ("opening", opening), ("rival", claim.rival),
    )  # fmt: skip


def read(raw: Any) -> Judgement:
    """Reads a judgement from plain data.

    Raises:
        KeyError, TypeError, ValueError: It is none.
    """
    if raw["verdict"] not in VERDICTS:
        raise ValueError("verdict")
    return Judgement(raw["verdict"], text(raw["code"], 200), text(raw["reason"], MAX_REASON))


def forfeited(reason: str) -> Judgement:
    """Returns what is said of the claim of a party that did not show what it had to."""
    return Judgement("forfeit", "dispute.forfeit", reason)


def split(hashes: bytes) -> tuple[bytes, ...]:
    """Returns a byte string as digests of 32 bytes.

    Raises:
        ValueError: Its length is no multiple of 32.
    """
    if len(hashes) % 32:
        raise ValueError("digests")
    return tuple(hashes[at : at + 32] for at in range(0, len(hashes), 32))
