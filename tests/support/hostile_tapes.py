"""Changes that make a tape hang or kill the process that executes it; see `support.forging`."""

from __future__ import annotations

from typing import Any

from weighbridge.transcript.tape import Node, Tape


def endless(tape: Tape, fields: dict[str, Any]) -> None:
    """A tape that takes many minutes on one thread: ordinary operations, as many as a reader decodes from few bytes."""
    large, side = 10_000, 4096
    ref = len(tape.refs)
    tape.refs += [(large, "f32", (side, side), (side, 1), 0)]
    fields["values"] = [*fields["values"], 1.0]
    full = Node(
        "full.default",
        (("l", (side, side)), ("v", tape.values)),
        {"dtype": ("d", "f32")},
        (ref,),
        ((large, 4 * side**2),),
    )
    tape.nodes += [full, *(Node("neg.default", (("t", ref),), {}, (None,), ()) for _ in range(20_000))]
    tape.values += 1
    tape.frees = [*tape.frees, (len(tape.nodes), large)]


def crash(tape: Tape, fields: dict[str, Any]) -> None:
    """The least integer divided by -1: ordinary arguments, and the processor raises a signal."""
    n, least, minus, out = len(tape.refs), 10_000, 10_001, 10_002
    tape.refs += [(slot, "i64", (1,), (1,), 0) for slot in (least, minus, out)]
    one, i64 = ("l", (1,)), {"dtype": ("d", "i64")}
    fields["values"] = [*fields["values"], -(1 << 63), -1]
    at = len(tape.nodes)
    tape.nodes += [
        Node("full.default", (one, ("v", tape.values)), i64, (n,), ((least, 8),)),
        Node("full.default", (one, ("v", tape.values + 1)), i64, (n + 1,), ((minus, 8),)),
        Node("div.Tensor_mode", (("t", n), ("t", n + 1)), {"rounding_mode": ("s", "trunc")}, (n + 2,), ((out, 8),)),
    ]
    tape.values += 2
    tape.frees = [(a, s) for a, s in tape.frees if a < at] + [(at + 3, slot) for slot in (least, minus, out)]
