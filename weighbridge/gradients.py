"""Do weights change through gradients only?

A gradient of a loss follows from the batch and from weights together: there is a value in the step on which both had
bearing, and the weight is changed by what follows from it, at once or by way of accumulated gradients and the
optimizer's state. What is added to a weight from the batch alone, from a free tensor, from state that no step trains or
from nothing but chance went around the loss.

Like all that `dataflow` knows, this is about the program and not about values: whoever computes `weights + x` first and
copies that over the weights has made something on which both had bearing. Only parameters are looked at; a running
mean of the batch is a buffer. Which state holds parameters is said in `chips.cbor`, where the chip's declared memory
must be theirs; of a run without a chip it is not known, and nothing is said. Neither is anything of a stage of a
pipeline: what bearing its weights had on the gradients that it is sent, its own tapes cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from weighbridge.dataflow import Flow
from weighbridge.origins import SCALAR_BYTES
from weighbridge.tape import Input, Tape

Tapes = Callable[[bytes], Tape]

_SENT = "weighbridge::recv.default"


class Gradients:
    """Which state bears gradients, over all tapes of a run that are not its initialisation."""

    def __init__(self, flows: Mapping[bytes, Flow], tapes: Tapes, weights: set[str], trained: set[str]) -> None:
        """Looks at all tapes.

        Args:
            flows: By digest: where data go in each tape.
            tapes: Returns the tape of a digest.
            weights: Names of the state that holds parameters.
            trained: Names of state that some step changes in dependence on its old value and on something else.
        """
        self._flows, self._tapes, self._weights, self._trained = flows, tapes, weights, trained
        self._bearing: set[str] = set()
        self._harmless: set[str] = set()
        self._blind = any(node.op == _SENT for digest in flows for node in tapes(digest).nodes)
        self._close()

    def _close(self) -> None:
        """Finds the state that bears gradients, and that which steps made out of nothing that entered."""
        before = -1
        while len(self._bearing) != before:
            before = len(self._bearing)
            for digest, flow in self._flows.items():
                for name, sources in flow.reaches.items():
                    if name not in self._weights and self._bears(digest, sources):
                        self._bearing.add(_key(name))
        self._harmless = {
            _key(name) for d in self._flows for _, name in self._tapes(d).survivors if name not in self._weights
        } - self._bearing
        before = -1
        while len(self._harmless) != before:
            before = len(self._harmless)
            for digest, flow in self._flows.items():
                for name, sources in flow.reaches.items():
                    if _key(name) in self._harmless and self._strangers(digest, sources, name):
                        self._harmless.discard(_key(name))

    def _bears(self, digest: bytes, sources: int) -> bool:
        """Whether something follows from batch and weights together, or from state that bears gradients."""
        found = self._among(digest, sources)
        if any(item.origin == "state" and _key(item.name) in self._bearing for item in found):
            return True
        batch = any(item.origin == "batch" for item in found)
        return batch and any(item.origin == "state" and item.name in self._weights for item in found)

    def _strangers(self, digest: bytes, sources: int, own: str) -> set[str]:
        """Says what is no gradient among the sources of something that bears none."""
        kinds = {"random numbers"} if sources >> len(self._tapes(digest).inputs) else set()
        for item in self._among(digest, sources):
            if item.origin == "batch":
                kinds.add("the batch")
            elif item.origin == "free" and item.bytes > SCALAR_BYTES:
                kinds.add("a free tensor")
            elif item.origin == "state" and item.name != own and self._foreign(item):
                kinds.add("state that no step trains")
        return kinds

    def _foreign(self, item: Input) -> bool:
        known = self._weights | self._trained
        made = _key(item.name) in self._bearing or _key(item.name) in self._harmless
        return item.bytes > SCALAR_BYTES and item.name not in known and not made

    def _among(self, digest: bytes, sources: int) -> list[Input]:
        return [item for i, item in enumerate(self._tapes(digest).inputs) if sources >> i & 1]

    def around(self, digest: bytes) -> dict[str, str]:
        """Returns the weights that a tape changes by something that is no gradient, and what that is."""
        found: dict[str, str] = {}
        if self._blind:
            return found
        for name, writes in self._flows[digest].given.items():
            if name not in self._weights:
                continue
            without = [sources for sources in writes if not self._bears(digest, sources)]
            kinds = set[str]().union(*(self._strangers(digest, sources, name) for sources in without))
            if len(without) < len(writes):
                kinds.discard("random numbers")  # noise beside gradients
            if kinds:
                found[name] = " and ".join(sorted(kinds))
        return found


def _key(name: str) -> str:
    """Names what an earlier step left behind by its slot: it has another name in each step."""
    return name.rpartition("/")[2] if name.startswith(("~", "kept/")) else name
