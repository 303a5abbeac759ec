"""Which operations of a tape the loop over lists of operations can do, and how it is told to.

They are operations on contiguous arrays of one size, of 32 or 16 bits, whose results have one right answer, which
`exact` and `chains` define, and conversions between these formats. All is decided by what the tape says; the numbers
are the only thing looked at when it runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from weighbridge.numerics.operations import sequences
from weighbridge.numerics.rounding.half_kernels import CODES
from weighbridge.numerics.rule_table import Kind, base_name, settled
from weighbridge.numerics.schemas import bind, mutated
from weighbridge.program.operands import resolve
from weighbridge.transcript.tape import DTYPES, Node, Ref, Tape

_TWO = {"add": sequences.ADD, "sub": sequences.SUB, "mul": sequences.MUL, "div": sequences.DIV}
_WITH_ONE = {"add": sequences.ADD_ONE, "sub": sequences.SUB_ONE, "mul": sequences.MUL_ONE, "div": sequences.DIV_ONE}
_THREE = {"addcmul": sequences.ADDCMUL, "addcdiv": sequences.ADDCDIV}
_LARGEST_STEP = 1 << 53
_CODES = {name: CODES[DTYPES[name]] for name in ("f32", "bf16", "f16")}


@dataclass(frozen=True, slots=True)
class Entry:
    """One operation of a list.

    Attributes:
        form: What it is (`sequences`).
        elements: Elements of its result.
        operands: References: result, first operand, second, third; those that it does not have are its first.
        number: Which of the step's values is the number in it, or None.
        constant: The number where the tape leaves it out, or None.
        born: Slot of the storage that it makes, or None.
        formats: Those of result and operands, as the loop is told of them.
    """

    form: int
    elements: int
    operands: tuple[int, int, int, int]
    number: int | None = None
    constant: float | None = None
    born: int | None = None
    formats: int = 0


def is_number(value: Any) -> bool:
    """True if PyTorch and NumPy make the same float32 number of a value."""
    return (type(value) is float and abs(value) <= sequences.LARGEST) or (
        type(value) is int and abs(value) <= _LARGEST_STEP
    )


def entry(node: Node, tape: Tape) -> Entry | None:
    """Returns how a list has an operation, or None if none can."""
    op = resolve(node.op)
    rule, (name, overload) = settled(op), base_name(op)
    cast = name == "_to_copy"
    if rule is None or (rule.kind not in (Kind.EXACT, Kind.CHAIN, Kind.HOST) and not cast):
        return None
    operands = bind(op, node.args, node.kwargs)
    first = _reference(operands.get("self"))
    if first is None or not _plain(tape.refs[first]):
        return None
    x = tape.refs[first]
    if name == "_local_scalar_dense":
        return Entry(sequences.READ, 1, (first,) * 4, formats=_formats([x] * 4)) if math.prod(x[2]) == 1 else None
    made = _result(node, tape, x, change=bool(mutated(op)))
    if made is None:
        return None
    out, born = made
    found = _form(name, overload, operands, tape, x)
    if cast and tape.refs[out][1] == x[1]:
        return None  # without conversion, every NaN stays as it is
    if found is None:
        return None
    form, second, third, number, constant = found
    places = (out, first, first if second is None else second, first if third is None else third)
    refs = [tape.refs[place] for place in places]
    if not all(_apart(refs[0], ref) for ref in refs):
        return None
    formats = _formats(refs)
    if formats and form <= sequences.ADD_SCALED:
        return None  # what `chains` defines is of float32
    return Entry(form, math.prod(x[2]), places, number, constant, born, formats)


def _formats(refs: list[Ref]) -> int:
    """Returns the formats of result and operands as the loop is told of them."""
    return sum(_CODES[ref[1]] << 2 * place for place, ref in enumerate(refs))


def _form(
    name: str, overload: str, operands: dict[str, Any], tape: Tape, x: Ref
) -> tuple[int, int | None, int | None, int | None, float | None] | None:
    """Returns (form, second operand, third, place of the number, the number if it is left out)."""
    if name in ("sqrt", "_to_copy"):
        return sequences.SQRT if name == "sqrt" else sequences.CAST, None, None, None, None
    if name == "lerp" and overload == "Scalar":
        end, number = _alike(operands["end"], tape, x), _value(operands["weight"])
        return None if end is None or number is None else (sequences.LERP, end, None, number, None)
    if name in _THREE:
        one, two = (_alike(operands[f"tensor{n}"], tape, x) for n in (1, 2))
        number, left_out = _value(operands["value"]), operands["value"] == 1
        if one is None or two is None or (number is None and not left_out):
            return None
        return _THREE[name], one, two, number, 1.0 if number is None else None
    if name not in _TWO or overload not in ("Tensor", "Scalar"):
        return None
    other, alpha = operands["other"], operands.get("alpha", 1)
    number = _value(other)
    if number is not None:
        return (_WITH_ONE[name], None, None, number, None) if alpha == 1 else None
    second = _alike(other, tape, x)
    if alpha != 1:
        scale = _value(alpha)
        known = name == "add" and second is not None and scale is not None
        return (sequences.ADD_SCALED, second, None, scale, None) if known else None
    if second is not None:
        return _TWO[name], second, None, None, None
    single = _reference(other)
    if single is not None and tape.refs[single][1] in _CODES and tape.refs[single][2] == ():
        return _WITH_ONE[name], single, None, None, None
    return None


def _reference(value: Any) -> int | None:
    return value[1] if isinstance(value, tuple) and len(value) == 2 and value[0] == "t" else None


def _value(value: Any) -> int | None:
    return value[1] if isinstance(value, tuple) and len(value) == 2 and value[0] == "v" else None


def _alike(value: Any, tape: Tape, x: Ref) -> int | None:
    """Returns the reference that an operand is, if it is an array like `x`."""
    found = _reference(value)
    return found if found is not None and tape.refs[found][2] == x[2] and _plain(tape.refs[found]) else None


def _plain(ref: Ref) -> bool:
    """True for contiguous arrays, with elements, of formats that the loop knows."""
    expected = 1
    for size, stride in zip(reversed(ref[2]), reversed(ref[3]), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return ref[1] in _CODES and expected > 0


def _apart(out: Ref, other: Ref) -> bool:
    """True if two arrays have no memory in common, or all of it."""
    if out[0] != other[0]:
        return True
    (begin, end), (first, last) = _extent(out), _extent(other)
    return (out[1] == other[1] and (begin, end) == (first, last)) or end <= first or last <= begin


def _extent(ref: Ref) -> tuple[int, int]:
    """Returns where an array begins and ends in its storage, in bytes."""
    size = DTYPES[ref[1]].itemsize
    return size * ref[4], size * (ref[4] + math.prod(ref[2]))


def _result(node: Node, tape: Tape, x: Ref, *, change: bool) -> tuple[int, int | None] | None:
    """Returns the reference of the result, and the slot of the storage that it is, if it is one of its own."""
    if len(node.outputs) != 1 or node.outputs[0] is None:
        return None
    out = tape.refs[node.outputs[0]]
    if change:
        return (node.outputs[0], None) if out == x and not node.births else None
    size = DTYPES[out[1]].itemsize * math.prod(x[2])
    whole = _plain(out) and out[2] == x[2] and out[4] == 0 and node.births == ((out[0], size),)
    return (node.outputs[0], out[0]) if whole else None
