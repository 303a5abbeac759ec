"""Which facts rules may speak about, with their types; and the check that facts have them.

A fact that was not established is *absent*: it has no default. A rule that needs it is then undecided.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from verifier.rules.errors import FactsError

Scalar = Literal["bool", "int", "double", "string"]


@dataclass(frozen=True, slots=True)
class Type:
    """A type: a scalar, a list or map of one type, or a record by name.

    Attributes:
        kind: `bool`, `int` (64 bits), `double`, `string`, `list`, `map` (from texts) or `record`.
        of: What a list or map holds.
        name: Of a record, its key in the schema.
        words: Of a string, the only ones that there are; empty if it may be any.
    """

    kind: Literal["bool", "int", "double", "string", "list", "map", "record"]
    of: Type | None = None
    name: str = ""
    words: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        if self.kind == "list":
            return f"list of {self.of}"
        if self.kind == "map":
            return f"map from string to {self.of}"
        return self.name if self.kind == "record" else self.kind


BOOL, INT, DOUBLE, STRING = Type("bool"), Type("int"), Type("double"), Type("string")


def listed(of: Type) -> Type:
    """Returns the type of a list."""
    return Type("list", of)


def mapped(of: Type) -> Type:
    """Returns the type of a map from texts."""
    return Type("map", of)


def record(name: str) -> Type:
    """Returns the type of a record."""
    return Type("record", name=name)


DECLARED = "declared"
"""A run's fact; in the schema of a rule set also the record of what the set lets runs declare."""

Field = tuple[Type, str]
Schema = Mapping[str, Mapping[str, Field]]
"""By record, by field: its type and what it means. The record "" holds the names that an expression begins with."""

FACTS: Schema = {
    "": {
        "period_days": (DOUBLE, "length of the monitoring period, in days"),
        "fleet": (record("fleet"), "what was sampled"),
        "ledger": (record("ledger"), "where the chip-hours of the sampled chips went"),
        "runs": (listed(record("run")), "every run whose transcript explains a snapshot of a sampled chip"),
        "findings": (listed(record("finding")), "what the inspection found, rules aside"),
    },
    "fleet": {
        "registered": (INT, "chips in the registry"),
        "sampled": (INT, "chips drawn"),
        "verified": (INT, "chips that count as verified"),
    },
    "ledger": {
        "explained_hours": (DOUBLE, "chip-hours that transcripts explain"),
        "idle_hours": (DOUBLE, "chip-hours without work"),
        "exempt_hours": (DOUBLE, "chip-hours of exempt chips"),
        "unexplained_hours": (DOUBLE, "all other chip-hours"),
        "unexplained_flops": (DOUBLE, "bound on undeclared work on the sampled chips, their counters believed"),
        "remainder_flops": (DOUBLE, "the same if nothing is believed but the transcripts"),
        "fleet_unexplained_flops": (DOUBLE, "bound on undeclared work on all chips, with the ledger's confidence"),
    },
    "run": {
        "id": (STRING, "identifier of the transcript, or of the job if it has several ranks"),
        "draft": (STRING, "digest of the draft, which was fixed before the first step; of rank 0 of a job"),
        "ranks": (INT, "ranks of the job, 1 for a run on one chip"),
        "complete": (BOOL, "recording ended as planned, on every rank"),
        "replayed": (BOOL, "at least one replay of it matched, and none failed"),
        "steps": (INT, "records of kind `step` in the transcript; of rank 0 of a job"),
        "flops": (DOUBLE, "FLOPs of the whole transcript, all ranks, counted from the shapes in its tapes"),
        "init_flops": (DOUBLE, "the part of them in initialisation"),
        "step_flops": (DOUBLE, "the part of them in steps"),
        "edit_flops": (DOUBLE, "the part of them in edits (evaluation, loading of weights)"),
        "chip_hours": (DOUBLE, "chip-hours in the period that it explains on the sampled chips"),
        "parameters": (INT, "elements of the storages that hold the model's weights; of all ranks"),
        "data": (record("data"), "its training data"),
        "programs_fixed": (BOOL, "the draft names the programs that may run, on every rank"),
        "passport": (STRING, "digest of the passport of its programs (docs/passports.md); of rank 0 of a job"),
        "training": (
            record("training"),
            "what was recognised of its training (docs/recognition.md); of runs whose segments were replayed whole, "
            "jobs with all of their ranks",
        ),
        "programs": (listed(record("program")), "the tapes that ran, in order of first use; of rank 0 of a job"),
        "operations": (listed(STRING), "every ATen overload in its tapes"),
        "hyperparameters": (
            mapped(record("range")),
            "by the name of a declared formula that explains a value: its range",
        ),
        "declared": (
            mapped(STRING),
            "texts in the draft's metadata: the Prover's word, fixed before the first step; rules may use those that "
            "the rule set asks for",
        ),
        "scores": (mapped(DOUBLE), "by benchmark: what the Verifier computed from the replayed final state"),
    },
    "data": {
        "committed": (BOOL, "data set and order were committed to before the first step"),
        "root": (STRING, "root over the committed records"),
        "records": (INT, "records in the commitment"),
        "used": (INT, "different records that the steps used"),
        "seen": (INT, "records that the steps used, counted as often as they were"),
        "matches": (BOOL, "every batch is made of the committed records in the committed order"),
    },
    "training": {
        "outcome": (
            STRING,
            "`recognised` if every program that a step ran is, in each step of it that was looked at; `not recognised` "
            "if a step is not; absent if neither is known",
        ),
        "looked_at": (INT, "steps that were looked at"),
        "recognised": (INT, "those of them that are recognised"),
        "programs": (INT, "different programs that its steps ran"),
        "programs_recognised": (INT, "those of them of which steps were looked at and all of these are recognised"),
        "loss": (STRING, "kind of loss, from its operations, such as `cross entropy`; several joined by ` + `, sorted"),
        "optimizer": (
            STRING,
            "class of PyTorch whose formula the updates follow, such as `AdamW`; several joined by ` + `, sorted",
        ),
        "trained": (listed(STRING), "state that these updates change; names are the Prover's word"),
        "direct": (listed(STRING), "weights that meet the batch element by element, with no model between them"),
        "stops": (listed(STRING), "where gradients stop on their way from a loss to a weight"),
        "verified_share": (
            DOUBLE,
            "the least share, over the steps that were looked at, of the weights' elements whose update was verified",
        ),
        "data_share": (
            DOUBLE,
            "bits of floating-point numbers that a batch brings over bits of the weights that it updates; the most of "
            "a step",
        ),
        "other_share": (
            DOUBLE,
            "the same of all other data, such as tokens: integers may be numbers in disguise, but honest ones are "
            "counted with all bits of their type",
        ),
        "freedom": (DOUBLE, "the most that the best attack within what is accepted moves weights, over an update"),
    },
    "program": {
        "digest": (STRING, "digest of the tape"),
        "kind": (STRING, "`init`, `step` or `edit`"),
        "training": (STRING, "of programs that steps ran, as `training.outcome` of the run"),
        "first": (INT, "the step that ran it first; the initialisation is step 0"),
        "count": (INT, "how often it ran"),
        "operations": (INT, "its length"),
        "flops": (DOUBLE, "FLOPs of one execution"),
    },
    "range": {
        "least": (DOUBLE, "smallest value over all steps"),
        "most": (DOUBLE, "largest value over all steps"),
        "last": (DOUBLE, "value in the last step"),
    },
    "finding": {
        "id": (STRING, "see docs/findings.md"),
        "severity": (STRING, "`info`, `warning` or `violation`"),
        "subject": (STRING, "what it is about"),
    },
}

MOST_LISTED = 100_000
LONGEST_TEXT = 4000
LARGEST_INT = (1 << 63) - 1


def conform(value: Any, schema: Schema, type_: Type, path: str = "facts") -> Any:
    """Returns facts with whole numbers turned into doubles where the schema has doubles.

    Args:
        value: JSON-compatible data.
        schema: Of the records.
        type_: What `value` must be.
        path: Names it in messages.

    Raises:
        FactsError: It has another type, a name that the schema does not have, or is too large.
    """
    match type_.kind:
        case "list" if isinstance(value, list) and len(value) <= MOST_LISTED:
            assert type_.of is not None
            return [conform(each, schema, type_.of, f"{path}[{place}]") for place, each in enumerate(value)]
        case "map" if isinstance(value, dict) and len(value) <= MOST_LISTED:
            assert type_.of is not None
            return {_text(k, path): conform(v, schema, type_.of, f"{path}[{k!r:.80}]") for k, v in value.items()}
        case "record" if isinstance(value, dict):
            return _record(value, schema, type_.name, path)
        case "bool" if isinstance(value, bool):
            return value
        case "int" if type(value) is int and abs(value) <= LARGEST_INT:
            return value
        case "double" if type(value) in (int, float) and abs(value) < 1e308 and math.isfinite(value):
            return float(value)
        case "string":
            return _text(value, path)
    raise FactsError(f"{path} must be a {type_} within limits, not {value!r:.80}; see docs/rules.md")


def _record(value: dict[str, Any], schema: Schema, name: str, path: str) -> dict[str, Any]:
    fields = schema[name]
    for key in value:
        if key not in fields:
            raise FactsError(f"{path} has no fact {key!r:.80}; there are {', '.join(fields)}")
    return {key: conform(each, schema, fields[key][0], f"{path}.{key}") for key, each in value.items()}


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str) or len(value) > LONGEST_TEXT:
        raise FactsError(f"{path} must hold texts of at most {LONGEST_TEXT} characters, not {value!r:.80}")
    return value


def instances(value: Any, schema: Schema, type_: Type) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields every record in facts that conform, with its name."""
    if type_.kind == "record":
        yield type_.name, value
        for key, each in value.items():
            yield from instances(each, schema, schema[type_.name][key][0])
    elif type_.of is not None:
        for each in value if type_.kind == "list" else value.values():
            yield from instances(each, schema, type_.of)


def markdown(schema: Schema = FACTS) -> str:
    """Returns the tables of docs/rules.md."""
    parts = []
    for name, fields in schema.items():
        rows = [f"| `{field}` | {type_} | {meaning} |" for field, (type_, meaning) in fields.items()]
        title = f"### {name or 'Names that an expression begins with'}"
        parts.append("\n".join([title, "", "| name | type | meaning |", "|---|---|---|", *rows]))
    return "\n\n".join(parts) + "\n"
