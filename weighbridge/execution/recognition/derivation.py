"""The Verifier's own gradient of a loss on a tape, by its own automatic differentiation over storages.

Gradients are kept by storage, so views, aliases and changes in place need no care: to read a storage adds to its
gradient, to write to it takes the gradient away. Operations are differentiated one at a time, at the recorded operands,
by PyTorch's derivative of that operation, backwards from the loss. Where the claims say that an operation takes an
operand without a gradient, none passes.

All of it is done twice: in float64, which is exact as far as anything recorded goes, and in the types of the tape. The
difference of the two says how far honest arithmetic is from the exact gradient, coordinate by coordinate, without
asking the Prover.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from weighbridge.core.errors import WeighbridgeError
from weighbridge.execution.recognition import noise, products
from weighbridge.execution.recognition.limits import check_time, unfinished
from weighbridge.execution.recognition.values import Plan, Values
from weighbridge.numerics.schemas import mutated
from weighbridge.program.gradient_paths import WHOLE, floating, is_view, makes_anew, operands, results
from weighbridge.program.operands import UNFIT, resolve
from weighbridge.transcript.collectives import is_collective
from weighbridge.transcript.tape import DTYPES, MEMORY_FORMATS, RESIZE, Node, Ref, resized
from weighbridge.transcript.training_claims import Backward

Tensor = torch.Tensor
MOVED = 1e-3
"""By which part of itself each term of a disturbed gradient is moved at most."""
_STEPS = frozenset({"floor_divide"})
"""Operations that are constant but for jumps, of which PyTorch has no derivative: what is made of them has one."""


class UnderivableError(WeighbridgeError):
    """The Verifier has no derivative of what a tape does; the message says of what."""

    code = "recognition.underivable"


@dataclass(slots=True)
class Pair:
    """A gradient in both arithmetics, flat over a storage or in the shape of a tensor.

    Attributes:
        exact: In float64.
        native: In the types of the tape.
        spread: Variance of its rounding errors (float32), where more is known than the difference of the two.
    """

    exact: Tensor
    native: Tensor
    spread: Tensor | None = None

    def window(self, ref: Ref) -> Pair:
        """The part that a reference names, on the same memory."""
        _, _, size, stride, offset = ref
        spread = None if self.spread is None else self.spread.as_strided(size, stride, offset)
        return Pair(self.exact.as_strided(size, stride, offset), self.native.as_strided(size, stride, offset), spread)

    def sample(self) -> Tensor:
        """Absolute errors (float64)."""
        return (self.native.double() - self.exact).abs_()


@dataclass(slots=True)
class Derived:
    """What was derived of one backward pass.

    Attributes:
        gradients: By reference of the leaf.
        stopped: (operation, operand) of the stops at which a gradient would have gone on.
    """

    gradients: dict[int, Pair]
    stopped: list[tuple[int, int]]


class Derivation:
    """Differentiates one executed step."""

    def __init__(
        self, plan: Plan, values: Values, numbers: Sequence[Any], device: torch.device, *, recomputed: bool = False,
        through: int = 0, disturbed: bool = False, until: float = math.inf,
    ) -> None:  # fmt: skip
        """Prepares for one step.

        Args:
            plan: That of its tape.
            values: What its storages held.
            numbers: Its values vector.
            device: Where to calculate.
            recomputed: Whether what ran outside of autograd is differentiated too, as a checkpoint that computes it
                again does.
            through: 1 to differentiate what ran outside of autograd even where it wrote to memory that was there, as
                the weights do that ranks gather from their shards; 2 to believe no stop, since the operations of a
                `DTensor` take its parts without gradients.
            disturbed: Whether each gradient on the way is moved by a part in a thousand, so that sums that cancel do
                not, and only what nothing had bearing on is zero.
            until: When to give up, by `time.perf_counter`: claims may ask for any number of backward passes.
        """
        self._plan, self._tape, self._values, self.numbers = plan, plan.tape, values, numbers
        self.device, self._until = device, until
        self._sizes = dict(plan.sizes)
        for node in self._tape.nodes:
            for slot, size in resized(self._tape, node):
                self._sizes[slot] = max(size, self._sizes.get(slot, 0))
        self._stops: dict[int, set[int]] = {}
        for op, operand in plan.claims.stops:
            in_place = self._tape.nodes[op].op.partition(".")[0].endswith("_")
            if through > 1 or (operand == WHOLE and (through or (recomputed and not in_place))):
                continue
            self._stops.setdefault(op, set()).add(operand)
        self._types: dict[int, str] = {}
        self._flowing: dict[int, Pair] = {}
        self._found = Derived({}, [])
        self._left: list[int] = []
        self._reach: dict[int, set[int]] = {}
        self._near: set[int] = set()
        self._chance = torch.Generator(device=device).manual_seed(0) if disturbed else None

    def derive(self, backward: Backward) -> Derived:
        """Returns the gradient of what a backward pass was called on.

        Raises:
            UnderivableError: There is no derivative here of an operation on the way.
            UnfinishedError: It takes longer than it may, or more memory than there is.
        """
        self.begin(backward)
        if (op := self.advance()) is not None:
            raise UnderivableError(f"operation {op} ({self._tape.nodes[op].op}) needs the other ranks of the job")
        return self.finish(backward)

    def begin(self, backward: Backward) -> None:
        """Begins at what a backward pass was called on; raises as `derive`."""
        check_time(self._until)
        self._types, self._flowing, self._found = {}, {}, Derived({}, [])
        for loss, seed in zip(backward.losses, backward.seeds, strict=True):
            ref = self._tape.refs[loss]
            if not floating(ref):
                raise UnderivableError("a backward pass begins at integers")
            start = torch.ones(ref[2], dtype=torch.float64) if seed is None else self.value(backward.begin, seed)
            self._add(ref, Pair(start.double(), start.to(DTYPES[ref[1]])))
        leaves = {self._tape.refs[g.leaf][0] for g in backward.gradients}
        self._reach = self._reached(leaves, backward.begin)
        self._left = [op for op in self._plan.forward if op < backward.begin]
        self._near = set(leaves)
        for op in self._left:
            node = self._tape.nodes[op]
            moves = node.op.partition(".")[0] in noise.MOVES
            if moves and any(self._tape.refs[r][0] in self._near for r in operands(node)):
                self._near.update(slot for slot, _ in node.births)

    def advance(self) -> int | None:
        """Goes back to the last collective before; returns its operation, None at the beginning; raises as `derive`."""
        while self._left:
            op = self._left.pop()
            check_time(self._until)
            if is_collective(self._tape.nodes[op]):
                return op
            self._back(op, self._reach, self._found.stopped)
        return None

    def take(self, op: int) -> list[Pair | None]:
        """Takes away the gradients of what a collective gave to this rank."""
        return self._take(self._tape.nodes[op])

    def give(self, ref: Ref, gradient: Pair) -> None:
        """Adds to the gradient of what this rank contributed to a collective (any shape, in order)."""
        self._add(ref, Pair(gradient.exact.reshape(ref[2]), gradient.native.reshape(ref[2]).to(DTYPES[ref[1]])))

    def finish(self, backward: Backward) -> Derived:
        """Returns the gradients of the leaves."""
        found = self._found
        for gradient in backward.gradients:
            ref = self._tape.refs[gradient.leaf]
            flowing = self._flowing.get(ref[0])
            if flowing is None:
                zero = torch.zeros(ref[2], device=self.device)
                found.gradients[gradient.leaf] = Pair(zero.double(), zero.to(DTYPES[ref[1]]))
            else:
                self._typed(ref)
                found.gradients[gradient.leaf] = flowing.window(ref)
        found.stopped.reverse()
        return found

    def _reached(self, leaves: set[int], end: int) -> dict[int, set[int]]:
        """For each operation, which of its operands depend on a leaf, stops or none."""
        slots, found = set(leaves), dict[int, set[int]]()
        for op in self._plan.forward:
            node = self._tape.nodes[op]
            if op >= end or makes_anew(node):
                continue
            if is_collective(node):  # the others contribute what they calculated from leaves
                slots.update(self._tape.refs[r][0] for r in results(node) if floating(self._tape.refs[r]))
                continue
            read = operands(node)
            inside = {number for number, r in enumerate(read) if self._tape.refs[r][0] in slots}
            if inside:
                found[op] = inside
                slots.update(
                    self._tape.refs[r][0] for r in node.outputs if r is not None and floating(self._tape.refs[r])
                )
        return found

    # -- gradients by storage ------------------------------------------------------------------------------------------

    def _typed(self, ref: Ref) -> None:
        if self._types.setdefault(ref[0], ref[1]) != ref[1]:
            raise UnderivableError(f"memory is read as {self._types[ref[0]]} and as {ref[1]}")

    def _add(self, ref: Ref, gradient: Pair) -> None:
        self._typed(ref)
        flowing = self._flowing.get(ref[0])
        if flowing is None:
            count = self._sizes[ref[0]] // DTYPES[ref[1]].itemsize
            flowing = self._flowing[ref[0]] = Pair(
                torch.zeros(count, dtype=torch.float64, device=self.device),
                torch.zeros(count, dtype=DTYPES[ref[1]], device=self.device),
            )
        if self._chance is not None:
            moved = torch.rand(
                gradient.exact.shape, generator=self._chance, dtype=torch.float64, device=self.device
            )  # fmt: skip
            gradient = Pair(gradient.exact * (1 + MOVED * moved), gradient.native)
        if gradient.spread is not None and flowing.spread is None:
            flowing.spread = flowing.sample().float().square_()
        _, _, size, stride, offset = ref
        if _apart(size, stride):
            window = flowing.window(ref)
            window.exact.add_(gradient.exact)
            window.native.add_(gradient.native)
            if window.spread is not None:
                own = gradient.spread
                window.spread.add_(gradient.sample().float().square_() if own is None else own)
            return
        count = flowing.exact.numel()
        at = torch.arange(count, device=self.device).as_strided(size, stride, offset).reshape(-1)
        flowing.exact.index_add_(0, at, gradient.exact.reshape(-1))
        flowing.native.index_add_(0, at, gradient.native.reshape(-1).contiguous())
        flowing.spread = None

    def _take(self, node: Node) -> list[Pair | None]:
        """Takes away the gradients of what an operation writes."""
        births = {slot for slot, _ in node.births}
        taken: list[Pair | None] = []
        for index in results(node) if is_collective(node) else node.outputs:
            ref = None if index is None else self._tape.refs[index]
            flowing = None if ref is None else self._flowing.get(ref[0])
            if ref is None or flowing is None or not floating(ref):
                taken.append(None)
                continue
            self._typed(ref)
            window = flowing.window(ref)
            if ref[0] in births:
                taken.append(window)
            else:
                spread = None if window.spread is None else window.spread.clone()
                taken.append(Pair(window.exact.clone(), window.native.clone(), spread))
                window.exact.zero_()
                window.native.zero_()
                if window.spread is not None:
                    window.spread.zero_()
        for slot in births:
            self._flowing.pop(slot, None)
        return taken

    # -- one operation -------------------------------------------------------------------------------------------------

    def _back(self, op: int, reached: dict[int, set[int]], stopped: list[tuple[int, int]]) -> None:
        node = self._tape.nodes[op]
        if is_view(self._tape, node):
            return
        stops = self._stops.get(op, set())
        names = mutated(resolve(node.op)) if node.op != RESIZE else ()
        if node.op == RESIZE:
            for slot, _ in resized(self._tape, node):
                flowing = self._flowing.pop(slot, None)
                if flowing is not None and bool(flowing.exact.any()):
                    raise UnderivableError("memory is resized on the way of a gradient")
            return
        if WHOLE in stops and names:
            return  # changed without autograd's knowledge: to it, the old value and the new one are the same
        taken = self._take(node)
        if all(each is None for each in taken) or (makes_anew(node) and node.draw is None):
            return
        inside = reached.get(op, set())
        wanted = [n for n, r in enumerate(operands(node)) if n in inside and floating(self._tape.refs[r])]
        if not wanted or node.op.partition(".")[0] in _STEPS:
            return
        if node.draw is not None:
            self._drawn(op, node, taken)
            return
        exact = self._local(op, node, [None if t is None else t.exact for t in taken], wanted, exact=True)
        if WHOLE in stops or all(n in stops for n in wanted):
            stopped += [(op, n) for n, g in zip(wanted, exact, strict=True) if g is not None and bool(g.any())][:1]
            return
        native = self._local(op, node, [None if t is None else t.native for t in taken], wanted, exact=False)
        refs = operands(node)
        for number, g, n in zip(wanted, exact, native, strict=True):
            if g is None or n is None:
                continue
            if number in stops:
                if bool(g.any()):
                    stopped.append((op, number))
                continue
            self._add(self._tape.refs[refs[number]], Pair(g, n, self._spread(op, node, number, taken[0], Pair(g, n))))

    def _spread(self, op: int, node: Node, number: int, taken: Pair | None, made: Pair) -> Tensor | None:
        """The variance of the errors in a weight's gradient; None of what is no weight's, or no product's."""
        if taken is None or self._chance is not None or self._tape.refs[operands(node)[number]][0] not in self._near:
            return None
        if node.op.partition(".")[0] in noise.MOVES:
            found = None if taken.spread is None else taken.spread.reshape(made.exact.shape)
        else:
            operand = _Decoder(self, op, False, frozenset(), [])
            arguments = [operand.decode(each) for each in node.args]
            found = noise.product_variance(node.op, arguments, dict(node.kwargs), taken.sample(), number)
        if found is None:
            return None
        return found + (noise.unit(made.native.dtype) * made.exact).float().square_()

    def _drawn(self, op: int, node: Node, taken: list[Pair | None]) -> None:
        """Of what is drawn at random, only dropout has a gradient."""
        if node.op.partition(".")[0] != "native_dropout" or taken[0] is None or node.outputs[1] is None:
            return
        mask = self._values.at(op + 1, node.outputs[1])
        share = _Decoder(self, op, True, frozenset(), []).decode(node.args[1])
        if mask is None:
            raise UnderivableError("the mask of a dropout is not known")
        scale = 0.0 if share == 1 else 1 / (1 - share)
        ref = self._tape.refs[operands(node)[0]]
        self._add(ref, Pair(taken[0].exact * mask * scale, taken[0].native * mask * scale))

    def _local(
        self, op: int, node: Node, gradients: Sequence[Tensor | None], wanted: Sequence[int], *, exact: bool
    ) -> list[Tensor | None]:
        """Returns the gradients of an operation's operands, given those of its results."""
        overload, leaves = resolve(node.op), list[Tensor]()
        names = [a.name for a in overload._schema.arguments]
        changed = mutated(overload)
        with torch.enable_grad():
            operand = _Decoder(self, op, exact, frozenset(wanted), leaves)
            args = [operand.decode(a, names[n] in changed) for n, a in enumerate(node.args)]
            kwargs = {k: operand.decode(node.kwargs[k], k in changed) for k in sorted(node.kwargs)}
            try:
                only = gradients[0]
                if only is not None and len(gradients) == 1:
                    with torch.no_grad():
                        made = products.gradients(node.op, args, kwargs, only, wanted)
                    if made is not None:
                        return list(made)
                out = overload(*args, **kwargs)
                results = list(out) if isinstance(out, (list, tuple)) else [out]
                pairs = [
                    (r, g) for r, g in zip(results, gradients, strict=True)
                    if g is not None and isinstance(r, Tensor) and r.requires_grad
                ]  # fmt: skip
                if not pairs:
                    return [None] * len(wanted)
                found = torch.autograd.grad(
                    [r for r, _ in pairs], [leaves[n] for n in wanted],
                    [g.to(r.dtype).reshape(r.shape) for r, g in pairs], allow_unused=True,
                )  # fmt: skip
            except UNFIT as error:
                if (given_up := unfinished(error)) is not None:
                    raise given_up from None
                text = (str(error).splitlines() or [""])[0][:120]
                raise UnderivableError(f"operation {op} ({node.op}) has no derivative here: {text}") from None
        detached: list[Tensor | None] = [None if g is None else g.detach() for g in list[Any](found)]
        return detached

    def value(self, op: int, index: int) -> Tensor:
        """What a reference shows before an operation."""
        found = self._values.at(op, index)
        if found is None:
            raise UnderivableError(f"operation {op} reads what is not known")
        return found


@dataclass(slots=True)
class _Decoder:
    """Decodes the operands of one operation; those that are wanted as leaves of a graph.

    Attributes:
        of: Gives values.
        op: The operation.
        exact: Whether in float64.
        wanted: Which tensors, in order of appearance.
        leaves: All tensors so far.
    """

    of: Derivation
    op: int
    exact: bool
    wanted: frozenset[int]
    leaves: list[Tensor]

    def decode(self, value: Any, changed: bool = False) -> Any:
        """Returns what an encoded operand stands for; a copy of what the operation changes."""
        match value:
            case ("t", int(index)):
                found = self.of.value(self.op, index)
                if found.is_floating_point() and self.exact:
                    found = found.double()
                if len(self.leaves) in self.wanted:
                    found = found.detach().requires_grad_()
                self.leaves.append(found)
                return found.clone() if changed else found
            case ("v", int(index)):
                return self.of.numbers[index]
            case ("l", tuple(items)):
                return [self.decode(v, changed) for v in items]
            case ("d", str(name)):
                dtype = DTYPES[name]
                return torch.float64 if self.exact and dtype.is_floating_point else dtype
            case ("s", str(text)):
                return text
            case ("m", str(name)):
                return MEMORY_FORMATS[name]
            case ("dev",):
                return self.of.device
            case ("lay",):
                return torch.strided
        return value


def _apart(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether a tensor's elements lie at different places."""
    reach = 0
    for step, count in sorted((s, n) for s, n in zip(stride, size, strict=True) if n > 1):
        if step <= reach:
            return False
        reach += step * (count - 1)
    return True
