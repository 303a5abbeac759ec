"""Cells of CSV files: none is executed by a spreadsheet, numbers stay numbers, and every text comes back."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weighbridge.core.spreadsheet_cells import meant, shown

EXECUTED = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
TEXTS = st.text() | st.builds("{}{}".format, st.text(f"{EXECUTED}'", max_size=4), st.text(max_size=8))


@given(TEXTS)
@example('=HYPERLINK("https://example.org/"&A2,"kiel")')
@example("'=1+1")
@example("''")
def test_no_text_is_executed_and_every_text_comes_back(text: str) -> None:
    """Laws: meant(shown(x)) == x, and shown(x) begins with nothing that is executed unless it is a number."""
    cell = shown(text)
    assert meant(cell) == text
    if cell and cell[0] in EXECUTED:
        assert float(cell) == float(text)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_numbers_stay_numbers(number: float) -> None:
    assert shown(repr(number)) == repr(number)
    assert meant(repr(number)) == repr(number)


@pytest.mark.parametrize("text", ["kiel-2", "d'Alembert", "'quoted'", "", "WB-1", "a=b", " =1+1"])
def test_other_texts_are_written_as_they_are(text: str) -> None:
    assert shown(text) == text
    assert meant(text) == text


@pytest.mark.parametrize("text", ["-1e5+cmd|' /C calc'!A0", "+1-1", "-inf", "1e5\n=1", "-\u0663", "1_0", "--1"])
def test_what_only_looks_like_a_number_is_shown(text: str) -> None:
    assert shown(text) == (f"'{text}" if text[0] in EXECUTED else text)
