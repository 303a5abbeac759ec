"""How far results of matrix units lie apart: from each other after rounding to bfloat16, and from the exact sum.

`python -m benchmarks.unit_differences` multiplies matrices of bfloat16 by the model of every unit that takes them, each
over all of K in one chain, and H100 in four slices too. It writes benchmarks/results/unit_differences.json and the
tables of docs/matrix-units.md (a quarter of an hour; `--page` only writes the tables). Errors are given in calibrated
bounds: above 1, the bound that a replay in float32 relies on does not hold (see docs/bounds.md).
"""

from __future__ import annotations

import argparse
import itertools
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.page import measured_on, table
from weighbridge.numerics import units
from weighbridge.numerics.bounds import Call, without_growth
from weighbridge.numerics.conformance import bound_policy
from weighbridge.numerics.families import products
from weighbridge.numerics.rounding.bound import dense_bound

Tensor = torch.Tensor

PAGE = Path(__file__).parents[1] / "docs" / "matrix-units.md"
LENGTHS = (1024, 4096, 16384, 65536)
SIDE = 64
"""Rows of the one matrix and columns of the other."""
SLICES = 4
UNITS = ("a100", "h100", "mi100", "mi200", "mi300", "vdpbf16ps", "amx", "bfdot")
SLICED = f"h100, {SLICES} slices"
EXACT = "exact"
PAIRS = (
    ("h100", EXACT), ("h100", "a100"), ("h100", SLICED), ("h100", "mi300"), ("h100", "vdpbf16ps"),
    ("mi300", "mi200"), ("vdpbf16ps", "amx"),
)  # fmt: skip
"""Of which the page says how often they differ; the result file has all."""


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator)


def _lognormal(generator: torch.Generator, *shape: int) -> Tensor:
    sizes = torch.exp(2 * torch.randn(shape, generator=generator))
    return torch.where(torch.rand(shape, generator=generator) < 0.5, -sizes, sizes)


KINDS: dict[str, tuple[str, Callable[[torch.Generator, int], tuple[Tensor, Tensor]]]] = {
    "normal": (
        "both normal",
        lambda generator, k: (_normal(generator, SIDE, k), _normal(generator, k, SIDE)),
    ),
    "lognormal": (
        "both lognormal (sigma 2) with random signs",
        lambda generator, k: (_lognormal(generator, SIDE, k), _lognormal(generator, k, SIDE)),
    ),
    "relu": (
        "normal, negative values zero, times normal",
        lambda generator, k: (_normal(generator, SIDE, k).relu(), _normal(generator, k, SIDE)),
    ),
    "one-signed": (
        "absolute values of normal",
        lambda generator, k: (_normal(generator, SIDE, k).abs(), _normal(generator, k, SIDE).abs()),
    ),
}
"""Data, in words and as a function of generator and length."""


def calibrated_bound(a: Tensor, b: Tensor, exact: Tensor) -> Tensor:
    """Returns the calibrated bound of a product of 16-bit matrices, of its shape."""
    with without_growth():
        (bound,) = products.mm(Call("mm", {"self": a.float(), "mat2": b.float()}, [exact]))
    factor = bound_policy.calibrated().factor("mm") * 2.0**29  # from the unit roundoff of float64 to that of float32
    return dense_bound(exact, bound.scaled(factor)).reshape(exact.shape)


def measure(kind: str, length: int) -> dict[str, Any]:
    """Measures one kind of data at one length."""
    begun = time.perf_counter()
    drawn = KINDS[kind][1](torch.Generator().manual_seed(length), length)
    a, b = (each.bfloat16() for each in drawn)
    exact = a.double() @ b.double()  # far more accurate than any unit: 53 bits
    bound = calibrated_bound(a, b, exact)
    found = {name: units.named(name).product(a, b) for name in UNITS}
    found[SLICED] = units.named("h100").product(a, b, order=units.Order(chain=length // SLICES, bias_first=False))
    rounded = {name: each.bfloat16() for name, each in found.items()} | {EXACT: exact.float().bfloat16()}
    return {
        "data": kind,
        "products": length,
        "outputs": exact.numel(),
        "largest_error_in_bounds": {
            name: float(((each.double() - exact).abs() / bound).max()) for name, each in found.items()
        },
        "differ": {
            f"{one} / {other}": int((rounded[one] != rounded[other]).sum())
            for one, other in itertools.combinations(rounded, 2)
        },
        "seconds": round(time.perf_counter() - begun, 1),
    }


def errors(result: dict[str, Any]) -> str:
    """Returns the table of largest errors."""
    cases = result["cases"]
    names = list(cases[0]["largest_error_in_bounds"])
    rows = [
        [each["data"], f"{each['products']:,}", *(f"{each['largest_error_in_bounds'][name]:.2g}" for name in names)]
        for each in cases
    ]
    return measured_on(result) + "\n\n" + table(["data", "K", *names], rows)


def differences(result: dict[str, Any]) -> str:
    """Returns the table of shares of results that differ."""

    def share(case: dict[str, Any], pair: tuple[str, str]) -> str:
        count = case["differ"].get(" / ".join(pair), case["differ"].get(" / ".join(pair[::-1])))
        return f"{100 * count / case['outputs']:.2g}%"

    rows = [[each["data"], f"{each['products']:,}", *(share(each, pair) for pair in PAIRS)] for each in result["cases"]]
    return table(["data", "K", *(" / ".join(pair) for pair in PAIRS)], rows)


def render(page: str) -> str:
    """Returns the page with its tables as the result file gives them.

    Raises:
        ValueError: The page lacks the place of a table.
    """
    result = machine.load("unit_differences")
    for name, text_of in (("errors", errors), ("differences", differences)):
        text = "Not measured yet." if result is None else text_of(result)
        place = re.compile(rf"(<!-- begin {name} -->\n).*?(\n<!-- end {name} -->)", re.DOTALL)
        if not place.search(page):
            raise ValueError(f"the page has no place for the table of {name}; add its begin and end marks")
        page = place.sub(lambda found, text=text: found[1] + text + found[2], page)
    return page


def main() -> None:
    """Measures, unless only the page is wanted, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true", help="only write the tables of the page")
    if not parser.parse_args().page:
        cases = []
        for kind, length in itertools.product(KINDS, LENGTHS):
            cases.append(measure(kind, length))
            print(cases[-1], flush=True)
        machine.save("unit_differences", {**machine.about(), "side": SIDE, "cases": cases})
    PAGE.write_text(render(PAGE.read_text()))


if __name__ == "__main__":
    main()
