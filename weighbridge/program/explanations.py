"""What the formulas and host values of one step explain: which of them give a value, and how far from it they are.

A value *is* what a candidate gives if both have the same bits, in the type that holds the value. A value that a program
computed itself, in another order or with another libm, may lie a few units in the last place beside it; which of those
it is was open to the Prover, so that counts as bits. The Recorder puts a formula's own value in the place of such a
one before it executes the operation (`prover.capture.substitution`), and the Verifier counts what it finds
(`weighbridge.program.origins`). Both ask here.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

import torch

from weighbridge.transcript.formula_arithmetic import Number, tolerance
from weighbridge.transcript.formula_terms import Formulas
from weighbridge.transcript.steps import Scalar

Candidate = tuple[str, int]
"""A formula's name (or `host`, `-host`) and which host value it begins at, -1 if it needs none."""

HOSTS = ("host", "-host")
"""Candidates that are no formulas."""

_DOUBLE, _INTEGER = struct.Struct("<d"), struct.Struct("<Q")
_EPS = torch.finfo(torch.float64).eps


def pattern(value: float, dtype: torch.dtype = torch.float64) -> int:
    """Returns the bits of a number in a type of floats, those of every NaN being those of the canonical one."""
    if value != value:
        value = math.nan
    if dtype is torch.float64:
        bits: int = _INTEGER.unpack(_DOUBLE.pack(value))[0]
        return bits
    raw = bytes(torch.tensor([value], dtype=dtype).view(torch.uint8).tolist())
    return int.from_bytes(raw, "little")


def element(bits: int, dtype: torch.dtype) -> float:
    """Returns the number that some bits are in a type of floats."""
    raw = bytearray(bits.to_bytes(dtype.itemsize, "little"))
    return float(torch.frombuffer(raw, dtype=dtype)[0].item())


@cache
def _fits(dtype: torch.dtype) -> tuple[float, float]:
    """Relative precision of a type, beyond float64's, and its least positive number."""
    info = torch.finfo(dtype)
    return (0.0, 5e-324) if dtype is torch.float64 else (info.eps, info.smallest_normal * info.eps)


def _count(formula: Number, dtype: torch.dtype) -> float:
    """Returns how many numbers of a type lie within the tolerance of a formula's value, at least 2."""
    precision, least = _fits(dtype)
    most = tolerance(formula, precision)
    gap = math.ulp(max(abs(formula[0]) - most, 0.0)) * (torch.finfo(dtype).eps / _EPS)
    return 2 * most / max(gap, least) + 2


def distance(value: Scalar, given: Number, dtype: torch.dtype | None = None) -> float | None:
    """Says whether a number is what a candidate gives.

    Args:
        value: The number; a float tensor's element as `pattern` returns it.
        given: What the candidate gives, and how far a program may be from it.
        dtype: The tensor's type; None for an operand, which is a float, an integer or a boolean.

    Returns:
        0 if it is; log2 of how many numbers lie as near if it only may be; None if it is not.
    """
    expected = given[0]
    if dtype is None and type(value) is float:
        dtype, bits = torch.float64, pattern(value)
    elif dtype is not None and dtype.is_floating_point:
        bits = int(value)
    else:  # integers and booleans are what they are
        return 0.0 if value == expected else None
    if pattern(expected, dtype) == bits:
        return 0.0
    number = value if type(value) is float else element(bits, dtype)
    if not math.isfinite(number) or abs(number - expected) > tolerance(given, _fits(dtype)[0]):
        return None
    if number == expected:
        return None  # zeros of different sign: no rounding makes one of the other
    return min(8.0 * dtype.itemsize, math.log2(_count(given, dtype)))


class Near(NamedTuple):
    """Which candidates give a value.

    Attributes:
        candidates: All of them.
        apart: Of those that do not give its very bits, log2 of how many numbers are as near.
    """

    candidates: frozenset[Candidate]
    apart: Mapping[Candidate, float]


class Explanations:
    """What formulas and host values give in one step, computed when asked for.

    Host values may be added to `hosts` while a step goes on.
    """

    def __init__(self, formulas: Formulas, t: int, hosts: Sequence[Scalar], counts: Sequence[int] = ()) -> None:
        """Prepares for a step.

        Args:
            formulas: The declared ones.
            t: How many steps of kind `step` there were, this one included.
            hosts: The step's host values.
            counts: How far the step's schedules are.
        """
        self._formulas, self._t, self._hosts, self._counts = formulas, t, hosts, counts
        self._names = {hosts: [f.name for f in formulas.items.values() if f.hosts is hosts] for hosts in (False, True)}
        self._known: dict[tuple[str, tuple[int, ...]], Number] = {}
        self._near: dict[object, Near] = {}
        self._latest: dict[int, int] = {}
        self._seen = 0

    def all(self) -> frozenset[Candidate]:
        """Returns every candidate that this step has so far."""
        return self._candidates((*self._names[True], *HOSTS), range(len(self._hosts)))

    def recent(self, most: int) -> frozenset[Candidate]:
        """Returns the formulas that this step has so far: of `most` last different host values and of the last pair."""
        if not self._names[True]:
            return self._candidates((), ())
        self._look()
        last = set(itertools.islice(reversed(self._latest.values()), most))
        return self._candidates(self._names[True], last | {self._seen - 2} if self._seen > 1 else last)

    def read(self, bits: int) -> bool:
        """Whether one of the host values so far, or its negative, has these bits as a float64."""
        self._look()
        return bits in self._latest or bits ^ 1 << 63 in self._latest

    def _candidates(self, names: Iterable[str], indices: Iterable[int]) -> frozenset[Candidate]:
        alone = [(name, -1) for name in self._names[False]]
        return frozenset([*alone, *((name, index) for index in indices for name in names)])

    def _look(self) -> None:
        for index in range(self._seen, len(self._hosts)):
            host = pattern(self._hosts[index])
            self._latest.pop(host, None)  # so that the last ones stand at the end
            self._latest[host] = index
        self._seen = len(self._hosts)

    def _patterns(self, index: int) -> tuple[int, ...]:
        return tuple([pattern(host) for host in self._hosts[index : index + 2]]) if index >= 0 else ()

    def gives(self, candidate: Candidate) -> Number:
        """Returns what a candidate gives and how far a program may be from it; (nan, 0) if a formula has no value."""
        name, index = candidate
        if name in HOSTS:
            host = self._hosts[index]
            return (host if name == "host" else -host), 0.0
        key = name, self._patterns(index)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._formulas.evaluate(name, self._t, self._hosts, max(index, 0), self._counts)
        return found

    def near(self, value: Scalar, left: frozenset[Candidate] | None = None, dtype: torch.dtype | None = None) -> Near:
        """Returns the candidates that give a value.

        Args:
            value: As for `distance`.
            left: Those that are asked; None for all.
            dtype: As for `distance`.
        """
        bits = pattern(value) if type(value) is float else value
        key = type(value), bits, left, dtype, left is None and len(self._hosts)
        found = self._near.get(key)
        if found is None:
            distances = {each: self._distance(each, value, dtype) for each in (self.all() if left is None else left)}
            known = {candidate: apart for candidate, apart in distances.items() if apart is not None}
            found = Near(frozenset(known), {candidate: apart for candidate, apart in known.items() if apart})
            self._near[key] = found
        return found

    def _distance(self, candidate: Candidate, value: Scalar, dtype: torch.dtype | None) -> float | None:
        name, index = candidate
        if index >= len(self._hosts):
            return None
        given = self.gives(candidate)
        if name in HOSTS:  # a program has them without computing anything
            return 0.0 if distance(value, given, dtype) == 0.0 else None
        return None if math.isnan(given[0]) else distance(value, given, dtype)
