"""What the Prover claims about the training on its tapes: `claims.cbor`.

A tape says which operations ran. It does not say of what a gradient was taken, where it stops (`detach` names the
memory of its source), or what a parameter is. The Recorder knows, and writes it down outside of every digest but the
file's. No claim is believed: recognition (`weighbridge.execution.recognition`) derives the gradient under these claims,
and accepts what the recorded numbers confirm. A false claim makes a run unrecognised. See docs/formats/transcript.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import DIGEST_SIZE, cbor
from weighbridge.core.errors import FormatError

CLAIMS = "claims.cbor"
"""Name of the file."""

MOST = 64
"""Tapes of one transcript about which something is claimed."""

MAX_ITEMS = 1 << 21

Scalar = float | int | bool | None


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradient of one leaf, after one backward pass. All are indices into the tape's references.

    Attributes:
        leaf: The parameter.
        before: Where its gradient was before, to which this pass added; None if there was none.
        after: Where its gradient is.
    """

    leaf: int
    before: int | None
    after: int


@dataclass(frozen=True, slots=True)
class Backward:
    """One backward pass.

    Attributes:
        begin: Its first operation.
        end: The one after its last.
        losses: References of what it was called on.
        seeds: For each, the reference of the gradient that it begins with; None for ones.
        gradients: What it accumulated.
        again: Whether it can be differentiated again (`create_graph`), or returned gradients without accumulating them.
    """

    begin: int
    end: int
    losses: tuple[int, ...]
    seeds: tuple[int | None, ...]
    gradients: tuple[Gradient, ...]
    again: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an optimizer.

    Attributes:
        ref: The parameter.
        gradient: The gradient that the optimizer reads; None if there is none.
        state: Name to reference of the optimizer's tensors for it, as they are afterwards.
        fresh: Whether the optimizer made them in this step.
    """

    ref: int
    gradient: int | None
    state: Mapping[str, int]
    fresh: bool


@dataclass(frozen=True, slots=True)
class Group:
    """A parameter group: its numbers, by name, and its parameters."""

    numbers: Mapping[str, Scalar | tuple[Scalar, ...]]
    parameters: tuple[Parameter, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an optimizer.

    Attributes:
        begin: Its first operation.
        end: The one after its last.
        optimizer: Name of its class.
        groups: Its groups.
    """

    begin: int
    end: int
    optimizer: str
    groups: tuple[Group, ...]


@dataclass(frozen=True, slots=True)
class Claims:
    """What is claimed of one tape.

    Attributes:
        backwards: Backward passes, in order.
        steps: Steps of optimizers, in order.
        stops: (operation, number of the tensor among its operands): it takes this operand without a gradient. -1 stands
            for all of them, and an operation outside of autograd.
    """

    backwards: tuple[Backward, ...] = ()
    steps: tuple[Step, ...] = ()
    stops: tuple[tuple[int, int], ...] = ()

    def ranges(self) -> list[tuple[int, int]]:
        """The operations that are no part of a forward pass, as [begin, end)."""
        return [*((b.begin, b.end) for b in self.backwards), *((s.begin, s.end) for s in self.steps)]


def encode(claims: Mapping[bytes, Claims]) -> bytes:
    """Returns the bytes of the file."""
    return cbor([[digest, _plain(claims[digest])] for digest in sorted(claims)])


def _plain(claims: Claims) -> list[Any]:
    backwards = [
        [b.begin, b.end, b.losses, b.seeds, [[g.leaf, g.before, g.after] for g in b.gradients], b.again]
        for b in claims.backwards
    ]
    steps = [
        [
            s.begin,
            s.end,
            s.optimizer,
            [[dict(g.numbers), [[p.ref, p.gradient, dict(p.state), p.fresh] for p in g.parameters]] for g in s.groups],
        ]
        for s in claims.steps
    ]
    return [backwards, steps, claims.stops]


def decode(data: bytes) -> dict[bytes, Claims]:
    """Reads what `encode` wrote.

    Raises:
        FormatError: The bytes do not follow the format.
    """
    raw = decode_cbor(data, max_items=MAX_ITEMS)
    try:
        if type(raw) is not list or len(raw) > MOST:
            raise ValueError("tapes")
        found = {_digest(digest): _claims(each) for digest, each in raw}
        if len(found) != len(raw) or encode(found) != data:
            raise ValueError("order")
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise FormatError(f"{CLAIMS} does not follow its format ({str(error)[:80]}); fetch it again") from None
    return found


def _claims(raw: Any) -> Claims:
    backwards, steps, stops = raw
    return Claims(
        tuple(_backward(*each) for each in backwards),
        tuple(_step(*each) for each in steps),
        tuple((_natural(op), -1 if operand == -1 else _natural(operand)) for op, operand in stops),
    )


def _backward(begin: Any, end: Any, losses: Any, seeds: Any, gradients: Any, again: Any) -> Backward:
    found = tuple(_natural(each) for each in losses)
    if len(seeds) != len(found) or type(again) is not bool:
        raise ValueError("a backward pass")
    given = tuple(_optional(each) for each in seeds)
    each = tuple(Gradient(_natural(leaf), _optional(before), _natural(after)) for leaf, before, after in gradients)
    return Backward(*_range(begin, end), found, given, each, again)


def _step(begin: Any, end: Any, optimizer: Any, groups: Any) -> Step:
    return Step(*_range(begin, end), _name(optimizer), tuple(_group(*each) for each in groups))


def _group(numbers: Any, parameters: Any) -> Group:
    return Group(
        {_name(key): _number(value) for key, value in numbers.items()}, tuple(_parameter(*each) for each in parameters)
    )


def _parameter(ref: Any, gradient: Any, state: Any, fresh: Any) -> Parameter:
    if type(fresh) is not bool:
        raise ValueError("a parameter")
    return Parameter(
        _natural(ref), _optional(gradient), {_name(key): _natural(value) for key, value in state.items()}, fresh
    )


def _number(raw: Any) -> Scalar | tuple[Scalar, ...]:
    if type(raw) is list and len(raw) <= 8:
        return tuple(_scalar(each) for each in raw)
    return _scalar(raw)


def _scalar(raw: Any) -> Scalar:
    if raw is None or type(raw) is bool or (type(raw) is int and abs(raw) < 1 << 53):
        return raw
    if type(raw) is float and math.isfinite(raw):
        return raw
    raise ValueError("a number")


def _range(begin: Any, end: Any) -> tuple[int, int]:
    if not _natural(begin) <= _natural(end):
        raise ValueError("a range")
    return begin, end


def _natural(raw: Any) -> int:
    if type(raw) is not int or not 0 <= raw < 1 << 40:
        raise ValueError("a natural number")
    return raw


def _optional(raw: Any) -> int | None:
    return None if raw is None else _natural(raw)


def _name(raw: Any) -> str:
    if type(raw) is not str or not 0 < len(raw) <= 80 or not raw.isprintable():
        raise ValueError("a name")
    return raw


def _digest(raw: Any) -> bytes:
    if type(raw) is not bytes or len(raw) != DIGEST_SIZE:
        raise ValueError("a digest")
    return raw
