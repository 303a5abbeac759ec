"""Replays a transcript in a worker process (`workers.serving`): one step after another, to the first difference."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

from weighbridge.core.bounded import read_file
from weighbridge.core.errors import (
    Finding,
    LogError,
    Severity,
    TapeError,
    TranscriptError,
    WeighbridgeError,
)
from weighbridge.execution import given_results, rounding_findings
from weighbridge.execution.executor import Executor
from weighbridge.execution.following import DifferenceError, Following
from weighbridge.execution.free_run import FreeExecutor
from weighbridge.execution.given_results import GivenResults, conditional
from weighbridge.execution.given_terms import GIVEN
from weighbridge.execution.location import locate
from weighbridge.execution.recognition.in_replay import Recognising
from weighbridge.execution.recognition.meetings import Meeting
from weighbridge.execution.replay_answer import told
from weighbridge.execution.sampled_steps import SampledSteps
from weighbridge.execution.unit_adjudication import Adjudication
from weighbridge.execution.work_digest import WorkDigest
from weighbridge.execution.workers.serving import serve
from weighbridge.numerics.conformance import bound_policy as policies
from weighbridge.numerics.conformance import probes
from weighbridge.numerics.conformance.device_kind import device_kind
from weighbridge.numerics.rule_table import table_digest
from weighbridge.program import chosen_counts, chosen_findings, tape_checks
from weighbridge.program.chosen_bits import ChosenBits
from weighbridge.program.flops import flops, narrow
from weighbridge.program.tape_policy import TapePolicy
from weighbridge.transcript.collectives import Exchange
from weighbridge.transcript.declared_device import declared_device
from weighbridge.transcript.job_record import JobRecord, MeshCoordinate, check_coordinate
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.running_digest import FOLLOWED, KEY, running_digest
from weighbridge.transcript.state import checkpoint_digest
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Tape
from weighbridge.transcript.training_claims import decode as decode_claims

_SEVERITIES: dict[str, Severity] = {
    "replay.inconclusive": "info",
    "replay.log.absent": "warning",
    "replay.sketch.failed": "warning",
    "tape.too_large": "warning",
    "job.tail": "info",
}
"""Of what is not evidence against the Prover."""


class Replay:
    """One replay, step by step."""

    def __init__(
        self, request: dict[str, Any], confined: list[str], send: Any, exchange: Exchange | None = None,
        meeting: Meeting | None = None,
    ) -> None:  # fmt: skip
        self._send = send
        self._transcript = Transcript.open(request["path"])
        if request.get("claims") is not None:
            given = decode_claims(read_file(Path(request["claims"]), max_bytes=self._transcript.limits.manifest))
            self._transcript.claims = given | self._transcript.claims
        if self._transcript.on_demand and request.get("supplements") is not None:
            self._transcript.supplement(Path(request["supplements"]))
        self._begin: int | None = request.get("begin")
        coordinate = MeshCoordinate.of(self._transcript.draft)
        if request.get("coordinate") is not None:
            job, rank = request["coordinate"]
            check_coordinate(JobRecord.decode(bytes.fromhex(job)), rank, coordinate)
        if coordinate is not None and request.get("results") is not None:
            exchange = GivenResults(Path(request["results"]), coordinate)
        self._exchange = exchange
        self._confined = confined
        self._device = request["device"]
        self._kind = device_kind(self._device)
        self._stop = None if request["stop"] is None else (int(request["stop"][0]), int(request["stop"][1]))
        self._salt = None if request["salt"] is None else bytes.fromhex(request["salt"])
        count = self._transcript.steps
        if self._stop is not None:
            first, last = self._stop[0], min(self._stop[0] + 1, count)
            if not 0 <= first <= count:
                raise WeighbridgeError(
                    f"the transcript has {count} steps; position {self._stop} does not exist", code="usage"
                )
        else:
            first, last = request["steps"] or (0, count)
        if not (0 <= first < last or self._stop is not None) or last > count:
            raise WeighbridgeError(
                f"the transcript has steps 0:{count}; steps {first}:{last} are not among them", code="usage"
            )
        self._first, self._last = first, last
        seed = self._transcript.draft.get("seed")
        if type(seed) is not int:
            raise TapeError("the draft names no seed", code="transcript.malformed")
        if self._transcript.draft.get("rules") != table_digest():
            raise WeighbridgeError(
                "the run was recorded under another table of rules than this version has; replay it with the version "
                f"of its draft ({str(self._transcript.draft.get('weighbridge'))[:40]}), and with the rules that were "
                "registered there (--op-rules)",
                code="replay.rules.unknown",
            )
        policy = policies.declared(self._transcript.draft)
        probes.require(self._device, policy)
        self._calibrated_on = policy.device
        self._executor = Executor(self._device, seed, int(request["memory"]), policy, coordinate, exchange)
        self._tapes: dict[bytes, Tape] = {}
        self._uses: dict[bytes, dict[str, Any]] = {}
        self._policy = TapePolicy(**request.get("tapes", {}))
        self._executor.adjudication.budget = self._policy.unit_terms
        self._logged = 0
        self._chosen, self._weights = ChosenBits(), 0.0
        self._findings: list[Finding] = []
        self._recognising: Recognising | None = None
        if request.get("recognise") is not None:
            count, draw = request["recognise"]
            begin = max([c for c in self._transcript.checkpoint_steps if c <= first], default=0)
            self._recognising = Recognising(
                self._transcript, begin, last, int(count), int(draw), self._device, self._program, meeting
            )
        key = request.get("work_key")
        self._work = None if key is None else WorkDigest(bytes.fromhex(key))
        self._sampled = self._sample(request.get("sensitivity"), policy, int(request["memory"]))
        self._programs = None if self._sampled is None else self._sampled.programs

    def _sample(self, wanted: list[Any] | None, policy: policies.Policy, memory: int) -> SampledSteps | None:
        """Chooses the steps whose sensitivity is to be tested, if any are wanted: (how many, hex seed)."""
        if wanted is None:
            return None
        executor = FreeExecutor(self._device, self._transcript.draft["seed"], memory, policy)
        return SampledSteps(
            self._transcript, self._program, self._policy, executor, bytes.fromhex(wanted[1]), int(wanted[0]),
            (self._first, self._last),
        )  # fmt: skip

    def judge_with(self, adjudication: Adjudication) -> None:
        """Has another object judge the products of a truncating unit; for measurements."""
        self._executor.adjudication = adjudication

    def run(self) -> dict[str, Any]:
        """Runs to the end or to the first difference; returns the result as JSON."""
        begin = max([c for c in self._transcript.checkpoint_steps if c <= self._first], default=0)
        begin = begin if self._begin is None else self._begin
        difference: dict[str, Any] | None = None
        verdict, position, running, live, weights, made = "match", begin, None, None, None, None
        try:
            if begin:
                self._load(begin)
            for step in range(begin, self._last):
                position = step
                stop = self._stop[1] if self._stop is not None and self._stop[0] == step else None
                if stop == 0:
                    self._before(step)
                    running = self._running(step, None)
                    break
                context = self._step(step, stop)
                if stop is not None:
                    running = self._running(step, context)
                position = step + 1
                self._send({"progress": [step + 1 - begin, self._last - begin]})
            if self._stop is not None:
                assert self._salt is not None
                live = [[size, digest.hex()] for size, digest in self._executor.leaves(self._salt)]
                made = self._made(self._salt) if self._stop[1] == 0 else None
                if (notes := self._transcript.notes) is not None:
                    found = self._executor.leaves_of(notes.weights, self._salt)
                    weights = [[size, digest.hex()] for size, digest in found]
                if self._stop == (self._transcript.steps, 0) and self._transcript.manifest.complete:
                    running = running_digest(
                        Tape(),
                        0,
                        step=self._stop[0],
                        batch={},
                        undeclared={},
                        values=[],
                        host=[],
                        rng={},
                        checksums=b"",
                        followed=self._transcript.draft.get(KEY) == FOLLOWED,
                    )
        except DifferenceError as error:
            unlogged = self._unlogged(error)
            verdict = "inconclusive" if unlogged or self._undecided(error) else "mismatch"
            difference = {k: error.details[k] for k in ("step", "op", "operation", "expected", "found")}
            self._locate(difference, error)
            absent = "replay.sketch.failed" if "failed" in error.details else "replay.log.absent"
            undecided = absent if unlogged else "replay.inconclusive"
            self._note(error, undecided if verdict == "inconclusive" else "replay.mismatch")
            if 0 < error.details.get("inadmissible", 0) <= error.details["entries"] // 20:
                # Other data would make most entries inadmissible; a few among many are outcomes made to order.
                self._note(error, "replay.rounding.inadmissible")
        except (TapeError, LogError) as error:
            verdict = "inconclusive" if error.reason in ("tape.too_large", "job.tail") else "mismatch"
            if isinstance(error, LogError):
                difference = {k: error.details.get(k, "") for k in ("operation", "expected", "found")}
                difference.update(step=error.details.get("step", position), op=error.details.get("op", 0))
                self._locate(difference, error)
            self._note(error, error.reason)
        if self._transcript.supplements is not None:
            self._findings += self._transcript.supplements.findings
        if self._stop is None:
            self._findings += self._transcript.check_data()
        self._examine()
        self._findings += rounding_findings.of_unit(self._executor.adjudication, self._policy, self._transcript.digest)
        self._findings += rounding_findings.findings(
            self._executor.tally, self._policy, self._transcript.digest, self._recorded_here
        )
        return {
            "verdict": GIVEN if verdict == "match" and conditional(self._exchange) else verdict,
            "steps": [begin, position],
            "state": self._executor.state_digest().hex(),
            "followed": self._executor.followed,
            "logged": self._logged,
            "rounded": self._executor.rounded,
            "calibrated": self._executor.calibrated,
            "probable": self._executor.probable,
            "evidence": self._executor.tally.to_json(),
            "unit": self._executor.adjudication.to_json(),
            "chosen": self._chosen.to_json(self._policy.budgets, self._weights),
            "tapes": {d.hex(): use for d, use in self._uses.items()},
            "findings": told(self._findings),
            "recognised": [] if self._recognising is None else [f.to_json() for f in self._recognising.found],
            "first_difference": difference,
            "live": live,
            "weights": weights,
            "made": made,
            **({"touched": 0, "flops": None, "narrow": 0} if self._stop is None else self._reached(*self._stop)),
            "running": running.hex() if running is not None else None,
            "head": None if self._stop is None else self._transcript.head(self._stop[0] - 1).hex(),
            "sensitivity": None if self._sampled is None else self._sampled.result().to_json(),
            "device": self._kind,
            "calibrated_on": self._calibrated_on,
            "confinement": self._confined,
            "work": None if self._work is None else self._work.digest().hex(),
        }

    def _made(self, salt: bytes) -> list[list[Any]] | None:
        """Lists what the run made of the state that was reached; None if its tapes do not tell."""
        assert self._stop is not None
        try:
            programs = self._programs = tape_checks.examine(self._transcript, self._program)
            brought = programs.brought(self._transcript, self._program, self._stop[0])
        except WeighbridgeError:  # which the examination of the tapes reports
            return None
        found = self._executor.leaves_of([name for name in self._executor.state if name not in brought], salt)
        return [[size, digest.hex()] for size, digest in found]

    def _reached(self, step: int, op: int) -> dict[str, Any]:
        """Says how much work led to a position, and how much memory the operation after it needs."""
        counts: dict[bytes, tuple[list[int], list[int]]] = {}
        done, rounded, touched = 0, 0, 0
        try:
            for number in range(min(step + 1, self._transcript.steps)):
                digest = self._transcript.step(number).tape
                if digest not in counts:
                    counted = flops(self._program(digest))
                    counts[digest] = counted, narrow(self._program(digest), counted)
                of_flops, of_narrow = counts[digest]
                last = op if number == step else None
                done += sum(of_flops[:last])
                rounded += sum(of_narrow[:last])
            if step < self._transcript.steps:
                touched = self._program(self._transcript.step(step).tape).touched(op)
        except WeighbridgeError:
            return {"touched": touched, "flops": None, "narrow": 0}  # the verdict says what is wrong with the tape
        return {"touched": touched, "flops": done, "narrow": rounded}

    def _recorded_here(self, step: int) -> bool:
        """Says whether a step was recorded by this kind of device, as the transcript declares."""
        return declared_device(self._transcript.draft, self._transcript.resumptions, step) == self._kind

    def _unlogged(self, error: DifferenceError) -> bool:
        """Says whether a result differs for want of a log that is made on demand; adds to the error what to do."""
        if not error.details.get("unlogged"):
            return False
        transcript, step = self._transcript, error.details["step"]
        declared = declared_device(transcript.draft, transcript.resumptions, step)
        error.details["declared"] = declared or ""
        last = min(max(self._last, step + 1), transcript.steps)
        where = (
            f"on the kind of machine that recorded it ({declared!r})" if declared else "on the machine that recorded it"
        )
        if declared == self._kind:
            where += ", which this is, so that it should have matched"
        failed = error.details.get("failed")
        lacks = "no rounding log here" if failed is None else f"no rounding log here, its sketch fails ({failed})"
        error.message += (
            f"; step {step} has {lacks}, and devices may round elements of this result either way: this "
            f"is not evidence against the Prover, and verifies nothing from step {step} on. The Prover makes the logs "
            f"by `weighbridge regenerate RUN --steps {step}:{last}` {where}; replay with what it writes"
        )
        return True

    def _undecided(self, error: DifferenceError) -> bool:
        """Says whether a bound that is too small for this device may be why a result differs; adds that to the error.

        On the kind of device that recorded the step it cannot be: wide values are the same there, and so are roundings.
        """
        if not error.details.get("inconclusive"):
            return False
        transcript = self._transcript
        declared = declared_device(transcript.draft, transcript.resumptions, error.details["step"])
        error.details["declared"] = declared or ""
        said = repr(declared) if declared else "the transcript does not say"
        few = "; few elements next to a boundary would explain it, "
        if declared == self._kind:
            error.message += f"{few}but not on the kind of device that recorded it, which this is ({said})"
            return False
        error.message += (
            f"{few}so the bound may be too small for this device: this is not evidence against the Prover, and "
            f"verifies nothing; replay it on the kind that recorded it ({said}), "
            "where it must match"
        )
        return True

    def _locate(self, difference: dict[str, Any], error: WeighbridgeError) -> None:
        """Adds to a difference, and to its message, in which module it is and what its operands came from."""
        difference.update(path=None, upstream=[])
        if 0 <= difference["step"] < self._transcript.steps:
            tape, op = self._tape(self._transcript.step(difference["step"])), difference["op"]
            if 0 <= op < len(tape.nodes) and tape.nodes[op].op == difference["operation"]:
                difference.update(locate(tape, op))
        if difference["path"] is not None:
            error.details["path"] = difference["path"]
            error.message = f"{error.message} (by the Prover's word this is in {difference['path']})"

    def _note(self, error: WeighbridgeError, code: str) -> None:
        details = {k: v for k, v in error.details.items() if isinstance(v, (int, str, float, bool))}
        self._findings.append(
            Finding(
                id=code, message=error.message, expected=str(details.get("expected", "")),
                found=str(details.get("found", "")), subject=self._transcript.digest,
                severity=_SEVERITIES.get(code, "violation"), evidence=details,
            )
        )  # fmt: skip

    def _load(self, step: int) -> None:
        """Starts from a checkpoint, which must be the state that the step before it left."""
        checkpoint = self._transcript.checkpoint(step)
        expected, found = self._transcript.step(step - 1).state, checkpoint_digest(checkpoint)
        if expected != found:
            raise DifferenceError(
                f"checkpoint {step} is not the state after step {step - 1}",
                step=step, op=0, operation="checkpoint", expected=expected.hex(), found=found.hex(),
            )  # fmt: skip
        self._executor.load(checkpoint)

    def _tape(self, record: StepRecord) -> Tape:
        return self._program(record.tape)

    def _program(self, digest: bytes) -> Tape:
        tape = self._tapes.get(digest)
        if tape is None:
            tape = self._tapes[digest] = Tape.decode(self._transcript.tape(digest))
        return tape

    def _before(self, step: int) -> None:
        """Makes the state what it is when a step has begun and no operation has run."""
        record = self._transcript.step(step)
        if record.kind == "init" and not self._tape(record).nodes:
            self._load(step + 1)  # the model existed before
        else:
            self._executor.drop(self._tape(record), step)

    def _running(self, step: int, context: Following | None) -> bytes:
        """The digest of a step's operations up to the stop, of which `context` is what they were evaluated in."""
        transcript, record = self._transcript, self._transcript.step(step)
        assert self._stop is not None
        return running_digest(
            self._tape(record),
            self._stop[1],
            step=step,
            batch=transcript.batch(step),
            undeclared=transcript.undeclared(step),
            values=record.values,
            host=record.host[: context.hosts] if context else [],
            rng=context.rng if context else {},
            checksums=record.checksums[: 8 * context.checked] if context else b"",
            followed=transcript.draft.get(KEY) == FOLLOWED,
        )

    def _step(self, step: int, stop: int | None) -> Following | None:
        """Executes one step; returns what it was evaluated in, or None if there was nothing to evaluate."""
        transcript, executor = self._transcript, self._executor
        record = transcript.step(step)
        tape = self._tape(record)
        if record.kind == "init" and not tape.nodes and stop is None:
            self._load(step + 1)  # the model existed before: W_0 is a committed checkpoint
            self._use(record, tape)
            return None
        if self._sampled is not None and stop is None:
            self._sampled.before(step, executor)
        log = transcript.log(step)
        recognising = self._recognising if stop is None else None
        executor.before = None if recognising is None else recognising.begin(record)
        if self._work is not None and step >= self._first:  # what leads to the segment is not of it
            executor.before = self._work.begin(step, tape)
        made = transcript.supplements is not None and transcript.supplements.rounding(step) is not None
        sketches = None if made else transcript.sketches(step)
        context = executor.run(
            tape, record.tape, record, log, transcript.batch(step), transcript.undeclared(step), stop, sketches
        )
        self._logged += 0 if log is None else log.entries
        self._use(record, tape)
        if stop is None:
            found = executor.state_digest()
            if found != record.state:
                raise DifferenceError(
                    f"the state after step {step} differs although every result in it matched",
                    step=step, op=len(tape.nodes), operation="state", expected=record.state.hex(), found=found.hex(),
                )  # fmt: skip
            if (
                step + 1 in transcript.checkpoint_steps
                and checkpoint_digest(transcript.checkpoint(step + 1)) != record.state
            ):
                raise DifferenceError(
                    f"checkpoint {step + 1} is not the state after step {step}",
                    step=step + 1, op=0, operation="checkpoint", expected=record.state.hex(), found="another state",
                )  # fmt: skip
        if recognising is not None:
            recognising.end(record)
        if self._sampled is not None and stop is None:
            self._findings += self._sampled.after(step)
        return context

    def _use(self, record: StepRecord, tape: Tape) -> None:
        """Counts which programs ran."""
        use = self._uses.setdefault(record.tape, {"kind": record.kind, "count": 0, "operations": len(tape.nodes)})
        use["count"] += 1

    def _examine(self) -> None:
        """Says what entered the programs that ran, and what is to be said about all programs of the transcript."""
        gc.disable()  # nothing here is garbage, and to look for some goes over all that was loaded
        try:
            values, findings = tape_checks.check(self._transcript, self._program, self._policy, self._programs)
            if values:
                chosen_counts.count(self._transcript, self._program, values, self._chosen)
                self._weights = chosen_counts.weights(self._transcript, self._program)
        except (TapeError, TranscriptError) as error:
            if error.reason not in {finding.id for finding in self._findings}:  # it has ended the replay already
                self._note(error, error.reason)
        finally:
            gc.enable()
        for step, bits in self._executor.adjudication.rest.items():
            self._executor.tally.surprise.leave(step, bits)
        self._executor.tally.surprise.enter(self._chosen)
        if self._recognising is not None:
            self._recognising.enter(self._chosen)
        given_results.enter(self._exchange, self._chosen)
        self._findings += chosen_findings.findings(self._chosen, self._policy, self._transcript.digest)
        known = {finding.id for finding in self._findings}
        for finding in findings:
            if values or finding.id not in known:  # a tape that cannot be read has ended the replay already
                self._findings.append(replace(finding, severity=_SEVERITIES.get(finding.id, finding.severity)))
        for digest, use in self._uses.items():
            entered = values.get(digest)
            use["free_values"] = entered.undeclared_values if entered else 0
            use["free_bytes"] = entered.undeclared_bytes if entered else 0
            use["once_bytes"] = entered.once_bytes if entered else 0
            use["derived"] = sum(name is not None for name in entered.changing.values()) if entered else 0


def main() -> None:
    """Answers one request for a replay."""
    serve(lambda request, confined, send: Replay(request, confined, send).run())


if __name__ == "__main__":
    main()
