"""Facts as they are kept in the Verifier's database: plain data for CBOR, and back.

What is kept was ours before, so it is not read as hostile. Tokens of chips are kept as the bytes that came and verified
again when they are read, so nothing rests on the database that a chip did not sign.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cryptography.x509 import Certificate

from verifier.model.check_runner import Judgement
from verifier.model.facts import Anchor, Cell, Contact, Entry, Explanation, Held, LogFacts, Opening, Report
from verifier.model.replay_task import Outcome
from verifier.model.supplement_facts import Asked
from verifier.registry import Chip
from weighbridge.attest import chip_log
from weighbridge.attest.tokens import Verified, entry_digest, verify
from weighbridge.core.digests import DIGEST_SIZE, Leaf
from weighbridge.core.errors import Finding, WeighbridgeError
from weighbridge.execution import sensitivity
from weighbridge.execution.recognition import outcome as recognition
from weighbridge.execution.replay_answer import ReplayResult
from weighbridge.execution.run_facts import Amount, Program, Repetition, RunFacts


def plain(value: Any) -> Any:
    """Returns a value as CBOR and JSON have it: tuples become lists, and what neither has its text."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, dict):
        return {str(name): plain(each) for name, each in value.items()}
    return str(value)


def error_to(error: WeighbridgeError) -> list[Any]:
    """Returns an error as [class, reason, message, details]."""
    return [type(error).__name__, error.reason, error.message, plain(error.details)]


def error_of(raw: Any) -> WeighbridgeError:
    """Inverse of `error_to`: the same class, reason, message and details."""
    name, reason, message, details = raw
    kind = next((each for each in _classes(WeighbridgeError) if each.__name__ == name), WeighbridgeError)
    error = kind.__new__(kind)
    WeighbridgeError.__init__(error, message, code=reason, **details)
    return error


def _classes(kind: type[WeighbridgeError]) -> Iterator[type[WeighbridgeError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _classes(each)


def chip_to(chip: Chip) -> dict[str, Any]:
    """Returns what the registry knew about a chip."""
    return asdict(chip)


def chip_of(raw: Any) -> Chip:
    """Inverse of `chip_to`."""
    return Chip(**raw)


def log_to(log: LogFacts) -> dict[str, Any]:
    """Returns a chip's log as it was read; tokens as the bytes that arrived."""
    return {
        "chip": chip_to(log.chip),
        "nonce": log.nonce,
        "head": error_to(log.head) if isinstance(log.head, WeighbridgeError) else log.head_token,
        "entries": [entry.data for entry in log.entries],
        "error": None if log.error is None else error_to(log.error),
        "held": asdict(log.held),
        "report": None if log.report is None else [log.report.note.encode(), log.report.token],
        "proof": list(log.proof),
        "history": None if log.history is None else error_to(log.history),
        "refused": [[reason, checkpoint] for reason, checkpoint in log.refused],
        "asked_ms": log.asked_ms,
        "read_ms": log.read_ms,
        "anchors": [[anchor.data, anchor.asked_ms, anchor.read_ms] for anchor in log.anchors],
        "contacts": [[each.size, each.time_s, each.chip_ms] for each in log.contacts],
    }


def log_of(raw: Any, manufacturer: Certificate) -> LogFacts:
    """Inverse of `log_to`; verifies every token again.

    Raises:
        WeighbridgeError: The head, which verified when the log was read, does not verify any more.
    """
    head: Verified | WeighbridgeError
    if isinstance(raw["head"], bytes):
        head, token = verify(raw["head"], manufacturer), raw["head"]
    else:
        head, token = error_of(raw["head"]), b""
    report = None
    if raw["report"] is not None:
        note, signed = raw["report"]
        verified = verify(signed, manufacturer)
        checkpoint, opened = chip_log.open_checkpoint(note, verified.token)
        report = Report(head=verified, token=signed, checkpoint=checkpoint, note=opened)
    return LogFacts(
        chip=chip_of(raw["chip"]),
        nonce=raw["nonce"],
        head=head,
        head_token=token,
        entries=[entry(data, manufacturer) for data in raw["entries"]],
        error=None if raw["error"] is None else error_of(raw["error"]),
        held=Held(**raw["held"]),
        report=report,
        proof=list(raw["proof"]),
        history=None if raw["history"] is None else error_of(raw["history"]),
        refused=[(reason, checkpoint) for reason, checkpoint in raw["refused"]],
        asked_ms=raw.get("asked_ms", 0),  # what an older version stored was read one after the other
        read_ms=raw["read_ms"],
        anchors=[anchor(data, asked, read, manufacturer) for data, asked, read in raw.get("anchors", ())],
        contacts=[Contact(*each) for each in raw.get("contacts", ())],
    )


def anchor(data: bytes, asked_ms: int, read_ms: int, manufacturer: Certificate) -> Anchor:
    """Verifies a head that was stored with the times between which it was signed.

    Raises:
        WeighbridgeError: It does not verify any more.
    """
    return Anchor(data=data, token=verify(data, manufacturer).token, asked_ms=asked_ms, read_ms=read_ms)


def entry(data: bytes, manufacturer: Certificate) -> Entry:
    """Verifies one log entry by itself; why it does not verify is part of the result."""
    verified: Verified | WeighbridgeError
    try:
        verified = verify(data, manufacturer)
    except WeighbridgeError as error:
        verified = error
    return Entry(data=data, digest=entry_digest(data), verified=verified)


def explanation_to(answer: Explanation | WeighbridgeError | None) -> Any:
    """Returns a Prover's answer: None, a map, or an error's list."""
    if answer is None:
        return None
    return error_to(answer) if isinstance(answer, WeighbridgeError) else plain(asdict(answer))


def explanation_of(raw: Any) -> Explanation | WeighbridgeError | None:
    """Inverse of `explanation_to`."""
    if raw is None:
        return None
    return error_of(raw) if isinstance(raw, list) else Explanation(**{**raw, "ranks": tuple(raw["ranks"])})


def opening_to(opening: Opening | WeighbridgeError) -> Any:
    """Returns a chip's opening of a snapshot, its leaves as sizes and digests one behind the other."""
    if isinstance(opening, WeighbridgeError):
        return error_to(opening)
    return {"salt": opening.salt, "leaves": _leaves_to(opening.leaves), "weights": _leaves_to(opening.weights)}


def opening_of(raw: Any) -> Opening | WeighbridgeError:
    """Inverse of `opening_to`."""
    if isinstance(raw, list):
        return error_of(raw)
    return Opening(salt=raw["salt"], leaves=_leaves_of(raw["leaves"]), weights=_leaves_of(raw["weights"]))


def _leaves_to(leaves: list[Leaf]) -> list[Any]:
    return [[size for size, _ in leaves], b"".join(digest for _, digest in leaves)]


def _leaves_of(raw: Any) -> list[Leaf]:
    sizes, digests = raw
    return [(size, digests[DIGEST_SIZE * n : DIGEST_SIZE * (n + 1)]) for n, size in enumerate(sizes)]


def result_to(result: ReplayResult | WeighbridgeError) -> Any:
    """Returns what a replay found, or why there was none."""
    if isinstance(result, WeighbridgeError):
        return error_to(result)
    return plain(result.to_json())


def result_of(raw: Any) -> ReplayResult | WeighbridgeError:
    """Inverse of `result_to`."""
    if isinstance(raw, list):
        return error_of(raw)
    first, last = raw["steps"]
    return ReplayResult(
        **{
            **{name: value for name, value in raw.items() if name != "false_accusation"},  # follows from the others
            "steps": (first, last),
            "findings": findings_of(raw["findings"]),
            "live": _storages(raw["live"]),
            "weights": _storages(raw["weights"]),
            "recognised": [recognition.parse(each) for each in raw.get("recognised", ())],
            "of_ranks": [[recognition.parse(each) for each in rank] for rank in raw.get("of_ranks", ())],
            "sensitivity": sensitivity.parse(raw.get("sensitivity")),
        }
    )


def _storages(raw: Any) -> list[tuple[int, str]] | None:
    return None if raw is None else [(size, digest) for size, digest in raw]


def findings_to(findings: list[Finding]) -> list[Any]:
    """Returns findings with every field."""
    return [plain(finding.to_json()) for finding in findings]


def findings_of(raw: Any) -> list[Finding]:
    """Inverse of `findings_to`."""
    return [Finding(**each) for each in raw]


def outcome_to(outcome: Outcome) -> Any:
    """Returns what became of a replay, and how long it took."""
    return [result_to(outcome.result), outcome.seconds]


def outcome_of(raw: Any) -> Outcome:
    """Inverse of `outcome_to`."""
    result, seconds = raw
    return Outcome(result_of(result), seconds)


def judgement_to(judgement: Judgement) -> Any:
    """Returns what checks found; those that count against something by their places."""
    counted = [place for place, finding in enumerate(judgement.findings) if finding in judgement.counted]
    return [findings_to(judgement.findings), counted, judgement.not_sampled]


def judgement_of(raw: Any) -> Judgement:
    """Inverse of `judgement_to`, for judgements in which no check failed."""
    findings, counted, not_sampled = findings_of(raw[0]), raw[1], raw[2]
    return Judgement(findings=findings, counted=[findings[place] for place in counted], not_sampled=not_sampled)


def cell_to(cell: Cell | WeighbridgeError) -> Any:
    """Returns what was asked of a Prover for a cell; the results stay in their file."""
    if isinstance(cell, WeighbridgeError):
        return error_to(cell)
    return {**plain(asdict(cell)), "results": str(cell.results), "findings": findings_to(cell.findings)}


def cell_of(raw: Any) -> Cell | WeighbridgeError:
    """Inverse of `cell_to`.

    Raises:
        FileNotFoundError: The file of results is gone, so it must be asked for again.
    """
    if isinstance(raw, list):
        return error_of(raw)
    begin, end = raw["steps"]
    results = Path(raw["results"])
    results.stat()
    return Cell(**{**raw, "steps": (begin, end), "results": results, "findings": findings_of(raw["findings"])})


def asked_to(asked: Asked) -> Any:
    """Returns what became of a request for rounding logs; the logs stay in their files."""
    fields = {name: getattr(asked, name) for name in ("prover", "transcript", "came", "deadline_s", "seconds")}
    return {
        **fields, "steps": list(asked.steps), "why": None if asked.why is None else error_to(asked.why),
        "findings": findings_to(asked.findings),
    }  # fmt: skip


def asked_of(raw: Any) -> Asked:
    """Inverse of `asked_to`."""
    begin, end = raw["steps"]
    why = None if raw["why"] is None else error_of(raw["why"])
    return Asked(**{**raw, "steps": (begin, end), "why": why, "findings": findings_of(raw["findings"])})


def examined_to(facts: RunFacts | WeighbridgeError) -> Any:
    """Returns what was counted in a run's tapes, or why that could not be."""
    return error_to(facts) if isinstance(facts, WeighbridgeError) else plain(asdict(facts))


def examined_of(raw: Any) -> RunFacts | WeighbridgeError:
    """Inverse of `examined_to`."""
    if isinstance(raw, list):
        return error_of(raw)
    return RunFacts(
        **{
            **raw,
            "programs": tuple(Program(**each) for each in raw["programs"]),
            "operations": tuple(raw["operations"]),
            "hyperparameters": {
                name: (least, most, last) for name, (least, most, last) in raw["hyperparameters"].items()
            },
            "initial": Amount(**raw["initial"]),
            "repetitions": tuple(
                Repetition(each["step"], each["begin"], Amount(**each["start"]), Amount(**each["end"]))
                for each in raw["repetitions"]
            ),
        }
    )
