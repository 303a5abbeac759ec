"""Whether a delivered training is the one that was ordered: transcript and order are compared, nothing is executed.

An audit says besides that the steps' results follow. Both are needed: a service can deliver fewer steps than were
ordered and say so, or say that it did all and have executed fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from verifier.auditing.statements import AuditError
from weighbridge.attest.training_order import OrderError, TrainingOrder
from weighbridge.core.errors import Finding
from weighbridge.execution.transcript_facts import OPENING, OpenedTranscript, open_confined


@dataclass(frozen=True, kw_only=True)
class Delivered:
    """What a transcript says of itself, as far as an order speaks of it.

    Attributes:
        signer: Hex key that signed it.
        complete: Whether recording ended as planned.
        steps: Step records of kind `step`.
        passport: Hex digest of the passport of its programs.
        numbers: Hex digest of each program's tape to that of the numbers that it took.
        counts: Hex digest of each program's tape to how often it ran.
        data: Hex root over the records of its data set; empty if it committed to none.
        records: How many records that has.
        seeds: Hex seed of all randomness and hex seed of the order of use; each empty if it follows from the data.
        logs: Which kind of rounding logs it has.
        batches: Identifiers of what is wrong with its batches.
    """

    signer: str
    complete: bool
    steps: int
    passport: str
    numbers: dict[str, str]
    counts: dict[str, int]
    data: str
    records: int
    seeds: tuple[str, str]
    logs: str
    batches: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Returns it as a verdict has it; inverse of `from_json`."""
        return {**asdict(self), "seeds": list(self.seeds), "batches": list(self.batches)}

    @classmethod
    def from_json(cls, raw: Any) -> Delivered:
        """Reads what a verdict says was delivered.

        Raises:
            AuditError: It is none.
        """
        match raw:
            case {
                "signer": str(), "complete": bool(), "steps": int(), "passport": str(), "numbers": dict(numbers),
                "counts": dict(counts), "data": str(), "records": int(), "seeds": [str(one), str(other)],
                "logs": str(), "batches": list(wrong),
                **rest,
            } if not rest and _typed([*numbers.values(), *wrong], str) and _typed([*counts.values()], int):  # fmt: skip
                return cls(**{**raw, "seeds": (one, other), "batches": tuple(wrong)})
        raise AuditError("What a verdict says was delivered has other fields than these.")


def _typed(values: list[Any], kind: type) -> bool:
    return all(type(each) is kind for each in values)


Deliver = Callable[[str], Delivered | None]
"""Returns what the transcript of an identifier says of itself; None if it cannot be read here."""


def delivered(run: Path) -> Delivered:
    """Reads what a transcript says of itself; a confined worker decodes it.

    Raises:
        WeighbridgeError: The transcript is damaged, or a worker could not do it.
    """
    opened = open_confined(run, opening=OPENING, limits=OPENING)
    told = opened.passport()
    data = opened.data
    follows = data is not None and data.seed_follows
    return Delivered(
        signer=opened.manifest.public.hex(),
        complete=opened.manifest.complete,
        steps=opened.summary().kinds.get("step", 0),
        passport=told["digest"],
        numbers={each["tape"]: each["numbers"] for each in told["run"]["programs"]},
        counts={each["tape"]: each["count"] for each in told["run"]["programs"]},
        data="" if data is None else data.root.hex(),
        records=0 if data is None else data.count,
        seeds=("" if follows else _hex(opened.seed), "" if follows else _hex(None if data is None else data.seed)),
        logs=opened.logs,
        batches=_wrong(opened),
    )


def ordered_like(
    run: Path, *, name: str, client: bytes, service: bytes, steps: int, seed: int | None,
    runs: Mapping[str, int] | None = None,
) -> TrainingOrder:  # fmt: skip
    """Returns the order of a training whose programs, numbers, data and logs are those of a rehearsal.

    Args:
        run: The rehearsal's transcript.
        name: What the client calls it.
        client: The client's public key.
        service: The service's.
        steps: How many updates are ordered.
        seed: The seed; None if it has to follow from the data.
        runs: The beginning of the hex digest of a program's tape to how often it has to run at least.

    Raises:
        OrderError: The rehearsal cannot be ordered by, or the order makes no sense.
        WeighbridgeError: The transcript is damaged, or a worker could not do it.
    """
    found = delivered(run)
    if not found.data or found.batches:
        raise OrderError(f"{run.name} does not commit to its data, or its batches are others; record it with `data`")
    return TrainingOrder(
        name=name,
        client=client,
        service=service,
        steps=steps,
        passport=bytes.fromhex(found.passport),
        numbers={bytes.fromhex(tape): bytes.fromhex(taken) for tape, taken in found.numbers.items()},
        data=bytes.fromhex(found.data),
        records=found.records,
        seed=seed,
        logs=found.logs,
        runs={_program(found, begins): count for begins, count in (runs or {}).items()},
    )


def _program(found: Delivered, begins: str) -> bytes:
    """Returns the digest of the tape of one of the rehearsal's programs.

    Raises:
        OrderError: None begins so, or several do.
    """
    named = [tape for tape in found.counts if begins and tape.startswith(begins)]
    if len(named) != 1:
        ran = ", ".join(f"{tape[:16]} ({count})" for tape, count in found.counts.items())
        raise OrderError(f"{begins!r} names {len(named)} of the programs that were rehearsed; they are {ran}")
    return bytes.fromhex(named[0])


def compare(order: TrainingOrder, found: Delivered | None, subject: str) -> list[Finding]:
    """Returns in what a delivered training is another than the one that was ordered.

    Args:
        order: What was ordered.
        found: What was delivered; None if the transcript could not be read.
        subject: The transcript's identifier.
    """
    if found is None:
        words = "the transcript that was delivered for the order could not be read here"
        return [Finding(id="order.unchecked", message=words, subject=subject, severity="warning")]
    return [
        Finding(id=code, message=message, expected=expected, found=there, subject=subject)
        for code, message, expected, there in _differences(order, found)
    ]


def _differences(order: TrainingOrder, found: Delivered) -> Iterator[tuple[str, str, str, str]]:
    if found.signer != order.service.hex():
        yield "order.signer", "another key signed the transcript", order.service.hex(), found.signer
    if found.steps != order.steps or not found.complete:
        there = f"{found.steps} steps" + ("" if found.complete else ", and its recording did not end as planned")
        words = f"{order.steps} steps were ordered, and the transcript has {there}"
        yield "order.steps", words, str(order.steps), there
    numbers = {tape.hex(): taken.hex() for tape, taken in order.numbers.items()}
    if found.passport != order.passport.hex():
        words = "the training has other programs than were ordered"
        yield "order.program", words, order.passport.hex(), found.passport
    elif found.numbers != numbers:
        others = ", ".join(sorted(tape[:16] for tape in numbers if found.numbers.get(tape) != numbers[tape]))
        words = f"the programs are those that were ordered, and take other numbers (tapes {others})"
        yield "order.program", words, "", ""
    for tape, least in sorted(order.runs.items()):
        ran = found.counts.get(tape.hex(), 0)
        if ran < least:
            words = f"the program {tape.hex()[:16]} was ordered to run {least} times at least, and ran {ran} times"
            yield "order.runs", words, str(least), str(ran)
    if (found.data, found.records) != (order.data.hex(), order.records):
        words = "the training has another data set than was ordered"
        yield "order.data", words, order.data.hex(), found.data or "none"
    elif found.batches:
        words = "the batches are not the records of the data set, in the order that was committed to"
        yield "order.data", words, "", ", ".join(found.batches)
    seed = "" if order.seed is None else _hex(order.seed)
    if found.seeds != (seed, seed):
        words = "the training draws from another seed than was ordered"
        yield "order.seed", words, seed or "one that follows from the data", " and ".join(found.seeds)
    if found.logs != order.logs:
        words = "the transcript has other rounding logs than were ordered"
        yield "order.logs", words, order.logs, found.logs


def _wrong(opened: OpenedTranscript) -> tuple[str, ...]:
    return tuple(sorted({each.id for each in opened.check_data() if each.severity == "violation"}))


def _hex(seed: int | None) -> str:
    return "none" if seed is None else f"{seed:x}"
