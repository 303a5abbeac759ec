import math
from collections import Counter, OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prover.capture import plain_values
from weighbridge.core.bounded import decode_cbor
from weighbridge.core.digests import cbor

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3),
)


@given(VALUES)
def test_plain_values_survive_being_written(value: object) -> None:
    """merge(fresh, decode(encode(reduce(v)))) == v, whatever the fresh object held."""
    stored = decode_cbor(cbor({"value": plain_values.reduce(value)}), max_depth=64)["value"]
    assert plain_values.merge(None, stored) == value
    assert plain_values.merge(value, stored) == value


def test_what_is_not_plain_stays_with_the_fresh_object() -> None:
    keep = object()
    old = {"lr": 0.5, "betas": (0.9, 0.99), "decay": keep, "steps": Counter({3: 1}), "big": 2**70, "best": math.inf}
    stored = plain_values.reduce(old)
    assert stored == {"lr": 0.5, "betas": [0.9, 0.99], "steps": {"numbered": [[3, 1]]}, "best": math.inf}
    fresh = {"lr": 1.0, "betas": (0.5, 0.5), "decay": keep, "steps": Counter(), "big": 2**71, "gone": 1}
    merged = plain_values.merge(fresh, stored)
    assert merged == {
        "lr": 0.5, "betas": (0.9, 0.99), "decay": keep, "steps": Counter({3: 1}), "big": 2**71, "best": math.inf,
    }  # fmt: skip
    assert type(merged["steps"]) is Counter
    assert type(merged["betas"]) is tuple


@pytest.mark.parametrize("value", [object(), [object()], 2**64])
def test_a_lone_value_that_is_not_plain_is_nothing(value: object) -> None:
    assert plain_values.reduce(value) is None


def test_order_and_type_of_dictionaries_are_the_fresh_ones() -> None:
    assert type(plain_values.merge(OrderedDict(a=1), {"a": 2})) is OrderedDict


TENSORS = st.integers(0, 9).map(torch.tensor)


@given(st.recursive(SCALARS | TENSORS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner)))
def test_tensors_in_containers_survive_being_written(value: object) -> None:
    """unmarked(merge(None, decode(encode(reduce(marked(v, name))))), tensors(v, name)) == v for any container v."""
    value = [value]
    found: dict[str, torch.Tensor] = {}
    plain_values.tensors(value, "state", found)
    stored = decode_cbor(cbor({"value": plain_values.reduce(plain_values.marked(value, "state"))}), max_depth=64)[
        "value"
    ]
    assert plain_values.unmarked(plain_values.merge(None, stored), found) == value
