"""Does a backward pass work with nothing but what the forward pass left, and the gradient it begins with?

The numbers confirm a gradient up to rounding. This closes what rounding leaves open: what enters a backward pass beside
the forward pass could be brought in below the noise.
"""

from __future__ import annotations

from collections.abc import Mapping

from weighbridge.execution.recognition.values import Plan
from weighbridge.program.gradient_paths import operands
from weighbridge.transcript.training_claims import Backward


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
            known |= {tape.refs[index][0] for index in (*operands(node), *(o for o in node.outputs if o is not None))}
            known |= {slot for slot, _ in node.births}
    found = []
    for op in range(backward.begin, backward.end):
        node = tape.nodes[op]
        for index in operands(node):
            slot = tape.refs[index][0]
            if slot not in known:
                what = names.get(slot, f"slot {slot}")
                found.append(
                    f"the backward pass reads {what}, which the forward pass did not (operation {op}, {node.op})"
                )
                known.add(slot)
        known |= {slot for slot, _ in node.births}
    return found
