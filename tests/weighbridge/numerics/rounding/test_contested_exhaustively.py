"""The contested-element scheme in all three types, at the places where each rounds in a special way.

For the exact value v and a bound e, two conforming devices have any x and y within e of v. Whatever the log then goes
through, the second ends with the bits of the first; and whatever a hostile log says, the result stays where a
conforming device could have it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from weighbridge.numerics.rounding import contested, formats, narrow, rounding_log
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.rounding.contested import Rounded
from weighbridge.numerics.rounding.rounding_log import OpEntries


@dataclass(frozen=True)
class Type:
    """A type that results are rounded to.

    Attributes:
        dtype: The type.
        wide: What it is computed in.
        integer: An integer type of its size.
        fraction: Bits of its fraction.
        top: Bit pattern of infinity.
        slack: What evaluating a bound may add to 2e.
    """

    dtype: torch.dtype
    wide: torch.dtype
    integer: torch.dtype
    fraction: int
    top: int
    slack: float

    def value(self, pattern: int) -> float:
        """The value of an ordered integer; infinity counts as the next value after the largest one."""
        size = abs(pattern)
        if size >= self.top:
            last = self.value(self.top - 1)
            found = last + (last - self.value(self.top - 2))
        else:
            found = float(torch.tensor(size, dtype=torch.int64).to(self.integer).view(self.dtype).double())
        return -found if pattern < 0 else found

    def record(self, x: torch.Tensor, bound: Bound) -> Rounded:
        """Rounds and logs."""
        if self.dtype is torch.float32:
            return contested.record(x, bound, 0, 0)
        return narrow.record(x, bound, self.dtype, 0, 0)

    def follow(self, y: torch.Tensor, bound: Bound, entries: OpEntries | None) -> Rounded:
        """Rounds and follows."""
        if self.dtype is torch.float32:
            return contested.follow(y, bound, entries)
        return narrow.follow(y, bound, self.dtype, entries)

    def checksum(self, out: torch.Tensor) -> int:
        """The checksum of a flat result, from its bits alone."""
        return formats.checksum(out)

    def ordered(self, out: torch.Tensor) -> list[int]:
        """Ordered integers of a flat result."""
        most = (1 << 31) - 1 if self.dtype is torch.float32 else (1 << 15) - 1
        return [-(w & most) if w < 0 else w for w in out.view(self.integer).to(torch.int64).tolist()]


TYPES = [
    Type(torch.float32, torch.float64, torch.int32, 23, 0x7F800000, 2.0**-20),
    Type(torch.bfloat16, torch.float32, torch.int16, 7, 0x7F80, 2.0**-8),
    Type(torch.float16, torch.float32, torch.int16, 10, 0x7C00, 2.0**-8),
]

types = st.sampled_from(TYPES)
places = st.sampled_from([-1.0, -0.999, -0.5, 0.0, 0.25, 0.999, 1.0])
spread = st.sampled_from([0.0, 2.0**-30, 2.0**-12, 0.1, 0.25, 0.49, 0.5, 0.51, 1.0, 3.0, 100.0, 3000.0])


@st.composite
def patterns(draw: st.DrawFn, kind: Type) -> int:
    """An ordered integer: zero, subnormals, ends of binades, the largest values, or any."""
    binade = 1 << kind.fraction
    size = draw(
        st.sampled_from([0, 1, 2, binade - 1, binade, binade + 1, kind.top - 2, kind.top - 1])
        | st.integers(1, kind.top // binade - 1).map(lambda exponent: exponent * binade)
        | st.integers(0, kind.top - 1)
    )
    return size * draw(st.sampled_from([1, -1]))


@st.composite
def elements(draw: st.DrawFn) -> tuple[Type, list[tuple[float, float, float, float]]]:
    """A type, and (exact value, bound, place of x, place of y in the bound) of some elements."""
    kind = draw(types)
    found = []
    for _ in range(draw(st.integers(1, 20))):
        pattern = draw(patterns(kind))
        low, high = kind.value(pattern), kind.value(pattern + 1)
        between = draw(st.sampled_from([0.0, 0.5, 0.5 + 2.0**-12, 0.5 - 2.0**-12, 0.25, 0.75]))
        e = min((high - low) * draw(spread), 2.0**126)  # a bound that is not finite itself is another case
        found.append((low + between * (high - low), e, draw(places), draw(places)))
    return kind, found


def within(kind: Type, drawn: list[tuple[float, float, float, float]], which: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Wide values of a device, none farther from the exact value than the bound; and the bounds."""
    v, e = (np.array([d[i] for d in drawn]) for i in (0, 1))
    wide = np.float64 if kind.wide is torch.float64 else np.float32
    with np.errstate(over="ignore"):
        x = (v + np.array([d[which] for d in drawn]) * e).astype(wide)
        for _ in range(3):  # the sum was rounded outward
            x = np.where(np.abs(x.astype(np.float64) - v) > e, np.nextafter(x, v.astype(wide)), x)
    x = np.where(np.abs(x.astype(np.float64) - v) > e, np.nan, x)
    return torch.from_numpy(x), torch.from_numpy(e).to(kind.wide)


@settings(max_examples=500)
@given(elements())
@example((TYPES[2], [(65520.0, 32.0 * w, a, -a) for w in (0.25, 0.5, 1.0, 100.0) for a in (-1.0, 1.0)]))
@example((TYPES[1], [(0.0, 2.0**-133 * w, a, -a) for w in (0.5, 1.0, 3.0) for a in (-1.0, 1.0)]))
@example((TYPES[2], [(2.0**-25 * k, 2.0**-25, a, -a) for k in (-3, -1, 0, 1, 3) for a in (-1.0, 1.0)]))
def test_a_conforming_replayer_ends_with_the_recorders_bits(
    drawn: tuple[Type, list[tuple[float, float, float, float]]],
) -> None:
    """For |x - v| <= e and |y - v| <= e: follow(y, decode(encode(record(x)))) == record(x), bits and checksum."""
    kind, cases = drawn
    x, e = within(kind, cases, 2)
    y, _ = within(kind, cases, 3)
    keep = torch.isfinite(x) & torch.isfinite(y)  # a bound may be too small to hold any wide value beside v
    x, y, e = x[keep], y[keep], e[keep]
    bound = Bound(factors=(e,))
    recorded = kind.record(x, bound)
    entries = None
    if recorded.entries is not None:
        (entries,) = rounding_log.decode(rounding_log.encode([recorded.entries]), max_entries=1000)
    followed = kind.follow(y, bound, entries)
    assert followed.inadmissible == 0
    assert torch.equal(followed.out.view(kind.integer), recorded.out.view(kind.integer))
    assert followed.checksum == recorded.checksum == kind.checksum(recorded.out)


@settings(max_examples=500)
@given(types.flatmap(lambda kind: st.tuples(st.just(kind), patterns(kind))), spread, st.integers(0, 255),
       st.integers(0, 2**64 - 1) | st.integers(0, 2**17))  # fmt: skip
def test_no_hostile_entry_leads_out_of_the_bound(place: tuple[Type, int], ulps: float, width: int, bits: int) -> None:
    """Every entry gives the replayer's own rounding, or a value between round(y - 2e) and round(y + 2e)."""
    kind, pattern = place
    value = kind.value(pattern)
    e = (kind.value(pattern + 1) - value) * ulps
    y = torch.tensor([value], dtype=kind.wide)
    entries = OpEntries(0, 0, np.array([0]), np.array([width], dtype=np.uint8), np.array([bits], dtype=np.uint64))
    followed = kind.follow(y, Bound(absolute=e), entries)
    reach = 2 * e * (1 + 2 * kind.slack)
    ends = torch.tensor([value - reach, value + reach], dtype=torch.float64).to(kind.wide).to(kind.dtype)
    low, high = kind.ordered(ends)
    (result,) = kind.ordered(followed.out)
    assert low <= result <= high
    assert followed.checksum == kind.checksum(followed.out)
    own = kind.follow(y, Bound(absolute=e), None).out
    if followed.inadmissible:
        assert torch.equal(followed.out.view(kind.integer), own.view(kind.integer))
    else:
        assert width > 0


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: str(kind.dtype))
def test_infinity_is_the_neighbour_of_the_largest_value(kind: Type) -> None:
    """Half way past the largest value, one device overflows and the other does not."""
    last = kind.value(kind.top - 1)
    step = last - kind.value(kind.top - 2)
    bound = Bound(absolute=step / 16)
    x, y = (torch.tensor([last + step / 2 + side * step / 32], dtype=kind.wide) for side in (1, -1))
    for recorder, replayer, infinite in ((x, y, True), (y, x, False)):
        recorded = kind.record(recorder, bound)
        assert bool(torch.isinf(recorded.out).item()) == infinite
        assert recorded.entries is not None
        assert recorded.entries.widths.tolist() == [1]
        followed = kind.follow(replayer, bound, recorded.entries)
        assert (followed.followed, followed.inadmissible, followed.checksum) == (1, 0, recorded.checksum)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: str(kind.dtype))
def test_a_zero_beside_the_least_value_has_no_sign(kind: Type) -> None:
    tiny = kind.value(1)
    bound = Bound(absolute=tiny / 8)
    x, y = (
        torch.tensor([-tiny / 2 - tiny / 16], dtype=kind.wide),
        torch.tensor([-tiny / 2 + tiny / 16], dtype=kind.wide),
    )
    recorded, other = kind.record(x, bound), kind.record(y, bound)
    assert kind.ordered(recorded.out) == [-1]
    assert other.out.view(kind.integer).tolist() == [0], "not -0"
    assert kind.follow(y, bound, recorded.entries).checksum == recorded.checksum
    assert kind.follow(x, bound, other.entries).checksum == other.checksum
