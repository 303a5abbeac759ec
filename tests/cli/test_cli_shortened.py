"""Identifiers that users shorten."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weighbridge.cli._shortened import resolve, resolve_chip
from weighbridge.core.errors import UsageError

identifiers = st.lists(st.text("01a", min_size=1, max_size=5), min_size=1, max_size=20, unique=True)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(identifiers, st.data())
def test_what_only_one_begins_with_is_that_one_and_all_else_is_refused(known: list[str], data: st.DataObject) -> None:
    chosen = data.draw(st.sampled_from(known))
    given_ = chosen[: data.draw(st.integers(1, len(chosen)))]
    fitting = [each for each in known if each.startswith(given_)]
    if given_ in known or len(fitting) == 1:
        assert resolve(given_, known, "thing", "look") == (given_ if given_ in known else chosen)
    else:
        with pytest.raises(UsageError) as refused:
            resolve(given_, known, "thing", "look")
        assert all(each in str(refused.value) for each in fitting[:8])


def test_names_of_chips_go_before_beginnings_of_ueids() -> None:
    known = {"01aa": "", "01ab": "gpu-0", "02ff": "twin", "03ff": "twin", "04ff": "01"}
    assert resolve_chip("gpu-0", known, "look") == "01ab"
    assert resolve_chip("01", known, "look") == "04ff"
    assert resolve_chip("01A", {"01ab": ""}, "look") == "01ab"
    with pytest.raises(UsageError, match="02ff, 03ff"):
        resolve_chip("twin", known, "look")
    for nothing in ("", "gpu", "05"):
        with pytest.raises(UsageError, match="there is no chip"):
            resolve_chip(nothing, known, "look")
