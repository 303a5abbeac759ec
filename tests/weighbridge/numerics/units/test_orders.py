"""Orders that a draft declares for signatures of products: what they are, and that nothing else is taken for some."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from weighbridge.core.errors import UsageError
from weighbridge.numerics.conformance import bound_policy
from weighbridge.numerics.units.orders import chain_of, parse, signature

SIZE = st.integers(1, 40)


@given(st.sampled_from([torch.bfloat16, torch.float16]), st.booleans(), SIZE, SIZE, SIZE, st.integers(1, 1 << 19))
def test_signatures_are_read_back(dtype: torch.dtype, batched: bool, m: int, k: int, n: int, blocks: int) -> None:
    """Law: an order for the signature of a product is that of this product, and of no other shape."""
    lead = (3,) if batched else ()
    a, b = torch.zeros(*lead, m, k, dtype=dtype), torch.zeros(*lead, k, n, dtype=dtype)
    orders = parse({signature(a, b): 16 * blocks})
    assert chain_of(orders, a, b) == 16 * blocks
    longer = torch.zeros(*lead, k, n + 1, dtype=dtype)
    assert chain_of(orders, a, longer) == 0


def test_a_signature_is_what_the_format_says() -> None:
    a = torch.zeros(8, 16, 64).half()
    assert signature(a, a.mT) == "fp16 8x16x64x16"
    assert signature(torch.zeros(64, 1024).bfloat16(), torch.zeros(1024, 33).bfloat16()) == "bf16 64x1024x33"


HOSTILE: list[Any] = [
    None, 1, [], "bf16 1x2x3", {"bf16 1x2x3": 8}, {"bf16 1x2x3": 0}, {"bf16 1x2x3": -16}, {"bf16 1x2x3": True},
    {"bf16 1x2x3": 16.0}, {"bf16 1x2x3": 1 << 30}, {"bf16 1x2": 16}, {"bf16 0x2x3": 16}, {"bf16 1x2x3x4x5": 16},
    {"fp32 1x2x3": 16}, {b"bf16 1x2x3": 16}, {"bf16 1x2x3\n": 16}, {f"bf16 1x2x{n + 1}": 16 for n in range(5000)},
]  # fmt: skip


@pytest.mark.parametrize("raw", HOSTILE, ids=lambda raw: repr(raw)[:30])
def test_what_are_no_orders_is_refused(raw: Any) -> None:
    with pytest.raises(UsageError, match="orders of the draft"):
        parse(raw)


@given(st.dictionaries(st.text(max_size=20), st.one_of(st.integers(), st.text(), st.none())))
def test_any_map_is_orders_or_refused(raw: Any) -> None:
    try:
        assert parse(raw) == raw
    except UsageError:
        assert raw


def test_only_policies_of_truncating_units_have_orders() -> None:
    draft: dict[str, Any] = {"policy": "unit-h100", "orders": {"bf16 1x64x1": 32}, "calibration": ""}
    assert bound_policy.declared(draft).orders == {"bf16 1x64x1": 32}
    assert bound_policy.declared(draft | {"calibration": bound_policy.named("mixed").digest}).orders
    for policy in ("mixed", "unit-vdpbf16ps"):
        with pytest.raises(UsageError, match="which the policy"):
            bound_policy.declared(draft | {"policy": policy})
