"""The passport of a run's programs: what they are, on one page, with a digest by which they can be approved.

Everything here is read from tapes and from what the draft declares; nothing is executed. The *facts* depend on the
programs and on no value that a run had, so two runs of the same programs have the same facts and the same digest.
What one run did with them (how often each ran, which numbers were constant) stands beside. See docs/passports.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from weighbridge.attest.approved_passport import passport_digest
from weighbridge.core.digests import record_digest
from weighbridge.core.errors import TapeError, WeighbridgeError
from weighbridge.numerics.rule_table import RULES, Kind, base_name
from weighbridge.program.beside_numbers import Beside, beside
from weighbridge.program.dataflow import Flow, flow
from weighbridge.program.flops import flops
from weighbridge.program.operands import resolve
from weighbridge.program.origins import TapeValues, analyse, formula_texts
from weighbridge.program.roles import feeds_itself
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.steps import Scalar
from weighbridge.transcript.tape import DTYPES, Ref, Tape

FORMAT = 1
MOST_MODULES = 20_000
"""Modules of all programs together; a GPT-2 of full size has some 200."""

_LOSSES = (
    "nll_loss_forward", "nll_loss2d_forward", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "soft_margin_loss", "multi_margin_loss",
    "multilabel_margin_loss_forward", "_ctc_loss", "kl_div", "margin_ranking_loss", "cosine_embedding_loss",
)  # fmt: skip
_CONSTANTS = 24
UNRECOGNISED = (
    "whether the operations named after losses are what is minimised",
    "whether the update is that of a known optimizer",
    "where gradients stop",
)
"""What tapes alone do not tell (docs/recognition.md)."""

_PROGRAM = {
    "tape": str, "kind": str, "operations": int, "by_operation": {str: int}, "flops": (None, int),
    "batch": [[str]], "undeclared": [[str]], "draws": int, "read_back": int, "collectives": int, "losses": [[str]],
    "trained": {str: [int]}, "changed": {str: [int]}, "replaced": [str],
}  # fmt: skip
SHAPE = {
    "digest": str,
    "facts": {
        "format": int, "rules": str, "policy": str, "programs": [_PROGRAM], "modules": {str: {str: [str]}},
        "formulas": {str: str}, "unrecognised": [str],
    },
    "run": {
        "steps": int,
        "programs": [{
            "tape": str, "first": int, "count": int, "follow": {str: [(int, float, str)]},
            "constants": [[(int, float, bool, str)]], "unexplained": int, "numbers": str,
        }],
    },
}  # fmt: skip
"""What `passport` returns, for `weighbridge.execution.worker_answers.shaped`."""


def passport(transcript: Transcript, tapes: Callable[[bytes], Tape]) -> dict[str, Any]:
    """Returns the passport of a transcript's programs, as JSON-compatible values (`SHAPE`).

    Args:
        transcript: A verified transcript.
        tapes: Returns the tape of a digest.

    Raises:
        TapeError: A tape or formula breaks the rules, or the programs have too many modules.
    """
    values = analyse(transcript, tapes)
    told = facts(transcript, tapes, values)
    return {"digest": passport_digest(told), "facts": told, "run": _run(transcript, values, beside(transcript, tapes))}


def facts(
    transcript: Transcript, tapes: Callable[[bytes], Tape], values: dict[bytes, TapeValues] | None = None
) -> dict[str, Any]:
    """Returns what depends on the programs only; see `passport`."""
    values = analyse(transcript, tapes) if values is None else values
    policy, rules = transcript.draft.get("policy"), transcript.draft.get("rules")
    kinds = {(found.kind, address) for address, found in values.items()}
    return {
        "format": FORMAT,
        "rules": rules.hex() if isinstance(rules, bytes) else "",
        "policy": policy if isinstance(policy, str) else "",
        "programs": [_program(kind, address, tapes(address)) for kind, address in sorted(kinds)],
        "modules": _modules(tapes(address) for address in sorted(values)),
        "formulas": dict(sorted(formula_texts(transcript).items())),
        "unrecognised": list(UNRECOGNISED),
    }


def _program(kind: str, address: bytes, tape: Tape) -> dict[str, Any]:
    """Says what one program is."""
    names = Counter(node.op for node in tape.nodes)
    followed = flow(tape)
    trained = feeds_itself(tape, followed)
    return {
        "tape": address.hex(),
        "kind": kind,
        "operations": len(tape.nodes),
        "by_operation": dict(sorted(names.items())),
        "flops": _flops(tape),
        "batch": [[name, _type(ref)] for name, ref in tape.batch_views],
        "undeclared": [[item.name, _largest(tape, item.slot)] for item in tape.inputs if item.origin == "free"],
        "draws": sum(node.draw is not None for node in tape.nodes),
        "read_back": tape.hosts,
        "collectives": sum(_is_collective(node.op) for node in tape.nodes),
        "losses": _losses(tape),
        "trained": _grouped(tape, trained),
        "changed": _grouped(tape, followed.reaches.keys() - trained),
        "replaced": _replaced(followed),
    }


def _flops(tape: Tape) -> int | None:
    try:
        return sum(flops(tape))
    except WeighbridgeError:
        return None


def _is_collective(op: str) -> bool:
    rule = RULES.get(".".join(base_name(resolve(op))))
    return rule is not None and rule.kind is Kind.COLLECTIVE


def _losses(tape: Tape) -> list[list[str]]:
    """Operations that are named after a loss: operation, type of its first operand, module by the Prover's word."""
    found = []
    for place, node in enumerate(tape.nodes):
        if node.op.partition(".")[0] in _LOSSES:
            first = next((a[1] for a in node.args if isinstance(a, tuple) and a[:1] == ("t",)), None)
            operand = "" if first is None else _type(tape.refs[first])
            found.append([node.op, operand, tape.path_of(place) or ""])
    return found


def _grouped(tape: Tape, names: Iterable[str]) -> dict[str, list[int]]:
    """How many storages and bytes of state there are, by the object that holds them; names are the Prover's."""
    born = {slot: size for node in tape.nodes for slot, size in node.births}
    sizes = {item.name: item.bytes for item in tape.inputs}
    sizes |= {name: born[slot] for slot, name in tape.survivors if slot in born}
    found: dict[str, list[int]] = {}
    for name in sorted(names):
        holder = "kept from step to step" if name.startswith(("~", "kept/")) else name.partition(".")[0]
        group = found.setdefault(holder, [0, 0])
        group[0] += 1
        group[1] += sizes.get(name, 0)
    return found


def _replaced(followed: Flow) -> list[str]:
    """State that the program replaces as a whole by what does not depend on it."""
    return sorted({each.name for each in followed.overwrites if not each.name.startswith(("~", "kept/"))})


def _modules(tapes: Iterable[Tape]) -> dict[str, dict[str, list[str]]]:
    """By module path: the state under it, each with its type, as the programs see it. Paths are the Prover's word."""
    found: dict[str, dict[str, list[str]]] = {}
    for tape in tapes:
        for path in tape.paths:
            if not path.endswith(":backward"):
                found.setdefault(path, {})
        for item in tape.inputs:
            module, dot, name = item.name.rpartition(".")
            if item.origin == "state" and dot and not item.name.startswith(("~", "kept/")):
                types = found.setdefault(module, {}).setdefault(name, [])
                kind = _largest(tape, item.slot) or f"{item.bytes} bytes"
                if kind not in types:
                    types.append(kind)
        if len(found) > MOST_MODULES:
            raise TapeError(f"the programs name more than {MOST_MODULES} modules", code="tape.too_large")
    return {path: {name: sorted(types) for name, types in sorted(own.items())} for path, own in sorted(found.items())}


def _largest(tape: Tape, slot: int) -> str:
    refs = [ref for ref in tape.refs if ref[0] == slot]
    return _type(max(refs, key=lambda ref: (math.prod(ref[2]) * DTYPES[ref[1]].itemsize, ref))) if refs else ""


def _type(ref: Ref) -> str:
    """Writes a reference's type and size, e.g. `f32[4, 8]`."""
    return f"{ref[1]}{list(ref[2])}"


def _run(
    transcript: Transcript, values: dict[bytes, TapeValues], chosen: dict[bytes, Beside]
) -> dict[str, Any]:  # fmt: skip
    """What the run did with its programs."""
    numbers: dict[bytes, dict[str, list[float]]] = {address: {} for address in values}
    first: dict[bytes, list[Scalar]] = {}
    for record in transcript.records():
        first.setdefault(record.tape, list(record.values))
        known = numbers[record.tape]
        for place, name in values[record.tape].changing.items():
            if name is not None and not name.endswith("host") and place < len(record.values):
                value = float(record.values[place])
                span = known.setdefault(name, [value, value, value])
                known[name] = [min(span[0], value), max(span[1], value), value]
    return {
        "steps": transcript.steps,
        "programs": [
            {
                "tape": address.hex(),
                "first": found.first,
                "count": found.steps,
                "follow": {name: [_number(n) for n in span] for name, span in sorted(numbers[address].items())},
                "constants": _constants(first.get(address, []), found),
                "unexplained": sum(name is None for name in found.changing.values()),
                "numbers": _numbers(found, chosen[address]),
            }
            for address, found in values.items()
        ],
    }


def _constants(values: list[Scalar], found: TapeValues) -> list[list[Any]]:
    """Numbers that were the same whenever the program ran, with how often they stand in it; the most frequent first."""
    counts = Counter(repr(v) for place, v in enumerate(values) if place not in found.changing and type(v) is not bool)
    known = {repr(v): v for v in values}
    ordered = sorted(counts.items(), key=lambda each: (-each[1], each[0]))
    return [[_number(known[text]), count] for text, count in ordered[:_CONSTANTS]]


def _numbers(found: TapeValues, chosen: Beside) -> str:
    """Names all numbers that a program took: the constant ones by value, the others by what they follow, if anything.

    So runs of one program with other rates or another momentum differ here, though they have the same passport; and so
    do those that seeded generators otherwise, let schedules run at another pace, or began from other weights.
    """
    changing = found.changing
    taken = [["follows", changing[at]] if at in changing else ["is", value] for at, value in enumerate(found.values)]
    return record_digest("passport-numbers/2", [taken, chosen.told()]).hex()


def _number(value: Scalar) -> Scalar | str:
    """A value as JSON can hold it: an infinity or NaN as a text."""
    return value if math.isfinite(value) else repr(value)
