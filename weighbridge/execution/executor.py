"""Runs tapes: one operation after another, under an allow-list, following a rounding log.

The executor holds storages by slot and state by name. Before an operation runs for the first time its operands are
checked with PyTorch's meta kernels (shapes and dtypes, without memory), and index tensors are checked for range each
time, because some ATen kernels crash on ordinary arguments. The allow-list is the rule table. It is no sandbox: run the
executor in the process that `replay` makes for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar

import torch

from weighbridge.core.digests import Leaf, bytes_digest, region_digest
from weighbridge.core.errors import LogError, RefusedOperationError, TapeError, UnknownOperationError, WeighbridgeError
from weighbridge.execution.choice_statistics import Tally
from weighbridge.execution.following import DifferenceError, Following, Seen
from weighbridge.execution.results import take
from weighbridge.execution.straight_line.frame import Frame
from weighbridge.execution.straight_line.program import Program, straight
from weighbridge.execution.unit_adjudication import Adjudication
from weighbridge.numerics.conformance.bound_policy import STRICT, Policy
from weighbridge.numerics.evaluate import evaluate
from weighbridge.numerics.rounding.rounding_log import LogReader
from weighbridge.numerics.rule_table import Kind
from weighbridge.numerics.schemas import mutated
from weighbridge.numerics.sketches.step_sketches import SketchReader, malformed
from weighbridge.program.invocation import invocation
from weighbridge.program.operands import (
    UNFIT,
    Operands,
    check_indices,
    check_shapes,
    check_sizes,
    tensor,
    unfit,
    whole,
)  # fmt: skip
from weighbridge.transcript.collectives import Exchange, calls
from weighbridge.transcript.job_record import MeshCoordinate
from weighbridge.transcript.state import Checkpoint, state_digest
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import DTYPES, RESIZE, Node, Ref, Tape, absolute_name, resized
from weighbridge.transcript.tensor_file import raw_bytes

Tensor = torch.Tensor

MAX_OPERATIONS = 1 << 22
"""Most operations of one step that are executed; a full-size GPT-2 takes some 3,000."""

MOST_PROGRAMS = 16
"""Most tapes that are held as straight-line programs."""


class Executor:
    """Holds a state and runs steps on it.

    Attributes:
        state: Storages by name, uint8 tensors on the device.
        live: Storages that exist at the present position, by slot or state name: what a snapshot taken here would have
            seen.
        followed: Roundings that the log changed so far.
        rounded: Elements rounded so far.
        calibrated: Those of them that were rounded within a calibrated bound.
        probable: Those of them that were rounded within a probabilistic bound.
        watch: Called with every result that has a checksum, once it was compared.
        before: Called before each operation, and after the last one, with its number and the storages by slot.
        tally: What rounding logs chose so far.
        programs: Whether steps may run as straight-line programs (`straight_line.program`) once their tape was executed
            operation by operation. That changes no result, no finding and no count.
        made: Straight-line programs by the digest of their tape; None for tapes that cannot be one.
        straight: The kind of context whose steps may run so. Others may need to see operations one by one.
    """

    straight: ClassVar[type[Following]] = Following

    def __init__(
        self, device: str | torch.device, seed: int, max_bytes: int, policy: Policy = STRICT,
        coordinate: MeshCoordinate | None = None, exchange: Exchange | None = None,
    ) -> None:  # fmt: skip
        """Prepares an empty state.

        Args:
            device: Where operations run.
            seed: The run's seed, from the draft.
            max_bytes: Most bytes that the storages of a tape may have together.
            policy: Which bounds the run was recorded with.
            coordinate: Whose tapes they are, if they are those of a rank of a job.
            exchange: Gives the results of collectives.
        """
        self.device = torch.device(device)
        self.state: dict[str, Tensor] = {}
        self.rng: dict[str, int] = {}
        self.live: dict[int, Tensor] = {}
        self.followed = 0
        self.rounded = 0
        self.calibrated = 0
        self.probable = 0
        self.watch: Callable[[Seen], None] | None = None
        self.before: Callable[[int, Mapping[int, Tensor]], None] | None = None
        self.tally = Tally()
        self.adjudication = Adjudication()
        self._lingering: list[Tensor] = []
        self._seed, self._max_bytes, self._policy = seed, max_bytes, policy
        self._checked: set[tuple[bytes, int]] = set()
        self._complete: set[bytes] = set()
        self.made: dict[bytes, Program | None] = {}
        self.programs = True
        self._coordinate, self._exchange = coordinate, exchange

    def load(self, checkpoint: Checkpoint) -> None:
        """Takes over a checkpoint's state."""
        self.state = {name: data.to(self.device, copy=True) for name, data in checkpoint.storages.items()}
        self.rng = dict(checkpoint.rng)

    def state_digest(self) -> bytes:
        """Digest of the state as a step record carries it (32 bytes)."""
        regions = {}
        for name, data in self.state.items():
            raw = data.cpu().numpy()
            regions[name] = (raw.size, bytes_digest(raw.data))
        return state_digest(regions, self.rng)

    def leaves(self, salt: bytes) -> list[Leaf]:
        """The live storages as (bytes, keyed digest), as a snapshot taken at this position would list them."""
        seen: dict[int, Tensor] = {}
        for data in [*self.live.values(), *self.state.values(), *self._lingering]:
            seen.setdefault(data.untyped_storage().data_ptr() or id(data), data)
        return [(d.numel(), region_digest(d.cpu().numpy().data, salt)) for d in seen.values() if d.numel()]

    def leaves_of(self, names: Iterable[str], salt: bytes) -> list[Leaf]:
        """Those of the storages with these names in the state that exist, as `leaves` lists them."""
        held = [self.state[name] for name in names if name in self.state]
        return [(d.numel(), region_digest(d.cpu().numpy().data, salt)) for d in held if d.numel()]

    def run(
        self, tape: Tape, tape_digest: bytes, record: StepRecord, log: LogReader | None, batch: Mapping[str, Tensor],
        undeclared: Mapping[str, Tensor], stop: int | None = None, sketches: SketchReader | None = None,
    ) -> Following:  # fmt: skip
        """Executes one step.

        Args:
            tape: The program.
            tape_digest: Its content address; operand checks are remembered per tape.
            record: The step's record.
            log: Its rounding log, from the beginning; None if it is made on demand, and is not here.
            batch: Batch tensors by path.
            undeclared: Undeclared tensors by name.
            stop: Stop when so many operations are complete, leaving `live` as it is then.
            sketches: Those of its 16-bit outputs, from the beginning, which are followed instead of the log.

        Returns:
            The context, with counts.

        Raises:
            DifferenceError: At the first operation whose result differs.
            TapeError: If the tape does not fit its record or names a forbidden operation.
            LogError: If a log entry is inadmissible.
        """
        if len(record.values) != tape.values or len(record.host) != tape.hosts:
            raise TapeError(f"step {record.step}: the record has {len(record.values)} values, its tape {tape.values}")
        if len(tape.nodes) > MAX_OPERATIONS:
            raise TapeError(
                f"step {record.step} has {len(tape.nodes)} operations, more than {MAX_OPERATIONS}; split it",
                code="tape.too_large",
            )
        if tape.largest_footprint() > self._max_bytes:
            raise TapeError(
                f"step {record.step} needs {tape.largest_footprint()} bytes, more than the limit of {self._max_bytes}; "
                "raise the memory limit if this machine has them",
                code="tape.too_large",
            )
        context = self._context(record, log)
        context.sketches = sketches
        if self._coordinate is not None:
            context.stream, context.exchange = self._coordinate.stream(record.kind), self._exchange
            context.calls = {call.op: call for call in calls(tape, self._coordinate.rank)}
        slots: dict[int, Tensor] = {}
        names: dict[int, str] = {}
        self.drop(tape, record.step)
        self._lingering = []  # a caller that begins a step has let go of the batch before
        entered = self._enter(tape, record, batch, undeclared, slots, names)
        frees: dict[int, list[int]] = {}
        for at, slot in tape.frees:
            frees.setdefault(at, []).append(slot)
        self.live = dict(slots)
        last = len(tape.nodes) if stop is None else stop
        if last > len(tape.nodes):
            raise TapeError(f"step {record.step} has {len(tape.nodes)} operations; position {last} does not exist")
        operands = Operands(self.device, tape, slots, record.values)
        program = self._program(tape, tape_digest, context) if stop is None else None
        if program is not None:
            release = partial(self._release, slots=slots, names=names, operands=operands)
            program.run(Frame(self.device, slots, operands, record.values, context, release), record.step)
        for index in range(last if program is None else 0):
            if self.before is not None:
                self.before(index, slots)
            self._perform(index, tape, tape_digest, context, slots, names, operands, frees.get(index, ()))
        self.followed += context.followed
        self.rounded += context.rounded_elements
        self.calibrated += context.calibrated_elements
        self.probable += context.probable_elements
        if self.before is not None:
            self.before(last, slots)
        if stop is not None and stop <= len(tape.nodes) and last == stop:
            self.live = dict(slots)
            return context
        self._finish(tape, record, context, slots, names, frees, operands, entered)
        self._complete.add(tape_digest)
        return context

    def _perform(
        self, index: int, tape: Tape, tape_digest: bytes, context: Following, slots: dict[int, Tensor],
        names: dict[int, str], operands: Operands, freed: Iterable[int],
    ) -> None:  # fmt: skip
        """Executes one operation, after the frees that stand before it."""
        for slot in freed:
            self._release(slot, slots, names, operands)
        node = tape.nodes[index]
        context.begin(index, node)
        first = (tape_digest, index) not in self._checked
        try:
            if node.op == RESIZE:
                self._resize(node, tape, slots, names, operands)
            else:
                self._operation(node, tape, slots, operands, context, first)
        except (RefusedOperationError, UnknownOperationError) as error:
            raise TapeError(
                f"step {context.record.step}, operation {index}: {error.message}", code="tape.forbidden",
                operation=node.op,
            ) from None  # fmt: skip
        self._checked.add((tape_digest, index))

    def _program(self, tape: Tape, tape_digest: bytes, context: Following) -> Program | None:
        """Returns a tape's straight-line program, if this step can run as one: all of it was executed before."""
        watched = self.before is not None or self.watch is not None
        if not self.programs or watched or self.device.type != "cpu" or type(context) is not self.straight:
            return None
        if tape_digest not in self._complete:
            return None
        if tape_digest not in self.made:
            while len(self.made) >= MOST_PROGRAMS:
                self.made.pop(next(iter(self.made)))
            self.made[tape_digest] = Program(tape) if straight(tape) else None
        return self.made[tape_digest]

    def _context(self, record: StepRecord, log: LogReader | None) -> Following:
        """Returns what a step is evaluated in."""
        return Following(record, log, self._seed, self._policy, self.watch, self.tally, self.adjudication)

    def drop(self, tape: Tape, step: int) -> None:
        """Lets go of the state that died before a step began; `run` does so by itself."""
        for item in tape.inputs:
            if item.origin == "dropped":
                name = absolute_name(item.name, step)
                if name not in self.state or self.state.pop(name).numel() != item.bytes:
                    raise TapeError(f"step {step} drops the state {name!r}, which does not exist then")

    # -- the parts of a step -------------------------------------------------------------------------------------------

    def _enter(
        self, tape: Tape, record: StepRecord, batch: Mapping[str, Tensor], undeclared: Mapping[str, Tensor],
        slots: dict[int, Tensor], names: dict[int, str],
    ) -> list[Tensor]:  # fmt: skip
        """Binds the storages that come from outside; returns those of the batch."""
        views: dict[int, list[tuple[str, Ref]]] = {}
        for name, ref in tape.batch_views:
            views.setdefault(ref[0], []).append((name, ref))
        entered, read = [], set[str]()
        for item in tape.inputs:
            if item.origin == "dropped":
                continue
            if item.origin == "state":
                name = absolute_name(item.name, record.step)
                data = self.state.get(name)
                if data is None or name in read:
                    raise TapeError(
                        f"step {record.step} reads the state {name!r}, which does not exist or is read twice"
                    )
                names[item.slot] = name
                read.add(name)
            elif item.origin == "free":
                if item.name not in undeclared:
                    raise TapeError(f"step {record.step} has no undeclared tensor {item.name!r}")
                data = undeclared[item.name].reshape(-1).view(torch.uint8).to(self.device, copy=True)
            else:
                data = torch.zeros(item.bytes, dtype=torch.uint8, device=self.device)
                _fill(data, views.get(item.slot, ()), batch, record.step)
                entered.append(data)
            if data.numel() != item.bytes:
                raise TapeError(
                    f"step {record.step}: slot {item.slot} should have {item.bytes} bytes and has {data.numel()}"
                )
            slots[item.slot] = data
        return entered

    def _release(self, slot: int, slots: dict[int, Tensor], names: dict[int, str], operands: Operands) -> None:
        slots.pop(slot, None)
        operands.forget(slot)
        name = names.pop(slot, None)
        if name is not None:
            self.state.pop(name, None)

    def _resize(
        self, node: Node, tape: Tape, slots: dict[int, Tensor], names: dict[int, str], operands: Operands
    ) -> None:
        """Gives a storage another size; the content up to there stays, and what is new is zeros."""
        for slot, size in resized(tape, node):
            data = torch.zeros(size, dtype=torch.uint8, device=self.device)
            kept = min(size, slots[slot].numel())
            data[:kept].copy_(slots[slot][:kept])
            slots[slot] = data
            operands.forget(slot)
            if slot in names:
                self.state[names[slot]] = data

    def _operation(
        self, node: Node, tape: Tape, slots: dict[int, Tensor], operands: Operands, context: Following, first: bool
    ) -> None:
        call = invocation(node, context.op, tape, operands)
        op, args, kwargs, bound, rule, refs = call.op, call.args, call.kwargs, call.bound, call.rule, call.refs
        if rule.kind is Kind.COLLECTIVE:
            context.collective(bound["outs"], bound["ins"])
            return
        if rule.kind is Kind.VIEW:
            # A view computes nothing; its geometry was checked against the storage when the tape was decoded.
            source = next((v for v in args if isinstance(v, Tensor)), None)
            if node.births or source is None:
                raise TapeError(f"operation {context.op} ({node.op}) is a view but makes memory")
            return
        try:
            if first:
                check_shapes(op, args, kwargs, node, refs, rule.kind)
                check_sizes(op, bound)
            check_indices(op, bound)
        except UNFIT as error:  # operands of a rank or kind for which the checks have no place
            raise unfit(f"operation {context.op} ({node.op})", error) from None
        strides = [None if ref is None else ref[3] for ref in refs]
        try:
            out = evaluate(
                op, args, kwargs, context, rule=rule, bound=bound,
                layout=lambda i: strides[i] if i < len(strides) else None,
            )  # fmt: skip
        except WeighbridgeError:
            raise
        except UNFIT as error:
            raise unfit(f"operation {context.op} ({node.op})", error) from None
        changed = {id(bound[name]) for name in mutated(op)}
        take(
            out, refs, dict(node.births), [*args, *kwargs.values()], changed, slots, self.device,
            f"{context.op} ({node.op})",
        )  # fmt: skip

    def _finish(
        self, tape: Tape, record: StepRecord, context: Following, slots: dict[int, Tensor], names: dict[int, str],
        frees: dict[int, list[int]], operands: Operands, entered: list[Tensor],
    ) -> None:  # fmt: skip
        for slot in frees.get(len(tape.nodes), ()):
            self._release(slot, slots, names, operands)
        if context.checked * 8 != len(record.checksums) or context.hosts != len(record.host):
            raise TapeError(f"step {record.step}: the record has checksums or host values that no operation made")
        if context.exchanged != len(record.collectives):
            raise TapeError(f"step {record.step}: the record has collectives that no operation made")
        if context.log is not None and context.log.left:
            raise LogError(f"step {record.step}: the rounding log has entries for operations that round nothing")
        if context.sketches is not None and context.sketches.left:
            raise malformed(f"step {record.step} has sketches of outputs that no operation made")
        self._compare_outputs(tape, record, context)
        for slot, name in tape.survivors:
            name = absolute_name(name, record.step)
            if slot not in slots or slot in names:
                raise TapeError(f"step {record.step}: slot {slot} survives but does not exist or is state already")
            if name in self.state:
                raise TapeError(f"step {record.step}: two storages would be the state {name!r}")
            self.state[name], names[slot] = whole(slots[slot]), name
        drawn = {str(number): after for number, after in context.rng.items()}
        if drawn != {number: after for number, (_, after) in record.rng.items()}:
            raise TapeError(f"step {record.step}: the record's counters of randomness are not those after its draws")
        self.rng.update(drawn)
        self._lingering = entered
        self.live = {}

    def _compare_outputs(self, tape: Tape, record: StepRecord, context: Following) -> None:
        """Compares the rounded outputs with what the record of a step without a log commits to."""
        if context.outputs is None or (found := context.outputs.digest()) == record.outputs:
            return
        raise DifferenceError(
            f"the rounded outputs of step {record.step} are not those that its record commits to, although every "
            "checksum matched: the digest, or some outputs, were made up",
            step=record.step, op=len(tape.nodes), operation="outputs", expected=record.outputs.hex(), found=found.hex(),
        )  # fmt: skip


def _fill(data: Tensor, views: Sequence[tuple[str, Ref]], batch: Mapping[str, Tensor], step: int) -> None:
    """Puts the batch's tensors where the tape has them in a storage."""
    for name, ref in views:
        source = batch.get(name)
        if source is None or DTYPES[ref[1]] != source.dtype or ref[2] != tuple(source.shape):
            raise TapeError(f"step {step}: the batch has no tensor {name!r} of the shape that the tape expects")
        target = tensor(data, ref)
        for d, (size, stride) in enumerate(zip(ref[2], ref[3], strict=True)):
            if size > 1 and stride == 0:  # an expanded dimension is there once
                target, source = target.narrow(d, 0, 1), source.narrow(d, 0, 1)
        target.copy_(source)
    for name, ref in views:
        if raw_bytes(tensor(data, ref)) != raw_bytes(batch[name]):
            raise TapeError(f"step {step}: the tape lays other parts of the batch over its tensor {name!r}")
