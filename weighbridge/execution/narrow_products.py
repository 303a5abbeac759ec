"""Which products of 16-bit matrices a training has, so that a device's rule can be probed for each of them.

Of another party's transcript a confined worker lists them, and its answer is read as hostile.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import torch

from weighbridge.core.errors import FormatError, ReplayWorkerError
from weighbridge.execution.worker_process import Limits, raise_error, run_worker
from weighbridge.numerics.operations.prescribed_products import plan_of
from weighbridge.numerics.rounding.formats import NARROW
from weighbridge.numerics.schemas import argument_names
from weighbridge.numerics.units import orders, probing
from weighbridge.numerics.units.probing import Layout, Product
from weighbridge.program.operands import resolve
from weighbridge.transcript.reader import Transcript
from weighbridge.transcript.tape import DTYPES, RESIZE, Node, Tape

MOST = 4096
"""Most products of a transcript that a worker lists: the largest."""


def products_of(transcript: Transcript) -> set[Product]:
    """Returns the products of 16-bit matrices in the programs of a transcript, which are read in this process."""
    found = set[Product]()
    for digest in {record.tape for record in transcript.records()}:
        tape = Tape.decode(transcript.tape(digest))
        for node in tape.nodes:
            made = None if node.op == RESIZE else _product(node, tape)
            if made is not None:
                found.add(made)
    return found


def largest(products: Iterable[Product], most: int) -> list[Product]:
    """Returns so many different products at most, those with the most terms first."""

    def terms(product: Product) -> int:
        _, left, right = orders.sizes(product.signature)
        return torch.Size(left).numel() * right[-1]

    return sorted(set(products), key=lambda each: (-terms(each), each))[:most]


def listed(path: Path, *, limits: Limits) -> list[Product]:
    """Has a confined worker list the products of 16-bit matrices in another party's transcript, the largest first.

    Args:
        path: Transcript directory.
        limits: On memory and time.

    Raises:
        TranscriptError: The transcript is unreadable or altered (or another `WeighbridgeError` with its code).
        ReplayWorkerError: The worker died, ran out of its limits or answered nonsense.
    """
    request: dict[str, Any] = {"path": str(path.resolve()), "device": "cpu"}
    request |= {"memory": limits.memory, "seconds": limits.seconds}
    message = run_worker("weighbridge.execution.workers.products_worker", request, limits)
    raise_error(message)
    try:
        texts = message["result"]["products"]
        if len(texts) > MOST or not all(type(each) is str for each in texts):
            raise ValueError("products")
        return [probing.read(each) for each in texts]
    except (KeyError, TypeError, ValueError, FormatError) as error:
        raise ReplayWorkerError(f"the worker's answer is malformed ({type(error).__name__})") from None


def _product(node: Node, tape: Tape) -> Product | None:
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
    if {a.dtype, b.dtype} - set(NARROW) or not a.numel() * b.numel() or max(a.numel(), b.numel()) > probing.MOST:
        return None
    lies = "".join("t" if t.stride(-1) != 1 and t.stride(-2) == 1 else "n" for t in (a, b))
    layout: Layout = next(each for each in get_args(Layout) if each == lies)
    return Product(orders.signature(a, b), layout)
