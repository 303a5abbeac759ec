"""Groups of chips, and every way in which a run may be spread over them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

Groups = list[tuple[int, int, float]]
"""Of each group: chips, drawn ones, and how likely a drawn chip at work shows the run."""

GROUPS = st.lists(
    st.integers(1, 7).flatmap(
        lambda chips: st.tuples(st.just(chips), st.integers(0, chips), st.sampled_from([0.0, 0.3, 0.9, 1.0]))
    ),
    min_size=1,
    max_size=3,
)


def spreads(groups: Groups, speeds: list[float], needed: float) -> Iterator[tuple[int, ...]]:
    """Yields each number of chips at work in every group that does at least `needed`."""
    for spread in itertools.product(*(range(chips + 1) for chips, _, _ in groups)):
        if np.dot(spread, speeds) >= needed - 1e-9:
            yield spread
