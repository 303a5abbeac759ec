"""The process in which two runs are compared: `workers.comparison_worker`, see `replay_worker`.

Both runs are executed up to the first result that differs, each following its own rounding log and checked against its
own checksums; so what is shown of a run is what its recording made, wherever it was made.
"""

from __future__ import annotations

from typing import Any

import torch

from weighbridge.core.errors import UsageError, WeighbridgeError
from weighbridge.execution.differences import Difference, Pair, at, difference, drafts, first_checksum
from weighbridge.execution.elements import Result, compare, keep, plain
from weighbridge.execution.following import Seen
from weighbridge.execution.location import locate
from weighbridge.execution.workers.replay_worker import Replay
from weighbridge.execution.workers.serving import serve
from weighbridge.numerics.arrays.physical import dense_strides
from weighbridge.numerics.conformance.device_kind import device_kind
from weighbridge.program.operands import tensor
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import DTYPES, Ref, Tape, absolute_name

_MOST = 8
"""Results, or storages of the state, whose elements are shown."""


class _FoundError(WeighbridgeError):
    """The result that was looked for is there; ends the execution."""

    code = "internal"


class Side(Replay):
    """One of the two runs, executed up to a place in one step."""

    def __init__(self, name: str, path: str, request: dict[str, Any], step: int) -> None:
        super().__init__({**request, "path": path, "steps": [step, step + 1], "stop": None, "salt": None}, [], print)
        self._name, self._at = name, step
        self.op = 0
        """The operation of the result seen last."""

    def result(self, index: int) -> Result:
        """Returns the result of the step that has the checksum number `index`."""
        found: list[Result] = []

        def watch(seen: Seen) -> None:
            if seen.index == index:
                found.append(self._keep(seen))
                raise _FoundError("the result is there")

        self._execute(None, watch)
        if not found:
            raise UsageError(f"run {self._name} has no result with the checksum {index}")
        return found[0]

    def results(self, op: int) -> list[Result]:
        """Returns what the operation `op` of the step returned."""
        found: list[Result] = []

        def watch(seen: Seen) -> None:
            if seen.op == op:
                found.append(self._keep(seen))

        self._execute(op + 1, watch)
        if found:
            return found
        node, live = self._tape_now.nodes[op], self._executor.live
        refs = [self._tape_now.refs[o] for o in node.outputs if o is not None]
        return [plain(tensor(live[ref[0]], ref)) for ref in refs]

    def state(self) -> dict[str, Result]:
        """Returns the state after the step, as tensors where the step's tape shows what lies on a storage."""
        self._execute(None, None)
        views = _views(self._tape_now, self._at)
        shown = {}
        for name, data in self._executor.state.items():
            ref = views.get(name)
            shown[name] = plain(data if ref is None else tensor(data, ref))
        return shown

    @property
    def _tape_now(self) -> Tape:
        return self._tape(self._transcript.step(self._at))

    def _execute(self, stop: int | None, watch: Any) -> None:
        """Executes from the nearest checkpoint to the step, and in it up to `stop` or until `watch` has enough."""
        begin = max([c for c in self._transcript.checkpoint_steps if c <= self._at], default=0)
        try:
            if begin:
                self._load(begin)
            for step in range(begin, self._at):
                self._step(step, None)
            self._executor.watch = watch
            self._step(self._at, stop)
        except _FoundError:
            pass
        except WeighbridgeError as error:
            raise WeighbridgeError(
                f"run {self._name} cannot be executed up to there on this device, so its elements cannot be shown "
                f"(`weighbridge replay` says more): {error.message}",
                code="replay.comparison",
            ) from None

    def _keep(self, seen: Seen) -> Result:
        """Keeps a result; one of an exact operation is seen in one dimension, and laid out as the tape says."""
        self.op = seen.op
        node = self._tape_now.nodes[seen.op]
        born = {slot for slot, _ in node.births}
        refs = [self._tape_now.refs[o] for o in node.outputs if o is not None]
        shape, stride = next((_layout(ref, ref[0] in born) for ref in refs), ((seen.out.numel(),), (1,)))
        return keep(seen, shape, stride)


def _layout(ref: Ref, made: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides in which the elements of an exact result are seen: in place, they are in row-major order."""
    return ref[2], dense_strides(torch.Size(ref[2]), ref[3] if made else None)


def _views(tape: Tape, step: int) -> dict[str, Ref]:
    """The first reference to each storage of the state that covers all of it."""
    sizes = {i.slot: i.bytes for i in tape.inputs} | {slot: size for node in tape.nodes for slot, size in node.births}
    names = {i.slot: i.name for i in tape.inputs if i.origin == "state"} | dict(tape.survivors)
    found: dict[str, Ref] = {}
    for ref in tape.refs:
        elements = 1
        for size in ref[2]:
            elements *= size
        if ref[0] in names and elements * DTYPES[ref[1]].itemsize == sizes[ref[0]]:
            found.setdefault(absolute_name(names[ref[0]], step), ref)
    return found


class Comparison:
    """One comparison: the records of both, then the execution of the first difference."""

    def __init__(self, request: dict[str, Any], confined: list[str], send: Any) -> None:
        self._request, self._confined, self._send = request, confined, send
        self._paths = [str(path) for path in request["paths"]]
        self._pair = Pair(*(Transcript.open(path) for path in self._paths))
        self._limit = int(request["elements"])

    def run(self) -> dict[str, Any]:
        """Compares; returns the result as JSON."""
        pair, wanted, op = self._pair, self._request["step"], self._request["op"]
        count = min(pair.a.steps, pair.b.steps)
        if wanted is not None and not 0 <= wanted < count:
            raise UsageError(f"there is no step {wanted} in both runs; they share the steps 0:{count}")
        steps = range(count) if wanted is None else range(wanted, wanted + 1)
        first = next((step for step in steps if not pair.equal(step)), None)
        found = [] if first is None else pair.differences(first)
        if wanted is None and first is None and pair.a.steps != pair.b.steps:
            found = [difference("length", count, "steps", pair.a.steps, pair.b.steps)]
        operation: dict[str, Any] | None = None
        results: list[dict[str, Any]] = []
        step = first if wanted is None else wanted
        if op is not None:
            operation, results = self._operation(wanted, op)
        elif step is not None and found and found[0]["kind"] not in ("step", "program", "length"):
            operation, results = self._first(step, found)
        return {
            "equal": not found and not any(result["differing"] for result in results),
            "runs": self._paths,
            "steps": [pair.a.steps, pair.b.steps],
            "compared": [steps.start, steps.stop],
            "draft": drafts(pair.a, pair.b),
            "differences": found,
            "operation": operation,
            "results": results,
            "device": device_kind(str(self._request["device"])),
            "confinement": self._confined,
        }

    def _sides(self, step: int) -> tuple[Side, Side]:
        a, b = (Side(name, path, self._request, step) for name, path in zip("AB", self._paths, strict=True))
        return a, b

    def _operation(self, step: int, op: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """What an operation returned in both runs."""
        tape = self._pair.tapes(step)[0]
        if not self._pair.same_program(step):
            raise UsageError(f"step {step} does not run the same program in both, so operations cannot be compared")
        if not 0 <= op < len(tape.nodes):
            raise UsageError(f"step {step} has the operations 0:{len(tape.nodes)}; there is no operation {op}")
        kept = []
        for side in self._sides(step):
            kept.append(side.results(op))
            self._send({"progress": [len(kept), 2]})
        pairs = [(str(i), x, y) for i, (x, y) in enumerate(zip(*kept, strict=True))]
        return self._where(tape, step, op), self._compared(pairs)

    def _first(self, step: int, found: list[Difference]) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """What the first result with another checksum is in both; or else, in which storages their states differ."""
        tape, sides = self._pair.tapes(step)[0], self._sides(step)
        index = first_checksum(self._pair.a.step(step), self._pair.b.step(step))
        if index is not None:
            kept = []
            for side in sides:
                kept.append(side.result(index))
                self._send({"progress": [len(kept), 2]})
            (a, b), op = kept, sides[0].op
            next(each for each in found if each["kind"] == "result").update(at(tape, op))
            return self._where(tape, step, op), self._compared([("", a, b)])
        if not any(each["kind"] == "state" for each in found):
            return None, []
        ours, theirs = (side.state() for side in sides)
        pairs = [(name, ours[name], theirs[name]) for name in sorted(ours.keys() & theirs.keys())]
        return None, [result for result in self._compared(pairs) if result["differing"]][:_MOST]

    def _compared(self, pairs: list[tuple[str, Result, Result]]) -> list[dict[str, Any]]:
        return [{"name": name, **compare(a, b, self._limit)} for name, a, b in pairs]

    def _where(self, tape: Tape, step: int, op: int) -> dict[str, Any]:
        return {"step": step, "op": op, "operation": tape.nodes[op].op, **locate(tape, op)}


def main() -> None:
    """Answers one request for a comparison."""
    serve(lambda request, confined, send: Comparison(request, confined, send).run())


if __name__ == "__main__":
    main()
