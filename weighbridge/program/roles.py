"""What the state of a run is for, from its programs: which of it training changes, and which of it holds weights.

*Trained* is state that a step changes in dependence on its old value and on something else. *Weights* are what the
Prover declared to the chip, and all state that feeds itself with the batch: a value was calculated from that state and
from the batch, and what follows from it was written back, at once or by way of other state. That is what gradients do,
and it needs no declaration, so that leaving one out hides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from weighbridge.program.content import Roles
from weighbridge.program.dataflow import Flow
from weighbridge.program.origins import SCALAR_BYTES
from weighbridge.program.whole_run import Course
from weighbridge.transcript.tape import Tape, absolute_name

Node = str | tuple[bytes, int]
"""State by its name; of what was kept without one, the tape that made it and its slot there."""


def roles(
    course: Course, tapes: Callable[[bytes], Tape], flows: Mapping[bytes, Flow], declared: Iterable[str] = ()
) -> Roles:
    """Finds the roles of all state.

    Args:
        course: The steps of the run.
        tapes: Returns the tape of a digest.
        flows: Where data go in each tape that is not the initialisation's.
        declared: State that the Prover declared as weights.

    Raises:
        TapeError: A tape names state that cannot be.
    """
    graph = _Graph(course, tapes, flows)
    trained = {name for flow in flows.values() for name in flow.trained}
    feeding = graph.feeding()
    return Roles(frozenset(trained | feeding), frozenset({*declared, *feeding}))


def feeds_itself(tape: Tape, flow: Flow) -> set[str]:
    """Names of state larger than a number that one step changes by what it calculated from that state and the batch."""
    batch = sum(1 << i for i, item in enumerate(tape.inputs) if item.origin == "batch")
    own = {i.name: flow.own[i.name] for i in tape.inputs if i.origin in ("state", "dropped") and i.bytes > SCALAR_BYTES}
    return {name for name, masks in flow.fed.items() if name in own and any(m & own[name] and m & batch for m in masks)}


@dataclass(slots=True)
class _Edges:
    """What flows into one node: other nodes, as bits; and those among them with which a batch was calculated."""

    into: int = 0
    fed: int = 0


class _Graph:
    """Which state flows into which, over the whole run."""

    def __init__(self, course: Course, tapes: Callable[[bytes], Tape], flows: Mapping[bytes, Flow]) -> None:
        self._numbers: dict[Node, int] = {}
        self._edges: dict[int, _Edges] = {}
        self._large: set[str] = set()
        self._direct: set[str] = set()
        for (digest, entering), leaving in _bindings(course, tapes, flows).items():
            self._add(tapes(digest), flows[digest], entering, leaving)
        for digest, flow in flows.items():
            self._direct |= feeds_itself(tapes(digest), flow)

    def _number(self, node: Node) -> int:
        return self._numbers.setdefault(node, len(self._numbers))

    def _add(self, tape: Tape, flow: Flow, entering: tuple[Node | None, ...], leaving: Mapping[str, Node]) -> None:
        bits = [0 if node is None else 1 << self._number(node) for node in entering]
        self._large |= {i.name for i in tape.inputs if i.origin == "state" and i.bytes > SCALAR_BYTES}
        batch = sum(1 << i for i, item in enumerate(tape.inputs) if item.origin == "batch")
        known: dict[int, int] = {}

        def nodes(mask: int) -> int:
            if mask not in known:
                found, left = 0, mask & ((1 << len(bits)) - 1)
                while left:
                    low = left & -left
                    found |= bits[low.bit_length() - 1]
                    left ^= low
                known[mask] = found
            return known[mask]

        for name, reached in flow.reaches.items():
            kept = leaving.get(name)
            edges = self._edges.setdefault(self._number(name if kept is None else kept), _Edges())
            for mask in flow.given.get(name, ()) if kept is None else (reached,):
                edges.into |= nodes(mask)
            for mask in flow.fed.get(name, ()) if kept is None else (flow.computed[name],):
                edges.fed |= nodes(mask) if mask & batch else 0
            if kept is None and name not in flow.given:
                edges.into |= nodes(reached)
                edges.fed |= nodes(flow.computed[name]) if flow.computed[name] & batch else 0

    def feeding(self) -> set[str]:
        """Names of state that feeds itself with the batch, in one step or by way of other state."""
        names = {number: node for node, number in self._numbers.items()}
        found = set(self._direct)
        for component in self._components():
            inside = sum(1 << n for n in component)
            if len(component) > 1 and any(self._edges[n].fed & inside for n in component if n in self._edges):
                found |= {node for n in component if isinstance(node := names[n], str) and node in self._large}
        return found

    def _components(self) -> list[list[int]]:
        """Strongly connected components, by two searches over sets of bits (Kosaraju)."""
        count = len(self._numbers)
        into = [self._edges[n].into if n in self._edges else 0 for n in range(count)]
        out = [0] * count
        for n, mask in enumerate(into):
            for m in _bits(mask):
                out[m] |= 1 << n
        order = list[int]()
        unseen = (1 << count) - 1
        for root in range(count):
            if unseen >> root & 1:
                unseen = _search(root, into, unseen, order)
        components, unseen = list[list[int]](), (1 << count) - 1
        for root in reversed(order):
            if unseen >> root & 1:
                members = list[int]()
                unseen = _search(root, out, unseen, members)
                components.append(members)
        return components


def _search(root: int, edges: list[int], unseen: int, done: list[int]) -> int:
    """Searches in depth and lists what it leaves; returns what is still unseen."""
    unseen &= ~(1 << root)
    path = [root]
    while path:
        left = edges[path[-1]] & unseen
        if left:
            low = left & -left
            unseen ^= low
            path.append(low.bit_length() - 1)
        else:
            done.append(path.pop())
    return unseen


def _bits(mask: int) -> Iterable[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _bindings(
    course: Course, tapes: Callable[[bytes], Tape], flows: Mapping[bytes, Flow]
) -> dict[tuple[bytes, tuple[Node | None, ...]], dict[str, Node]]:
    """For each way in which a tape was bound to state: the nodes of its inputs, and of what it kept without a name."""
    found: dict[tuple[bytes, tuple[Node | None, ...]], dict[str, Node]] = {}
    kept, ever = dict[str, Node](), dict[str, Node]()
    for ran in course.steps:
        tape = tapes(ran.tape)
        freed = {slot for _, slot in tape.frees}
        entering = list[Node | None]()
        gone = list[str]()
        for item in tape.inputs:
            if item.origin == "free" and (ran.step, item.name) in course.returned:
                _, name = course.returned[ran.step, item.name]
                entering.append(ever.get(name, name))
            elif item.origin not in ("state", "dropped"):
                entering.append(None)
            elif item.name.startswith(("~", "kept/")):
                name = absolute_name(item.name, ran.step)
                entering.append(kept.get(name) if item.origin == "state" else None)
                if item.origin == "dropped" or item.slot in freed:
                    gone.append(name)
            else:
                entering.append(item.name)
        if ran.tape in flows and not ran.init:
            leaving: dict[str, Node] = {
                name: (ran.tape, slot) for slot, name in tape.survivors if name.startswith(("~", "kept/"))
            }
            leaving |= {
                i.name: node
                for i, node in zip(tape.inputs, entering, strict=True)
                if i.origin == "state" and isinstance(node, tuple)
            }
            found.setdefault((ran.tape, tuple(entering)), leaving)
        for name in gone:
            kept.pop(name, None)
        for slot, name in tape.survivors:
            if name.startswith(("~", "kept/")):
                kept[absolute_name(name, ran.step)] = ever[absolute_name(name, ran.step)] = (ran.tape, slot)
    return found
