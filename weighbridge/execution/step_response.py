"""How a step's new weights respond to a change of the old ones, and to a change of what enters: executed, not read.

docs/recognition.md, "Sensitivity", says what this asks and why. A step is executed four or five times: from its own
state or a disturbed one, with its own batch or a changed one. No rounding log is followed, and nothing is compared with
the record. This runs in a replay worker: it executes a Prover's programs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, replace

import numpy as np
import torch

from weighbridge.core.digests import record_digest
from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.free_run import FreeExecutor
from weighbridge.execution.sensitivity import Inputs, Numbers
from weighbridge.numerics.rounding.rounding_log import LogReader, encode
from weighbridge.program.origins import SCALAR_BYTES
from weighbridge.program.tape_policy import TapePolicy
from weighbridge.transcript.steps import StepRecord
from weighbridge.transcript.tape import DTYPES, Ref, Tape
from weighbridge.transcript.tensor_file import raw_bytes

Tensor = torch.Tensor
Tensors = Mapping[str, Tensor]

SIZES = (0.5, 0.125, 0.03125)
"""How far weights are disturbed, as a share of their size; the next one is tried where a program cannot go that far."""

_FLOATS = ("f64", "f32", "bf16", "f16")
_NO_LOG = encode(())


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One step, as it ran.

    Attributes:
        tape: Its program.
        record: Its record.
        state: Storages by name before it, uint8; not changed here.
        weights: Names of state that holds weights.
        fed: Names of all state that feeds itself: weights, and what an optimizer keeps beside them.
        batch: Its batch.
        undeclared: Its undeclared tensors.
        other: The batch of another step that ran the program, or None.
    """

    tape: Tape
    record: StepRecord
    state: Tensors
    weights: Set[str]
    fed: Set[str]
    batch: Tensors
    undeclared: Tensors
    other: Tensors | None


@dataclass(frozen=True, slots=True)
class _Entering:
    """What enters a step beside state."""

    inputs: Inputs
    batch: Tensors
    undeclared: Tensors
    record: StepRecord


class UnfitError(WeighbridgeError):
    """A program cannot be executed from another state, or with other inputs. No one but this test learns of it."""


def floating(tape: Tape) -> dict[str, Ref]:
    """Returns the state of a program that holds real numbers of one type, and the largest matrix that it sees there.

    It is the largest tensor if there is no matrix.
    """
    seen: dict[int, list[Ref]] = {}
    for ref in tape.refs:
        seen.setdefault(ref[0], []).append(ref)
    found = {}
    for item in tape.inputs:
        refs = seen.get(item.slot, ())
        if item.origin == "state" and item.bytes > SCALAR_BYTES and len({ref[1] for ref in refs}) == 1:
            largest = max(refs, key=lambda ref: (len(ref[2]) > 1, math.prod(ref[2]), ref))
            if largest[1] in _FLOATS and item.bytes % DTYPES[largest[1]].itemsize == 0:
                found[item.name] = largest
    return found


def measure(subject: Subject, executor: FreeExecutor, seed: bytes, policy: TapePolicy) -> tuple[Numbers, Inputs]:
    """Measures one step.

    Args:
        subject: The step.
        executor: Executes it; its state is replaced.
        seed: Decides about directions and noise (32 bytes).
        policy: Says what counts as no response.

    Returns:
        What was found, and how the batch was changed.

    Raises:
        UnfitError: The program cannot be executed without its rounding log.
    """
    return _Measurement(subject, executor, seed, policy).run()


class _Measurement:
    def __init__(self, subject: Subject, executor: FreeExecutor, seed: bytes, policy: TapePolicy) -> None:
        self._subject, self._executor, self._seed, self._policy = subject, executor, seed, policy
        self._refs = {name: ref for name, ref in floating(subject.tape).items() if name in subject.state}
        self._names = sorted(self._refs.keys() & subject.weights)

    def run(self) -> tuple[Numbers, Inputs]:
        """See `measure`."""
        subject = self._subject
        own = _Entering("", subject.batch, subject.undeclared, subject.record)
        before = {name: self._typed(name, subject.state[name]) for name in self._names}
        after = self._execute(subject.state, own)
        changed = [
            name for name in self._names
            if name in after and after[name].shape == before[name].shape and not torch.equal(after[name], before[name])
        ]  # fmt: skip
        numbers = Numbers(weights=sum(before[name].numel() for name in changed))
        if not changed:
            return numbers, ""
        update = {name: after[name].double() - before[name].double() for name in changed}
        numbers = replace(numbers, decay=_only_scaled(update, before))
        carried = self._disturbed(changed, self._refs.keys() & subject.fed, (own,), natural=False)
        if carried is not None:
            _, state, (moved,) = carried
            by = {name: self._typed(name, state[name]).double() - before[name].double() for name in changed}
            apart = _minus(moved, after, changed)
            lost = _share_below(self._policy.least_carry, apart, by, self._policy.least_weights)
            numbers = replace(numbers, carry=_ratio(apart, by), lost=lost) if _any(by) else numbers
        for entering in self._others(own):
            try:
                elsewhere = self._finite(subject.state, entering, changed)
            except UnfitError:
                continue
            batch = _minus(after, elsewhere, changed)
            numbers = replace(numbers, batch=_ratio(batch, update))
            responses = self._disturbed(changed, self._names, (own, entering), natural=True)
            if responses is None:
                continue
            size, _, (here, there) = responses
            disturbed = _minus(here, there, changed)
            if not _any(batch) and not _any(disturbed):
                continue  # another change may have an influence
            joint = {name: batch[name] - disturbed[name] for name in changed}
            larger = batch if _ratio(disturbed, batch) < 1 and _any(batch) else disturbed
            usual = SIZES[0] / size  # what is disturbed less responds less
            rigid = _share_below(
                self._policy.least_joint / usual, joint, _larger(batch, disturbed), self._policy.least_weights
            )
            return replace(numbers, joint=_ratio(joint, larger) * usual, rigid=rigid, size=size), entering.inputs
        return numbers, ""

    def _execute(self, state: Tensors, entering: _Entering) -> dict[str, Tensor]:
        """Executes the step; returns the weights after it as it sees them, in one dimension."""
        tape, executor = self._subject.tape, self._executor
        executor.state = {name: data.clone() for name, data in state.items()}
        record, log = entering.record, LogReader(_NO_LOG, max_entries=0)
        try:
            executor.run(tape, record.tape, record, log, entering.batch, entering.undeclared, len(tape.nodes))
        except WeighbridgeError as error:
            raise UnfitError(error.message) from None
        kept = {name: executor.live[slot] for slot, name in tape.survivors if slot in executor.live}
        after = {name: kept.get(name, executor.state.get(name)) for name in self._names}
        return {name: self._typed(name, data).clone() for name, data in after.items() if data is not None}

    def _finite(self, state: Tensors, entering: _Entering, changed: list[str]) -> dict[str, Tensor]:
        """As `_execute`, where all weights that the step changed must come out as finite numbers."""
        after = self._execute(state, entering)
        if not all(name in after and bool(after[name].isfinite().all()) for name in changed):
            raise UnfitError("weights came out as infinities or NaN")
        return after

    def _disturbed(
        self, changed: list[str], names: Collection[str], with_: tuple[_Entering, ...], *, natural: bool
    ) -> tuple[float, dict[str, Tensor], list[dict[str, Tensor]]] | None:
        """Disturbs state as far as the program can go; returns how far, that state, and each execution from it."""
        tries = [(size, each) for each in ((True, False) if natural else (False,)) for size in SIZES]
        for size, naturally in tries:
            state = self._disturb(sorted(names), size, natural=naturally)
            try:
                return size, state, [self._finite(state, each, changed) for each in with_]
            except UnfitError:
                continue
        return None

    def _disturb(self, names: list[str], size: float, *, natural: bool) -> dict[str, Tensor]:
        """Moves every number of some storages up or down by a share of itself, or of what weights of its shape have.

        Moved by a share of itself a number keeps its sign: an optimizer's squares stay positive.
        """
        state = dict(self._subject.state)
        empty = not any(bool(self._typed(name, state[name]).count_nonzero()) for name in names)
        for name in names:
            values = self._typed(name, state[name])
            far = values.abs()
            if natural or empty:
                far = far.clamp(min=_natural(self._refs[name][2], empty=empty))
            signs = self._generator(f"state/{name}").integers(0, 2, values.numel(), dtype=np.int8)
            by = far * size * torch.from_numpy(signs * 2 - 1).to(values.device)
            state[name] = (values + by).to(values.dtype).view(torch.uint8)
        return state

    def _others(self, own: _Entering) -> Iterator[_Entering]:
        """What might have entered the step instead, the furthest from what did first."""
        other = self._subject.other
        asked: list[tuple[Inputs, Tensors, bool, bool]] = [
            ("noise and other integers", own.batch, True, True),
            ("noise", own.batch, True, False),
        ]
        if other is not None:
            asked = [("noise and another step", other, True, False), ("another step", other, False, False), *asked]
        for inputs, batch, noise, redrawn in asked:
            made = _Entering(
                inputs,
                self._changed(batch, noise=noise, redrawn=redrawn),
                self._changed(own.undeclared, noise=noise, redrawn=False),
                own.record,
            )
            if _differ(made.batch, own.batch) or _differ(made.undeclared, own.undeclared):
                yield made
        if any(node.draw is not None for node in self._subject.tape.nodes):
            by = int(self._generator("chance").integers(1 << 20, 1 << 40))
            rng = {name: (before + by, after + by) for name, (before, after) in own.record.rng.items()}
            yield _Entering("chance", own.batch, own.undeclared, replace(own.record, rng=rng))

    def _changed(self, tensors: Tensors, *, noise: bool, redrawn: bool) -> dict[str, Tensor]:
        """Adds noise as large as they are to real numbers, and draws others from those that there are.

        Tensors that the program has in the same memory are changed alike.
        """
        places, found = dict(self._subject.tape.batch_views), dict(tensors)
        for name, tensor in tensors.items():
            source = self._generator(f"batch/{places.get(name, name)}")
            if tensor.is_floating_point() and noise and tensor.numel():
                scale = float(tensor.double().square().mean().sqrt())
                drawn = torch.from_numpy(source.standard_normal(tensor.numel(), dtype=np.float32)).view(tensor.shape)
                found[name] = tensor + (drawn * (scale if 0 < scale < math.inf else 1.0)).to(tensor.dtype)
            elif redrawn and not tensor.is_floating_point():
                places_of = torch.from_numpy(source.integers(0, max(1, tensor.numel()), tensor.numel()))
                found[name] = tensor.reshape(-1)[places_of].view(tensor.shape)
        return found

    def _generator(self, what: str) -> np.random.Generator:
        step = self._subject.record.step
        digest = record_digest("sensitivity/1", {"seed": self._seed, "step": step, "what": what})
        return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "big")))

    def _typed(self, name: str, data: Tensor) -> Tensor:
        dtype = DTYPES[self._refs[name][1]]
        return data[: data.numel() // dtype.itemsize * dtype.itemsize].view(dtype)


def _natural(size: tuple[int, ...], *, empty: bool) -> float:
    """How large numbers of weights usually are: those of matrices as they are initialised, others as they are."""
    if len(size) < 2:
        return 1.0 if empty else 0.0
    return 1 / math.sqrt(max(1, math.prod(size[1:])))


def _only_scaled(update: Tensors, before: Tensors) -> bool:
    """Whether an update is mostly a multiple of the weights, storage by storage, as weight decay is."""
    rest, whole = 0.0, 0.0
    for name, each in update.items():
        weights = before[name].double()
        own = float(weights.square().sum())
        along = float((each * weights).sum()) / own if own else 0.0
        rest += float((each - along * weights).square().sum())
        whole += float(each.square().sum())
    return rest < whole / 2


def _minus(a: Tensors, b: Tensors, names: list[str]) -> dict[str, Tensor]:
    return {name: a[name].double() - b[name].double() for name in names}


def _any(tensors: Tensors) -> bool:
    return any(bool(each.count_nonzero()) for each in tensors.values())


def _share_below(least: float, a: Tensors, b: Tensors, smallest: int) -> float:
    """The share of elements in tensors, none of them smaller, where `a` is less than `least` times as long as `b`."""
    judged = {name: tensor for name, tensor in b.items() if tensor.numel() >= smallest and _any({name: tensor})}
    below = sum(tensor.numel() for name, tensor in judged.items() if _one(a[name]) < least * _one(tensor))
    return below / sum(each.numel() for each in b.values())


def _larger(a: Tensors, b: Tensors) -> dict[str, Tensor]:
    """For each name the longer of two tensors."""
    return {name: a[name] if _one(a[name]) > _one(b[name]) else b[name] for name in a}


def _one(tensor: Tensor) -> float:
    return float(tensor.norm())


def _ratio(a: Tensors, b: Tensors) -> float:
    """The norm of all of `a` relative to that of all of `b`."""
    squares = [math.fsum(float(each.square().sum()) for each in tensors.values()) for tensors in (a, b)]
    return math.sqrt(squares[0] / squares[1]) if squares[1] else 0.0


def _differ(a: Tensors, b: Tensors) -> bool:
    """Whether any tensor differs, bit for bit."""
    return any(raw_bytes(each) != raw_bytes(b[name]) for name, each in a.items())
