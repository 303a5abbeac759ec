"""The adaptive code: no set of messages is cheaper than messages can be, and repetition is cheap."""

from __future__ import annotations

import itertools
import math

import pytest

from weighbridge.program.adaptive_code import AdaptiveCode, text


@pytest.mark.parametrize("contexts", [1, 2, 3])
def test_messages_are_never_cheaper_than_a_prefix_code_allows(contexts: int) -> None:
    """Kraft's inequality over all messages of six symbols out of three, in contexts that depend on what came before."""
    total = 0.0
    for message in itertools.product("abc", repeat=6):
        code, bits, before = AdaptiveCode(), 0.0, ""
        for symbol in message:
            chain = (("narrow", before[-2:]), ("middle", before[-1:]), ("wide",))[-contexts:]
            bits += code.bits(symbol, chain, math.log2(3))
            before += symbol
        total += 2.0**-bits
    assert 0.1 < total <= 1 + 1e-9


def test_what_repeats_itself_costs_next_to_nothing() -> None:
    code = AdaptiveCode()
    bits = sum(code.bits("a", (("only",),), 8.0) for _ in range(1000))
    assert bits == pytest.approx(8.0 + math.log2(1000))


def test_a_text_costs_its_bytes() -> None:
    assert text("abc") >= 24
    assert text("\ud800") > 8, "half a character is text too, in a hostile tape"
