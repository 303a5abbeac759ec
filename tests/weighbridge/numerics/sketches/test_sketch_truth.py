"""What a machine takes for its own candidates, and sketches of results that two machines computed otherwise."""

from __future__ import annotations

import pytest
import torch

from weighbridge.numerics.rounding import narrow
from weighbridge.numerics.rounding.bound import Bound
from weighbridge.numerics.sketches import codec
from weighbridge.numerics.sketches.candidates import candidates, ordered, unordered

BOUND = Bound(rel=2.0**-22, absolute=2.0**-22)


def two_machines(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Results of two machines, each within the bound of an exact one; every hundredth is next to zero."""
    generator = torch.Generator().manual_seed(seed)
    exact = torch.randn(40, 500, generator=generator, dtype=torch.float64)
    exact[:, ::100] *= 2.0**-21
    limit = BOUND.rel * exact.abs() + BOUND.absolute
    one, other = (
        (exact + limit * (2 * torch.rand(exact.shape, generator=generator, dtype=torch.float64) - 1)).float()
        for _ in range(2)
    )
    return one, other


def test_integers_are_ordered_as_the_values_are() -> None:
    values = torch.tensor([-torch.inf, -3.0, -1e-39, 0.0, 1e-39, 2.0, torch.inf], dtype=torch.bfloat16)
    integers = ordered(values)
    assert (integers[1:] > integers[:-1]).all()
    assert torch.equal(unordered(integers, torch.bfloat16), values)


@pytest.mark.parametrize("seed", range(5))
def test_a_machine_comes_to_what_another_one_recorded(seed: int) -> None:
    theirs, ours = two_machines(seed)
    recorded, own = narrow.round_plain(theirs, torch.bfloat16)[0], narrow.round_plain(ours, torch.bfloat16)[0]
    differing = int((ordered(recorded) != ordered(own)).sum())
    far = int((abs(ordered(recorded).astype(int) - ordered(own)) > 1).sum())
    assert differing > far > 10
    mine = candidates(ours, BOUND, own)
    sketch = codec.make(ordered(recorded), codec.Capacity(differing, differing))
    at, values = codec.recover(sketch, ordered(own), mine.positions, mine.low, mine.high, mine.up)
    own.view(-1)[torch.from_numpy(at)] = unordered(values, torch.bfloat16)
    assert len(at) == differing
    assert torch.equal(own, recorded)


def test_what_lies_beyond_the_bound_is_no_answer() -> None:
    theirs, ours = two_machines(7)
    theirs[3, 77] = ours[3, 77] * 1.01  # two or three bfloat16 values away
    recorded, own = narrow.round_plain(theirs, torch.bfloat16)[0], narrow.round_plain(ours, torch.bfloat16)[0]
    mine = candidates(ours, BOUND, own)
    sketch = codec.make(ordered(recorded), codec.Capacity(500, 500))
    with pytest.raises(codec.FailedError, match="contested"):
        codec.recover(sketch, ordered(own), mine.positions, mine.low, mine.high, mine.up)
