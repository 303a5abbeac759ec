"""BLAKE3's chunks in Triton: each lane compresses one chunk of 1,024 bytes, its sixteen blocks one after another."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = 64
"""Chunks of one program."""


@triton.jit  # type: ignore[untyped-decorator]
def _g(a: tl.tensor, b: tl.tensor, c: tl.tensor, d: tl.tensor, x: tl.tensor, y: tl.tensor) -> tl.tensor:
    a = a + b + x
    d = d ^ a
    d = (d >> 16) | (d << 16)
    c = c + d
    b = b ^ c
    b = (b >> 12) | (b << 20)
    a = a + b + y
    d = d ^ a
    d = (d >> 8) | (d << 24)
    c = c + d
    b = b ^ c
    b = (b >> 7) | (b << 25)
    return a, b, c, d


@triton.jit  # type: ignore[untyped-decorator]
def _round(
    v0: tl.tensor, v1: tl.tensor, v2: tl.tensor, v3: tl.tensor,
    v4: tl.tensor, v5: tl.tensor, v6: tl.tensor, v7: tl.tensor,
    v8: tl.tensor, v9: tl.tensor, va: tl.tensor, vb: tl.tensor,
    vc: tl.tensor, vd: tl.tensor, ve: tl.tensor, vf: tl.tensor,
    m0: tl.tensor, m1: tl.tensor, m2: tl.tensor, m3: tl.tensor,
    m4: tl.tensor, m5: tl.tensor, m6: tl.tensor, m7: tl.tensor,
    m8: tl.tensor, m9: tl.tensor, ma: tl.tensor, mb: tl.tensor,
    mc: tl.tensor, md: tl.tensor, me: tl.tensor, mf: tl.tensor,
) -> tl.tensor:  # fmt: skip
    v0, v4, v8, vc = _g(v0, v4, v8, vc, m0, m1)
    v1, v5, v9, vd = _g(v1, v5, v9, vd, m2, m3)
    v2, v6, va, ve = _g(v2, v6, va, ve, m4, m5)
    v3, v7, vb, vf = _g(v3, v7, vb, vf, m6, m7)
    v0, v5, va, vf = _g(v0, v5, va, vf, m8, m9)
    v1, v6, vb, vc = _g(v1, v6, vb, vc, ma, mb)
    v2, v7, v8, vd = _g(v2, v7, v8, vd, mc, md)
    v3, v4, v9, ve = _g(v3, v4, v9, ve, me, mf)
    return v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, va, vb, vc, vd, ve, vf


@triton.jit  # type: ignore[untyped-decorator]
def _word(words: tl.tensor, at: tl.tensor, place: tl.tensor, index: tl.tensor, mask: tl.tensor) -> tl.tensor:
    loaded = tl.load(words + at + place * 16 + index, mask=mask, other=0)
    return loaded.to(tl.uint32, bitcast=True)


@triton.jit(do_not_specialize=["first", "count"])  # type: ignore[untyped-decorator]
def _chunks(
    words: tl.tensor,
    start: tl.tensor,
    out: tl.tensor,
    first: tl.tensor,
    count: tl.tensor,
    MODE: tl.constexpr,
    LANES: tl.constexpr,
) -> None:
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    mask = lane < count
    at = lane * 256
    number = first + lane
    low = (number & 0xFFFFFFFF).to(tl.uint32)
    high = (number >> 32).to(tl.uint32)
    zero = low * 0
    c0 = zero + tl.load(start + 0).to(tl.uint32, bitcast=True)
    c1 = zero + tl.load(start + 1).to(tl.uint32, bitcast=True)
    c2 = zero + tl.load(start + 2).to(tl.uint32, bitcast=True)
    c3 = zero + tl.load(start + 3).to(tl.uint32, bitcast=True)
    c4 = zero + tl.load(start + 4).to(tl.uint32, bitcast=True)
    c5 = zero + tl.load(start + 5).to(tl.uint32, bitcast=True)
    c6 = zero + tl.load(start + 6).to(tl.uint32, bitcast=True)
    c7 = zero + tl.load(start + 7).to(tl.uint32, bitcast=True)
    for place in range(16):
        m0 = _word(words, at, place, 0, mask)
        m1 = _word(words, at, place, 1, mask)
        m2 = _word(words, at, place, 2, mask)
        m3 = _word(words, at, place, 3, mask)
        m4 = _word(words, at, place, 4, mask)
        m5 = _word(words, at, place, 5, mask)
        m6 = _word(words, at, place, 6, mask)
        m7 = _word(words, at, place, 7, mask)
        m8 = _word(words, at, place, 8, mask)
        m9 = _word(words, at, place, 9, mask)
        ma = _word(words, at, place, 10, mask)
        mb = _word(words, at, place, 11, mask)
        mc = _word(words, at, place, 12, mask)
        md = _word(words, at, place, 13, mask)
        me = _word(words, at, place, 14, mask)
        mf = _word(words, at, place, 15, mask)
        v8 = zero + 0x6A09E667
        v9 = zero + 0xBB67AE85
        va = zero + 0x3C6EF372
        vb = zero + 0xA54FF53A
        ve = zero + 64
        vf = zero + MODE
        vf = vf | tl.where(place == 0, 1, 0).to(tl.uint32) | tl.where(place == 15, 2, 0).to(tl.uint32)
        v0, v1, v2, v3, v4, v5, v6, v7, vc, vd = c0, c1, c2, c3, c4, c5, c6, c7, low, high
        for _ in tl.static_range(7):
            v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, va, vb, vc, vd, ve, vf = _round(
                v0, v1, v2, v3, v4, v5, v6, v7, v8, v9, va, vb, vc, vd, ve, vf,
                m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, ma, mb, mc, md, me, mf,
            )  # fmt: skip
            m0, m1, m2, m3, m4, m5, m6, m7, m8, m9, ma, mb, mc, md, me, mf = (
                m2, m6, m3, ma, m7, m0, m4, md, m1, mb, mc, m5, m9, me, mf, m8,
            )  # fmt: skip
        c0, c1, c2, c3 = v0 ^ v8, v1 ^ v9, v2 ^ va, v3 ^ vb
        c4, c5, c6, c7 = v4 ^ vc, v5 ^ vd, v6 ^ ve, v7 ^ vf
    tl.store(out + 0 * count + lane, c0.to(tl.int32, bitcast=True), mask=mask)
    tl.store(out + 1 * count + lane, c1.to(tl.int32, bitcast=True), mask=mask)
    tl.store(out + 2 * count + lane, c2.to(tl.int32, bitcast=True), mask=mask)
    tl.store(out + 3 * count + lane, c3.to(tl.int32, bitcast=True), mask=mask)
    tl.store(out + 4 * count + lane, c4.to(tl.int32, bitcast=True), mask=mask)
    tl.store(out + 5 * count + lane, c5.to(tl.int32, bitcast=True), mask=mask)
    tl.store(out + 6 * count + lane, c6.to(tl.int32, bitcast=True), mask=mask)
    tl.store(out + 7 * count + lane, c7.to(tl.int32, bitcast=True), mask=mask)


def chunks(words: Tensor, start: Tensor, first: int, mode: int) -> Tensor:
    """Compresses whole chunks; see `weighbridge.core.treehash.tree.Chunks`."""
    count = words.shape[0]
    out = torch.empty(8, count, dtype=torch.int32, device=words.device)
    _chunks[(triton.cdiv(count, LANES),)](words, start, out, first, count, MODE=mode, LANES=LANES)
    return out
