"""What `weighbridge tape show` says about a tape, as JSON-compatible values; nothing of the tape is executed."""

from __future__ import annotations

from collections import Counter
from typing import Any

from weighbridge.numerics.rule_table import RULES, base_name
from weighbridge.program.dataflow import Flow
from weighbridge.program.flops import flops
from weighbridge.program.operands import resolve
from weighbridge.program.origins import TapeValues, formula_texts
from weighbridge.program.tape_checks import Programs, declared_programs
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import Node, Tape

_NAMES = 6


def describe(transcript: Transcript, tape: Tape, record: StepRecord, programs: Programs) -> dict[str, Any]:
    """Describes one tape.

    Args:
        transcript: The transcript that it belongs to.
        tape: The tape.
        record: A step that ran it; its values are the ones shown.
        programs: Of `tapechecks.examine`.
    """
    found, flow = programs.values[record.tape], programs.flows[record.tape]
    counts = flops(tape)
    names, by_flops = Counter(node.op for node in tape.nodes), Counter[str]()
    for node, count in zip(tape.nodes, counts, strict=True):
        by_flops[node.op] += count
    declared = declared_programs(transcript)
    return {
        "tape": record.tape.hex(),
        "kind": found.kind,
        "declared": None if declared is None else record.tape in declared,
        "steps": found.steps,
        "first_step": found.first,
        "operations": len(tape.nodes),
        "by_rule": dict(Counter(_rule(node.op) for node in tape.nodes).most_common()),
        "by_operation": dict(names.most_common()),
        "flops": sum(counts),
        "flops_by_operation": {name: count for name, count in by_flops.most_common() if count},
        "births": sum(len(node.births) for node in tape.nodes),
        "born_bytes": sum(size for node in tape.nodes for _, size in node.births),
        "frees": len(tape.frees),
        "peak_bytes": tape.largest_footprint(),
        "inputs": _inputs(tape),
        "draws": sum(node.draw is not None for node in tape.nodes),
        "values": _values(transcript, tape, record, found),
        "changes": _changes(tape, flow),
        "overwrites": [
            {"state": o.name, "operation": o.op, "depends_on": _sources(tape, o.sources)} for o in flow.overwrites
        ],
    }


def _rule(op: str) -> str:
    rule = RULES.get(".".join(base_name(resolve(op))))
    return "computed" if rule is None else str(rule.kind.value)


def _inputs(tape: Tape) -> list[dict[str, Any]]:
    """Every storage that enters, with its origin and the tensors on it that the program uses."""
    used: dict[int, dict[str, None]] = {}
    for ref in tape.refs:
        used.setdefault(ref[0], {})[shape(ref)] = None
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
                entry["here"] = record.values[position]
    unexplained = [position for position, name in found.changing.items() if name is None]
    return {
        "constants": found.constants,
        "derived": derived,
        "unexplained": len(unexplained),
        "unexplained_here": [record.values[p] for p in unexplained if p < own][:20],
        "free_values": found.undeclared_values,
        "free_tensors": {name: {"steps": n, "bytes": size} for name, (n, size) in found.undeclared_tensors.items()},
        "once_bytes": found.once_bytes,
        "host_values": tape.hosts,
    }


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


def shape(ref: tuple[int, str, tuple[int, ...], tuple[int, ...], int]) -> str:
    """Writes a reference's type and size, e.g. `f32[4, 8]`."""
    return f"{ref[1]}{list(ref[2])}"


def operations(tape: Tape, record: StepRecord) -> list[dict[str, Any]]:
    """Returns every operation in order: operands, results, FLOPs, births, frees, module by the Prover's word."""
    names = {item.slot: item.name.replace("\n", ", ") for item in tape.inputs}
    frees: dict[int, list[int]] = {}
    for at, slot in tape.frees:
        frees.setdefault(at, []).append(slot)

    def text(value: Any) -> str:
        match value:
            case ("t", int(index)):
                ref = tape.refs[index]
                return f"{names.get(ref[0], f'%{ref[0]}')} {shape(ref)}"
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

    return [describe_one(i, node, count) for i, (node, count) in enumerate(zip(tape.nodes, flops(tape), strict=True))]
