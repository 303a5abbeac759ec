"""The process that makes a step's tree, opens a leaf of it, or judges a claim about one; see `dispute.asking`."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from weighbridge.core.bounded import decode_cbor, read_file
from weighbridge.core.digests import bytes_digest, cbor
from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.execution.dispute.asking import MAX_REASON, NOT_DISPUTED, SLICES, STEP, WHOLE, Claim
from weighbridge.execution.dispute.judgement import judge
from weighbridge.execution.dispute.leaves import NO_INPUT, input_digest, tree_root
from weighbridge.execution.dispute.openings import MAX_OPENING, most_shown
from weighbridge.execution.dispute.tracing import Tracer
from weighbridge.execution.workers.serving import serve
from weighbridge.numerics.conformance import bound_policy as policies
from weighbridge.numerics.conformance import probes
from weighbridge.numerics.rule_table import table_digest
from weighbridge.numerics.slices import table as slices
from weighbridge.transcript.confidential_runs import CONFIDENTIAL, is_confidential
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.state import checkpoint_digest, state_digest
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.supplements import folder_of
from weighbridge.transcript.tape import Tape

TERMS = ("seed", "policy", "calibration", "rules", policies.ORDERS)
"""What an execution depends on in a draft."""


def terms_of(transcript: Transcript) -> bytes:
    """Returns what parties have to agree on, encoded: terms of the draft, and which parts of operations are judged."""
    named = {name: transcript.draft[name] for name in TERMS if name in transcript.draft}
    if is_confidential(transcript.draft):
        named[CONFIDENTIAL] = True
    return cbor(named | {SLICES: slices.digest().hex()})


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Answers a request.

    Raises:
        WeighbridgeError: It cannot be answered; no party is accused.
    """
    tasks = {
        "judge": _judged, "trace": _traced, "course": _course, "roots": _roots, "class": _class, "record": _recorded,
    }  # fmt: skip
    return tasks[request["task"]](request)


def _course(request: dict[str, Any]) -> dict[str, Any]:
    transcript = Transcript.open(request["path"])
    records = [transcript.step(number) for number in range(transcript.steps)]
    return {
        "terms": terms_of(transcript).hex(),
        "states": b"".join(record.state for record in records).hex(),
        "inputs": b"".join(NO_INPUT if _apart(record) else input_digest(record) for record in records).hex(),
    }


def _recorded(request: dict[str, Any]) -> dict[str, Any]:
    """Returns what a transcript says of a step; executes nothing."""
    transcript, step = Transcript.open(request["path"]), int(request["step"])
    record = _disputable(transcript, step)
    begin = max([c for c in transcript.checkpoint_steps if c <= step], default=0)
    tapes = {each.tape: transcript.tape(each.tape) for each in map(transcript.step, range(begin, step + 1))}
    tape = Tape.decode(tapes[record.tape])
    return {
        "transcript": transcript.digest, "signer": transcript.manifest.public.hex(),
        "terms": terms_of(transcript).hex(), "tape": record.tape.hex(), "state": _state_before(transcript, step).hex(),
        "record": record.to_cbor().hex(), "draft": transcript.draft_digest.hex() if record.outputs else "",
        "needs": max(Tape.decode(each).largest_footprint() for each in tapes.values()), "shows": most_shown(tape),
    }  # fmt: skip


def _disputable(transcript: Transcript, step: int) -> StepRecord:
    """Returns the record of a step.

    Raises:
        WeighbridgeError: There is none, or the step cannot be disputed.
    """
    if not 0 <= step < transcript.steps:
        raise UsageError(f"the transcript has {transcript.steps} steps; step {step} is not among them")
    record = transcript.step(step)
    if why := _apart(record):
        raise WeighbridgeError(why, code=NOT_DISPUTED)
    return record


def _state_before(transcript: Transcript, step: int) -> bytes:
    return transcript.step(step - 1).state if step else state_digest({}, {})


def _class(request: dict[str, Any]) -> dict[str, Any]:
    tape, leaf = Tape.decode(read_file(Path(request["path"]) / "tape", max_bytes=MAX_OPENING)), int(request["leaf"])
    if not 0 < leaf <= len(tape.nodes):
        return {"class": STEP}
    return {"class": slices.class_of(tape.nodes[leaf - 1].op) or WHOLE}


def _apart(record: StepRecord) -> str:
    """Returns why a step cannot be disputed; "" if it can."""
    if record.sketches:
        return f"step {record.step} has sketches; disputes are about steps with their logs in full, or on demand"
    return f"step {record.step} exchanges with other ranks; replay the whole job" if record.collectives else ""


def _tracer(request: dict[str, Any], terms: dict[str, Any]) -> Tracer:
    if terms.get("rules") != table_digest():
        raise WeighbridgeError(
            "the step was recorded under another table of rules than this version has; use that version",
            code="replay.rules.unknown",
        )
    if terms.get(SLICES, None if request.get("part") is None else "") not in (None, slices.digest().hex()):
        raise WeighbridgeError(
            "the dispute is about parts of results by another table of slices than this version has; use that version",
            code="dispute.slices",
        )
    if type(terms.get("seed")) is not int:
        raise UsageError("the draft names no seed; fetch the transcript again")
    policy = policies.declared(terms)
    probes.require(request["device"], policy)
    return Tracer(request["device"], terms["seed"], int(request["memory"]), policy)


def _traced(request: dict[str, Any]) -> dict[str, Any]:
    transcript, step = _opened(request), int(request["step"])
    record = _disputable(transcript, step)
    encoded, terms = _log(transcript, step), terms_of(transcript)
    tracer = _tracer(request, decode_cbor(terms))
    state = _reach(transcript, step, tracer)
    tape = transcript.tape(record.tape)
    program = Tape.decode(tape)
    began = time.perf_counter()
    tracer.trace(
        program, record, encoded, transcript.batch(step), transcript.undeclared(step), state, place=request["place"],
        part=request["part"],
    )  # fmt: skip
    return {
        "terms": terms.hex(),
        "tape": tape.hex(),
        "state": state.hex(),
        "record": record.to_cbor().hex(),
        "log": bytes_digest(encoded).hex(),
        "leaves": b"".join(leaf.digest() for leaf in tracer.tree).hex(),
        "opening": None if tracer.opening is None else tracer.opening.to_cbor().hex(),
        "parted": tracer.parted,
        "leaf": tracer.shown.hex(),
        "parts": tracer.parts.hex(),
        "draft": transcript.draft_digest.hex() if record.outputs else "",
        "signed": transcript.supplements.signed(step).hex() if transcript.supplements is not None else "",
        "seconds": time.perf_counter() - began,
    }


def _roots(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the roots of the trees of some steps of a transcript, whose logs on demand lie in files of their own."""
    transcript, (begin, first, last) = Transcript.open(request["path"]), request["steps"]
    tracer, at = _tracer(request, decode_cbor(terms_of(transcript))), Path(request["logs"])
    state, roots = transcript.step(begin - 1).state if begin else state_digest({}, {}), []
    if begin:
        tracer.load(transcript.checkpoint(begin))
    for number in range(begin, last):
        record = transcript.step(number)
        if why := _apart(record):
            raise WeighbridgeError(why, code=NOT_DISPUTED)
        tape, root = Tape.decode(transcript.tape(record.tape)), b""
        if record.kind == "init" and not tape.nodes:  # the model existed before: nothing was executed
            tracer.load(transcript.checkpoint(number + 1))
        else:
            log = read_file(at / str(number), max_bytes=transcript.limits.rounding)
            tracer.trace(tape, record, log, transcript.batch(number), transcript.undeclared(number), state)
            if tracer.parted:
                raise UsageError(f"the tree of step {number} cannot be made: {tracer.parted}")
            root = tree_root([leaf.digest() for leaf in tracer.tree])
        state = record.state
        if number >= first:
            roots.append(root.hex())
    return {"roots": roots}


def _opened(request: dict[str, Any]) -> Transcript:
    """Opens the transcript of a request, with the rounding logs that were made since."""
    transcript = Transcript.open(request["path"])
    folder = folder_of(Path(request["path"]))
    if transcript.on_demand and folder.is_dir():
        transcript.supplement(folder)
    return transcript


def _log(transcript: Transcript, step: int) -> bytes:
    """Returns the encoded rounding log of a step, of a step with logs on demand that of its supplement."""
    if not transcript.on_demand:
        return transcript.rounding(step)
    encoded = None if transcript.supplements is None else transcript.supplements.encoded(transcript.step(step))
    if encoded is None:
        raise UsageError(f"step {step} has no rounding log here; make it with `weighbridge regenerate` first")
    return encoded


def _reach(transcript: Transcript, step: int, tracer: Tracer) -> bytes:
    """Makes the state before a step; returns its digest."""
    begin = max([c for c in transcript.checkpoint_steps if c <= step], default=0)
    if begin:
        checkpoint = transcript.checkpoint(begin)
        if checkpoint_digest(checkpoint) != transcript.step(begin - 1).state:
            raise UsageError(f"checkpoint {begin} is not the state after step {begin - 1}; dispute that step")
        tracer.load(checkpoint)
    tapes: dict[bytes, Tape] = {}
    for number in range(begin, step):
        record = transcript.step(number)
        if record.tape not in tapes:
            tapes[record.tape] = Tape.decode(transcript.tape(record.tape))
        batch, undeclared = transcript.batch(number), transcript.undeclared(number)
        try:
            tracer.reach(tapes[record.tape], record, transcript.log(number), batch, undeclared)
        except WeighbridgeError:
            came_out = False
        else:
            came_out = tracer.state_digest() == record.state
        if not came_out:
            raise UsageError(f"step {number} does not come out as it was recorded; dispute that step")
    return _state_before(transcript, step)


def _judged(request: dict[str, Any]) -> dict[str, Any]:
    at = Path(request["path"])
    names = ("state", "log", "leaf", "previous", "first", "left", "input")
    small = {name: bytes.fromhex(request[name]) for name in names}
    claim = Claim(
        terms=bytes.fromhex(request["terms"]),
        tape=read_file(at / "tape", max_bytes=MAX_OPENING), record=read_file(at / "record", max_bytes=MAX_OPENING),
        own=bool(request["own"]), count=int(request["count"]), index=int(request["index"]),
        step=request["step"], answered=bool(request["answered"]), part=request["part"],
        parts=read_file(at / "parts", max_bytes=MAX_OPENING), shown=read_file(at / "shown", max_bytes=MAX_OPENING),
        rival=read_file(at / "rival", max_bytes=MAX_OPENING),
        root=bytes.fromhex(request["root"]), supplements=tuple(map(bytes.fromhex, request["supplements"])), **small,
    )  # fmt: skip
    terms = decode_cbor(claim.terms)
    try:
        tracer = _tracer(request, terms)
    except WeighbridgeError as error:
        return {"verdict": "undecided", "code": error.reason, "reason": error.message}
    said = judge(claim, read_file(at / "opening", max_bytes=MAX_OPENING), tracer)
    return asdict(replace(said, reason=said.reason[:MAX_REASON]))  # no words may be too long for the verdict to arrive


def main() -> None:
    """Answers one request."""
    serve(lambda request, confined, send: answer(request))


if __name__ == "__main__":
    main()
