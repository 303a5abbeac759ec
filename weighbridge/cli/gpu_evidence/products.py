"""Which products of 16-bit matrices trainings have, so that a device's rule can be probed for each of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import torch

from weighbridge.cli.gpu_evidence.statement import MOST_PRODUCTS
from weighbridge.numerics.operations.prescribed_products import plan_of
from weighbridge.numerics.rounding.formats import NARROW
from weighbridge.numerics.schemas import argument_names
from weighbridge.numerics.units import orders, probing
from weighbridge.numerics.units.probing import Layout, Product
from weighbridge.program.operands import resolve
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import DTYPES, RESIZE, Node, Tape


def products_of(transcripts: Iterable[Transcript]) -> list[Product]:
    """Returns the products of 16-bit matrices in the programs of transcripts, the largest first.

    Args:
        transcripts: Transcripts of one's own: their programs are read in this process.
    """
    found: dict[Product, int] = {}
    for transcript in transcripts:
        for digest in {record.tape for record in transcript.records()}:
            tape = Tape.decode(transcript.tape(digest))
            for node in tape.nodes:
                made = None if node.op == RESIZE else _product(node, tape)
                if made is not None:
                    product, terms = made
                    found[product] = terms
    return sorted(found, key=lambda each: (-found[each], each))[:MOST_PRODUCTS]


def _product(node: Node, tape: Tape) -> tuple[Product, int] | None:
    op = resolve(node.op)
    plan = plan_of(op)
    if plan is None:
        return None
    product, first, second, _ = plan
    given = {**dict(zip(argument_names(op)[0], node.args, strict=False)), **node.kwargs}
    pair = []
    for name in (first, second):
        _, dtype, size, stride, _ = tape.refs[given[name][1]]
        pair.append(torch.empty_strided(size, stride, dtype=DTYPES[dtype], device="meta"))
    a, b = pair[0], pair[1][:, None] if product is torch.mv else pair[1]
    terms = a.numel() * b.shape[-1]
    if {a.dtype, b.dtype} - set(NARROW) or not terms or max(a.numel(), b.numel()) > probing.MOST:
        return None
    lies = "".join("t" if t.stride(-1) != 1 and t.stride(-2) == 1 else "n" for t in (a, b))
    layout: Layout = next(each for each in get_args(Layout) if each == lies)
    return Product(orders.signature(a, b), layout), terms
