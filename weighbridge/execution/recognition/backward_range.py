"""Does a backward pass work with nothing but what the forward pass left, and the gradient it begins with?

The numbers confirm a gradient up to rounding. This closes what rounding leaves open: what enters a backward pass beside
the forward pass could be brought in below the noise.
"""

from __future__ import annotations

from collections.abc import Mapping

from weighbridge.execution.recognition.values import Plan
from weighbridge.program.gradient_paths import floating, is_view, operands, results
from weighbridge.program.written_bytes import Coverage
from weighbridge.transcript.training_claims import Backward

_TO_HOST = "_local_scalar_dense.default"

_REPLACING = frozenset({"copy_", "zero_", "fill_"})
"""Operations whose first operand is written to and not read."""


def strangers(plan: Plan, backward: Backward, names: Mapping[int, str]) -> list[str]:
    """Names what a backward pass reads that neither forward pass nor parameters nor earlier gradients are.

    Args:
        plan: That of the tape.
        backward: The backward pass.
        names: Slot to name.
    """
    tape = plan.tape
    known = {tape.refs[g.leaf][0] for g in backward.gradients}
    known |= {tape.refs[i][0] for g in backward.gradients for i in (g.before, g.after) if i is not None}
    known |= {tape.refs[s][0] for s in backward.seeds if s is not None}
    for op in plan.forward:
        if op < backward.begin:
            node = tape.nodes[op]
            known |= {tape.refs[index][0] for index in (*operands(node), *results(node))}
            known |= {slot for slot, _ in node.births}
    found, written = [], dict[int, Coverage]()
    for op in range(backward.begin, backward.end):
        node = tape.nodes[op]
        if is_view(tape, node) or node.op == _TO_HOST:
            continue  # what a host reads is on no tape; numbers that come from there are counted where they enter
        read, replaced = operands(node), node.op.partition(".")[0] in _REPLACING
        strange = [i for i in (read[1:] if replaced else read) if tape.refs[i][0] not in known]
        made = results(node)
        if strange and made and not any(floating(tape.refs[i]) for i in made):
            known -= {tape.refs[i][0] for i in made}  # a map of which parameters were used, as jobs exchange it
            continue
        for index in strange:
            slot = tape.refs[index][0]
            if slot not in known:
                what = names.get(slot, f"slot {slot}")
                found.append(
                    f"the backward pass reads {what}, which the forward pass did not (operation {op}, {node.op})"
                )
                known.add(slot)
        if replaced and read:
            slot = tape.refs[read[0]][0]
            if written.setdefault(slot, Coverage(plan.largest.get(slot, 0))).add(tape.refs[read[0]]):
                known.add(slot)  # nothing is left of what was there, as in the buckets of gradients of a job
        known |= {slot for slot, _ in node.births}
    return found
