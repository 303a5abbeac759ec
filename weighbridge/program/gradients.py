"""Do weights change through gradients only, and is what is trained by gradients declared as weights?

A gradient of a loss follows from the batch and from weights together: there is a value on which both had bearing, and
the weight is changed by what follows from it, at once or by way of accumulated gradients and the optimizer's state.
What is added to a weight from the batch alone, from an undeclared tensor, from state that no step trains, from another
rank's message as it came, or from nothing but chance went around the loss.

Like all data flow here, this is about the program and not about values: a program that computes `weights + x` and
copies that over the weights has made something on which both had bearing. A running mean of the batch is a buffer and
no weight. What bearing weights had on a message is for the tapes of the rank that sent it; what a stage of a pipeline
calculates from a message counts as a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Set

from weighbridge.program.content import BATCH, CHANCE, FREE, GRADIENT, SENT, STATE, Roles, words
from weighbridge.program.dataflow import flow
from weighbridge.program.roles import feeds_itself
from weighbridge.transcript.tape import Tape

_STRANGERS = BATCH | FREE | STATE | SENT | CHANCE


def around(writes: Mapping[str, Set[int]], declared: Collection[str]) -> dict[str, str]:
    """Returns the weights that a tape changes by something that is no gradient, and what that is.

    Args:
        writes: By name: what each write to state that holds weights was made from; see `whole_run.Followed`.
        declared: Names that the Prover declared as weights. Of other state, chance alone says nothing: a batch norm's
            running mean feeds what it is made from too, and a generator makes that from noise.
    """
    found = {}
    for name, made in writes.items():
        without = [kinds for kinds in made if not kinds & GRADIENT]
        strange = 0
        for kinds in without:
            strange |= kinds & _STRANGERS
        if len(without) < len(made) or name not in declared:
            strange &= ~CHANCE  # noise beside gradients
        if strange:
            found[name] = words(strange)
    return found


def undeclared(
    declared: Collection[str],
    roles: Roles,
    sizes: Mapping[str, int],
    programs: Mapping[bytes, Mapping[str, Collection[str]]],
    tapes: Callable[[bytes], Tape],
) -> tuple[set[str], bool]:
    """Returns state that is trained by gradients and that the Prover did not declare as weights.

    If it declared none at all, that is all state that feeds itself with the batch. Else it is state of the same
    attached objects as the declared weights that does so in one step other than by way of declared weights: the rest
    may be an optimizer's or an average's, which follow what weights do.

    Args:
        declared: What it declared.
        roles: Of the run's state.
        sizes: Bytes of the state by name.
        programs: All tapes; of each, which undeclared tensors hold state of an earlier step.
        tapes: Returns the tape of a digest.

    Returns:
        The names, and whether it declared nothing that there is.
    """
    known = set(declared) & set(sizes)
    if not known:
        return set(roles.weights) & set(sizes), True
    objects = {name.partition(".")[0] for name in known}
    candidates = {name for name in roles.weights & set(sizes) - known if name.partition(".")[0] in objects}
    if not candidates:
        return set(), False
    return {
        name
        for digest, returned in programs.items()
        for name in feeds_itself(tapes(digest), flow(tapes(digest), returned, known))
    } & candidates, False
