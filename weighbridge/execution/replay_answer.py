"""What a replay found, and how it is read from a worker's answer, which is hostile.

`import weighbridge` loads this module, so it loads no PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from weighbridge.core import bound_failure
from weighbridge.core.errors import Finding, ReplayWorkerError, Severity
from weighbridge.execution import choice_counts
from weighbridge.execution.recognition.outcome import Recognition
from weighbridge.execution.recognition.outcome import parse as parse_recognition
from weighbridge.execution.sensitivity import Sensitivity
from weighbridge.execution.sensitivity import parse as parse_sensitivity
from weighbridge.execution.worker_process import raise_error
from weighbridge.program import chosen_bits

Verdict = Literal["match", "match given collectives", "mismatch", "inconclusive"]

MOST_FINDINGS = 1_000
"""Findings in an answer: a transcript may have a hundred thousand programs, each with something to be said of it."""
_GRAVEST: tuple[Severity, ...] = ("violation", "warning", "info")
_MAX_RECOGNISED = 1 << 12


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
        calibrated: Those of them whose bounds are calibrated (measured).
        probable: Those of them whose bounds are probabilistic (`weighbridge.core.bound_failure`); the bounds of the
            others are strict (proven).
        probable_elsewhere: Those that the other ranks of a job rounded in the same replay.
        evidence: What the rounding logs chose (`weighbridge.execution.choice_statistics`): counts, and `tests` with
            p-values.
        unit: Where the run declares a truncating unit, what its model was asked (`execution.unit_adjudication`):
            `results` judged, entries that `overruled` the replayer and those `confirmed`, other elements that `could`
            differ, those `judged` and `suppressed`, flips `expected`, and `unjudged_bits`. Else zeros.
        tapes: By hex digest of each tape that this replay ran: `kind`, `count` of executions, `operations`; and over
            the whole transcript `free_values` and `free_bytes` (values and tensors that entered undeclared),
            `once_bytes` of constants if it ran only once, and how many changing values are `derived` by formulas.
        chosen: The ledger of chosen bits over the whole transcript, by channel (`weighbridge.program.chosen_bits`):
            `bits`, the `step` that brought most (-1 for the whole run) with its `step_bits`, and `what` brought most.
            Its `roundings` are those of the executed steps.
        findings: What is wrong or worth knowing.
        recognised: What training the steps that were looked at are; see docs/recognition.md.
        of_ranks: The same by rank, of a replay of all ranks of a job; else empty.
        first_difference: `step`, `op`, `operation`, `expected`, `found`; `path` and `upstream` (see
            `weighbridge.execution.location.locate`): the module, by the Prover's word, and what the operands came
            from. None on a match.
        live: At a stop: live storages as (bytes, hex keyed digest).
        running: At a stop: hex digest of the step's operations so far.
        head: At a stop: hex running head of the transcript before the step in progress.
        weights: At a stop: those of the live storages that the transcript names as the model's weights; None if it
            names none.
        made: At a stop between steps: those of the live storages that the run made, other than out of what its steps
            were given; None if that cannot be told.
        touched: At a stop: bytes of the storages that the next operation reads or makes.
        flops: At a stop: FLOPs of all operations of the transcript up to there, by `weighbridge.program.flops`; None
            if a tape cannot be counted.
        narrow: At a stop: elements in 16 bits that these operations computed.
        sensitivity: How steps that the Verifier sampled responded (`weighbridge.execution.sensitivity`); None if it
            asked for none.
        device: What replayed it.
        confinement: Which restrictions the worker was under.
        calibrated_on: Model of the device on which calibrated bounds were measured, `cpu` or `cuda` and its name; empty
            if the run has none.
        work: Hex digest over all operation results (`weighbridge.execution.work_digest`), up to the first difference if
            there is one; None if no key for it was given.
        recognition_failed: Why no step was recognised although that was asked for; empty otherwise.
    """

    verdict: Verdict
    steps: tuple[int, int]
    state: str
    followed: int = 0
    logged: int = 0
    rounded: int = 0
    calibrated: int = 0
    probable: int = 0
    probable_elsewhere: int = 0
    evidence: dict[str, Any] = field(default_factory=dict)
    unit: dict[str, float] = field(default_factory=dict)
    tapes: dict[str, dict[str, Any]] = field(default_factory=dict)
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    recognised: list[Recognition] = field(default_factory=list)
    of_ranks: list[list[Recognition]] = field(default_factory=list)
    first_difference: dict[str, Any] | None = None
    live: list[tuple[int, str]] | None = None
    running: str | None = None
    head: str | None = None
    weights: list[tuple[int, str]] | None = None
    made: list[tuple[int, str]] | None = None
    touched: int = 0
    flops: int | None = None
    narrow: int = 0
    sensitivity: Sensitivity | None = None
    device: str = "cpu"
    confinement: list[str] = field(default_factory=list)
    recognition_failed: str = ""
    calibrated_on: str = ""
    work: str | None = None

    @property
    def false_accusation(self) -> float:
        """The probability, at most, that this replay accuses an honest run because a probabilistic bound failed.

        0 where there are none. No probability is known of calibrated bounds, and strict ones do not fail.
        """
        return bound_failure.false_accusation(self.probable + self.probable_elsewhere)

    def to_json(self) -> dict[str, Any]:
        """Returns a JSON-compatible dictionary with every field, and `false_accusation`."""
        return {**asdict(self), "false_accusation": self.false_accusation}


def parse(message: dict[str, Any]) -> ReplayResult:
    """Reads the worker's answer as hostile: every field has its type or the answer is refused.

    Raises:
        WeighbridgeError: The error that the worker answered.
        ReplayWorkerError: The answer is malformed.
    """
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
            probable=int(raw["probable"]),
            evidence=choice_counts.report(choice_counts.parse(raw["evidence"])),
            unit=_numbers(raw.get("unit", {})),
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
            made=_leaves(raw["made"]),
            touched=int(raw["touched"]),
            flops=None if raw["flops"] is None else int(raw["flops"]),
            narrow=int(raw["narrow"]),
            sensitivity=parse_sensitivity(raw["sensitivity"]),
            running=None if raw["running"] is None else bytes.fromhex(raw["running"]).hex(),
            head=None if raw["head"] is None else bytes.fromhex(raw["head"]).hex(),
            device=str(raw["device"])[:200],
            confinement=[str(c)[:50] for c in raw["confinement"]],
            calibrated_on=str(raw["calibrated_on"])[:200],
            work=None if raw.get("work") is None else bytes.fromhex(raw["work"]).hex(),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError) as error:
        raise ReplayWorkerError(f"the replay worker's answer is malformed ({type(error).__name__})") from None


def _numbers(raw: Any) -> dict[str, float]:
    if not all(type(v) in (int, float) and math.isfinite(v) and v >= 0 for v in raw.values()):
        raise ValueError("unit")
    return {str(k)[:100]: v for k, v in list(raw.items())[:100]}


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
