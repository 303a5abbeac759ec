"""What a tape does, for a person who has to judge it: `weighbridge tape show`. Nothing of the tape is executed."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from weighbridge.core.errors import UsageError
from weighbridge.numerics.rule_table import RULES, base_name
from weighbridge.program.dataflow import Flow
from weighbridge.program.flops import flops
from weighbridge.program.operands import resolve
from weighbridge.program.origins import TapeValues, formula_texts
from weighbridge.program.tape_checks import check, declared_programs, examine
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import Scalar, StepRecord
from weighbridge.transcript.tape import Node, Tape

MOST_OPERATIONS = 200_000
"""Operations that are listed, at most."""
_NAMES = 6

_NUMBER = (int, float, bool, str)
_SOURCES = {"itself": bool, "batch": [str], "state": [str], "more_state": int, "free": [str], "random": bool}
_OPERATION = {
    "op": int, "operation": str, "operands": [str], "results": [str], "flops": int, "births": [[int]],
    "frees_before": [int], "draw": (None, [int]), "module": (None, str),
}  # fmt: skip
SHAPE = {
    "step": int, "tape": str, "kind": str, "declared": (None, bool), "steps": int, "first_step": int,
    "operations": int, "by_rule": {str: int}, "by_operation": {str: int}, "flops": int,
    "flops_by_operation": {str: int}, "births": int, "born_bytes": int, "frees": int, "peak_bytes": int,
    "inputs": [{"slot": int, "origin": str, "name": str, "bytes": int, "tensors": [str]}],
    "draws": int,
    "values": {
        "constants": int, "derived": {str: {"formula": str, "positions": int, "here?": _NUMBER}}, "unexplained": int,
        "unexplained_here": [_NUMBER], "free_values": int, "free_tensors": {str: {"steps": int, "bytes": int}},
        "once_bytes": int, "host_values": int,
    },
    "changes": [{"changed": [str], **_SOURCES, "most_other_state": int}],
    "overwrites": [{"state": str, "operation": int, "depends_on": _SOURCES}],
    "others": {str: int}, "first_in_step": {str: int}, "findings": [dict], "list?": [_OPERATION],
}  # fmt: skip
"""What `describe` returns, for `weighbridge.execution.worker_answers.shaped`."""


def describe(transcript: Transcript, tape: str | None, step: int | None, *, operations: bool) -> dict[str, Any]:
    """Describes one program of a transcript, as JSON-compatible values (`SHAPE`).

    Args:
        transcript: A verified transcript.
        tape: Digest of the tape in hexadecimal digits, or how it begins.
        step: The step that ran it. Without either it is the tape that ran most often. The values shown are those of the
            step, by default of the last one that ran the tape.
        operations: Whether to list every operation.

    Raises:
        UsageError: There is no such step, or not exactly one such tape, or it has too many operations to be listed.
        TapeError: A tape or formula breaks the rules.
    """
    decoded: dict[bytes, Tape] = {}

    def get(digest: bytes) -> Tape:
        if digest not in decoded:
            decoded[digest] = Tape.decode(transcript.tape(digest))
        return decoded[digest]

    record, ran = _choose(transcript, tape, step)
    chosen = get(record.tape)
    if operations and len(chosen.nodes) > MOST_OPERATIONS:
        raise UsageError(f"the tape has {len(chosen.nodes)} operations, more than {MOST_OPERATIONS} are not listed")
    programs = examine(transcript, get)
    found, flow = programs.values[record.tape], programs.flows[record.tape]
    _, findings = check(transcript, get)
    counts = flops(chosen)
    names, by_flops = Counter(node.op for node in chosen.nodes), Counter[str]()
    for node, count in zip(chosen.nodes, counts, strict=True):
        by_flops[node.op] += count
    declared = declared_programs(transcript)
    listed = {"list": _operations(chosen, record, counts)} if operations else {}
    return {
        "step": record.step,
        "tape": record.tape.hex(),
        "kind": found.kind,
        "declared": None if declared is None else record.tape in declared,
        "steps": found.steps,
        "first_step": found.first,
        "operations": len(chosen.nodes),
        "by_rule": dict(Counter(_rule(node.op) for node in chosen.nodes).most_common()),
        "by_operation": dict(names.most_common()),
        "flops": sum(counts),
        "flops_by_operation": {name: count for name, count in by_flops.most_common() if count},
        "births": sum(len(node.births) for node in chosen.nodes),
        "born_bytes": sum(size for node in chosen.nodes for _, size in node.births),
        "frees": len(chosen.frees),
        "peak_bytes": chosen.largest_footprint(),
        "inputs": _inputs(chosen),
        "draws": sum(node.draw is not None for node in chosen.nodes),
        "values": _values(transcript, chosen, record, found),
        "changes": _changes(chosen, flow),
        "overwrites": [
            {"state": o.name, "operation": o.op, "depends_on": _sources(chosen, o.sources)} for o in flow.overwrites
        ],
        "others": ran,
        "first_in_step": {digest.hex(): first for digest, first in transcript.programs().items()},
        "findings": [f.to_json() for f in findings if record.tape.hex() in f.subject],
        **listed,
    }


def _choose(transcript: Transcript, tape: str | None, step: int | None) -> tuple[StepRecord, dict[str, int]]:
    """Returns a step that ran the wanted tape, the last one, and how often every tape ran."""
    if step is not None and not 0 <= step < transcript.steps:
        raise UsageError(f"the transcript has the steps 0 to {transcript.steps - 1}; there is no step {step}")
    last: dict[str, StepRecord] = {}
    ran: dict[str, int] = {}
    for record in transcript.records():
        digest = record.tape.hex()
        last[digest], ran[digest] = record, ran.get(digest, 0) + 1
    if step is not None:
        return transcript.step(step), ran
    if tape is None and ran:
        return last[max(ran, key=lambda digest: ran[digest])], ran
    matching = [digest for digest in ran if digest.startswith((tape or "").lower())]
    if len(matching) != 1:
        raise UsageError(
            f"{len(matching)} tapes of this transcript begin with {(tape or '')[:64]!r}; give more digits of one"
        )
    return last[matching[0]], ran


def _rule(op: str) -> str:
    rule = RULES.get(".".join(base_name(resolve(op))))
    return "computed" if rule is None else str(rule.kind.value)


def _inputs(tape: Tape) -> list[dict[str, Any]]:
    """Every storage that enters, with its origin and the tensors on it that the program uses."""
    used: dict[int, dict[str, None]] = {}
    for ref in tape.refs:
        used.setdefault(ref[0], {})[_shape(ref)] = None
    return [
        {
            "slot": item.slot, "origin": item.origin, "name": item.name.replace("\n", ", "), "bytes": item.bytes,
            "tensors": list(used.get(item.slot, {}))[:_NAMES],
        }
        for item in tape.inputs
    ]  # fmt: skip


def _values(transcript: Transcript, tape: Tape, record: StepRecord, found: TapeValues) -> dict[str, Any]:
    texts, own = formula_texts(transcript), len(record.values)
    derived: dict[str, dict[str, Any]] = {}
    for position, name in found.changing.items():
        if name is not None:
            entry = derived.setdefault(name, {"formula": texts.get(name, "a host value"), "positions": 0})
            entry["positions"] += 1
            if position < own:
                entry["here"] = _number(record.values[position])
    unexplained = [position for position, name in found.changing.items() if name is None]
    return {
        "constants": found.constants,
        "derived": derived,
        "unexplained": len(unexplained),
        "unexplained_here": [_number(record.values[p]) for p in unexplained if p < own][:20],
        "free_values": found.undeclared_values,
        "free_tensors": {name: {"steps": n, "bytes": size} for name, (n, size) in found.undeclared_tensors.items()},
        "once_bytes": found.once_bytes,
        "host_values": tape.hosts,
    }


def _number(value: Scalar) -> Scalar | str:
    """Returns a value as JSON can hold it: an infinity or NaN as a text."""
    return value if math.isfinite(value) else repr(value)


def _sources(tape: Tape, sources: int, own: str = "") -> dict[str, Any]:
    """Describes a set of sources; see `dataflow.Flow`."""
    inputs = [item for i, item in enumerate(tape.inputs) if sources >> i & 1]
    states = [item.name for item in inputs if item.origin == "state" and item.name != own]
    return {
        "itself": any(item.name == own for item in inputs),
        "batch": [name for item in inputs if item.origin == "batch" for name in item.name.split("\n")],
        "state": states[:_NAMES],
        "more_state": max(0, len(states) - _NAMES),
        "free": [item.name for item in inputs if item.origin == "free"],
        "random": bool(sources >> len(tape.inputs)),
    }


def _changes(tape: Tape, flow: Flow) -> list[dict[str, Any]]:
    """State that the step changes or makes, grouped by what it depends on."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, sources in flow.reaches.items():
        told = _sources(tape, sources, name)
        others = len(told["state"]) + told["more_state"]
        key = (told["itself"], tuple(told["batch"]), tuple(told["free"]), told["random"], min(others, 2))
        group = groups.setdefault(key, {"changed": [], **told, "most_other_state": 0})
        group["changed"].append(name)
        group["most_other_state"] = max(group["most_other_state"], others)
    return sorted(groups.values(), key=lambda group: -len(group["changed"]))


def _shape(ref: tuple[int, str, tuple[int, ...], tuple[int, ...], int]) -> str:
    """Writes a reference's type and size, e.g. `f32[4, 8]`."""
    return f"{ref[1]}{list(ref[2])}"


def _operations(tape: Tape, record: StepRecord, counts: list[int]) -> list[dict[str, Any]]:
    """Returns every operation in order: operands, results, FLOPs, births, frees, module by the Prover's word."""
    names = {item.slot: item.name.replace("\n", ", ") for item in tape.inputs}
    frees: dict[int, list[int]] = {}
    for at, slot in tape.frees:
        frees.setdefault(at, []).append(slot)

    def text(value: Any) -> str:
        match value:
            case ("t", int(index)):
                ref = tape.refs[index]
                return f"{names.get(ref[0], f'%{ref[0]}')} {_shape(ref)}"
            case ("v", int(index)) if index < len(record.values):
                return repr(record.values[index])
            case ("l", tuple(items)):
                return f"[{', '.join(map(text, items))}]"
            case tuple():
                return " ".join(str(part) for part in value[1:]) or str(value[0])
        return str(value)

    def describe_one(index: int, node: Node, count: int) -> dict[str, Any]:
        operands = [text(a) for a in node.args] + [f"{k}={text(a)}" for k, a in node.kwargs.items()]
        results = ["-" if o is None else text(("t", o)) for o in node.outputs]
        return {
            "op": index, "operation": node.op, "operands": operands, "results": results, "flops": count,
            "births": [list(b) for b in node.births], "frees_before": frees.get(index, []),
            "draw": None if node.draw is None else list(node.draw), "module": tape.path_of(index),
        }  # fmt: skip

    return [describe_one(i, node, count) for i, (node, count) in enumerate(zip(tape.nodes, counts, strict=True))]
