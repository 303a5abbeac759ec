"""What one program of a run changes otherwise than by training, no other program of the run may train on.

What is recognised is one program at a time. A buffer on which no loss of one program depends may be the weights of
another: names of state stay with their memory when a program exchanges two tensors.
"""

from __future__ import annotations

from collections.abc import Collection

from weighbridge.execution.recognition import structure
from weighbridge.execution.recognition.update_range import ONE_NUMBER
from weighbridge.execution.recognition.values import Plan


def trained_on(plan: Plan) -> set[str]:
    """Returns the names of the weights that a program trains, and of the state on which its losses depend.

    Single numbers are left out.
    """
    tape, claims = plan.tape, plan.claims
    needed = {
        tape.refs[p.ref][0] for s in claims.steps for g in s.groups for p in g.parameters if p.gradient is not None
    }
    needed = needed.union(*(structure.depends(plan, backward).inputs for backward in claims.backwards))
    return {i.name for i in tape.inputs if i.origin == "state" and i.slot in needed and plan.sizes[i.slot] > ONE_NUMBER}


def conflict(changed: Collection[str], others: Collection[set[str]]) -> str | None:
    """Says what a program changes otherwise than by training and another one trains on; None if there is nothing.

    Args:
        changed: Names of the state that it changes otherwise.
        others: What other programs of the run train on.
    """
    found = sorted(name for name in changed if any(name in each for each in others))
    if not found:
        return None
    return f"{found[0]} changes otherwise than by an optimizer, and another program of this run trains on it"
