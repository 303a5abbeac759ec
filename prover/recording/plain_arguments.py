"""What the arguments of a step have beside tensors, as something that can be compared.

A program has the numbers in it that its calls were given, so a call with another number is another structure. Which
argument that was is what a message has to say: numbers know their place.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from inspect import Parameter, signature
from typing import Any

import torch

from prover.capture.generators import address_of
from prover.recording.structure import NotPlainError

_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class Number:
    """A number in the arguments; two are one if they are of one type and have the same bits.

    Attributes:
        kind: Its type.
        value: The number, or the bits of a float: two zeros are equal, and no NaN is.
        place: How the function names it.
    """

    kind: type
    value: int | bytes
    place: str = field(compare=False)


def names_of(function: Callable[..., Any]) -> list[str]:
    """Returns the names of a function's positional parameters, `*name` if the last one takes all others."""
    try:
        parameters = signature(function).parameters.values()
    except (TypeError, ValueError):  # of some that are written in C nothing is known
        return []
    kinds = {Parameter.POSITIONAL_ONLY: "", Parameter.POSITIONAL_OR_KEYWORD: "", Parameter.VAR_POSITIONAL: "*"}
    return [kinds[each.kind] + each.name for each in parameters if each.kind in kinds]


def without_tensors(
    args: tuple[Any, ...], names: Sequence[str] = (), generators: list[torch.Generator] | None = None
) -> list[Any]:
    """Returns what a call's arguments have beside tensors, in order.

    Args:
        args: The arguments.
        names: What the function calls them, as `names_of` has it.
        generators: PyTorch's generators that are reached otherwise; those in the arguments are appended. One in the
            arguments is compared by which of these it is, so that each call may be given another.

    Raises:
        NotPlainError: Something in them cannot be compared.
    """
    reached = [] if generators is None else generators
    return [len(args), *(part for at, value in enumerate(args) for part in _parts(value, _name(names, at), reached))]


def numbers_apart(one: Sequence[Any], other: Sequence[Any]) -> list[int] | None:
    """Returns where two such lists differ, if they do in numbers only; else None."""
    if len(one) != len(other):
        return None
    at = [index for index, (mine, yours) in enumerate(zip(one, other, strict=True)) if mine != yours]
    return at if all(isinstance(each[index], Number) for index in at for each in (one, other)) else None


def _name(names: Sequence[str], at: int) -> str:
    if at < len(names) and not names[at].startswith("*"):
        return names[at]
    if names and names[-1].startswith("*"):
        return f"{names[-1][1:]}[{at - len(names) + 1}]"
    return f"number {at}"


def _parts(value: Any, place: str, reached: list[torch.Generator], depth: int = 0) -> Iterator[Any]:
    kind = type(value)
    if depth > _DEEPEST:
        raise NotPlainError(f"its argument {place} is nested deeper than {_DEEPEST} levels")
    if isinstance(value, torch.Tensor):
        yield from (kind, value.is_inference(), value.is_conj(), value.is_neg())
        yield from _attributes(value, place, reached, depth)
    elif kind is torch.Generator:
        known = [address_of(each) for each in reached]
        if address_of(value) not in known:
            reached.append(value)
            known.append(address_of(value))
        yield from (kind, known.index(address_of(value)))
    elif kind is float:
        yield Number(kind, struct.pack("<d", value), place)
    elif kind is int:
        yield Number(kind, value, place)
    elif value is None or kind in (bool, str, bytes, torch.dtype, torch.device):
        yield from (kind, value)
    elif hasattr(value, "keys") and hasattr(value, "__getitem__"):
        items = {key: value[key] for key in value.keys()}  # noqa: SIM118
        yield from _inner(kind, items, place, "{}[{!r}]", reached, depth)
        yield from _attributes(value, place, reached, depth)
    elif isinstance(value, (list, tuple)):
        yield from _inner(kind, dict(enumerate(value)), place, "{}[{!r}]", reached, depth)
        yield from _attributes(value, place, reached, depth)
    elif is_dataclass(value) and not isinstance(value, type):
        named = {each.name: getattr(value, each.name) for each in fields(value)}
        yield from _inner(kind, {**named, **getattr(value, "__dict__", {})}, place, "{}.{}", reached, depth)
    else:
        raise NotPlainError(f"its argument {place} is a {kind.__qualname__} of {kind.__module__}")


def _inner(
    kind: type, parts: dict[Any, Any], place: str, how: str, reached: list[torch.Generator], depth: int
) -> Iterator[Any]:
    yield from (kind, len(parts))
    for key, value in parts.items():
        yield from (type(key), key)
        yield from _parts(value, how.format(place, key), reached, depth + 1)


def _attributes(value: Any, place: str, reached: list[torch.Generator], depth: int) -> Iterator[Any]:
    """Yields what an object holds beside its items, which a function may read too.

    What is private and cannot be compared is left out, such as a tokenizer's own notes beside its tensors.
    """
    for name, each in {**_slots(value), **getattr(value, "__dict__", {})}.items():
        try:
            parts = list(_parts(each, f"{place}.{name}", reached, depth + 1))
        except NotPlainError:
            if not name.startswith("_"):
                raise
        else:
            yield from (str, name, *parts)


def _slots(value: Any) -> dict[str, Any]:
    slots = (kind.__dict__.get("__slots__", ()) for kind in type(value).__mro__)
    names = [name for each in slots for name in ([each] if isinstance(each, str) else each)]
    return {name: getattr(value, name) for name in names if not name.startswith("__") and hasattr(value, name)}
