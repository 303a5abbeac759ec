"""Products that are not written as products: beside a declared run, and in a recorded one under a rule on FLOPs.

The matrices are multiplied for real, by operations that a list of products and convolutions would not have; so is the
training that needs them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from redteam.on_chips import HIDDEN_RUN, recorded
from redteam.row import Outcome, Row
from redteam.workshop import Training, Workshop, accusations, classifier, digits, nearer
from support.disguised_products import PRODUCTS
from support.ruled import ruled
from torch import Tensor, nn

from firmware_sim import Shim

RECORDS, WEIGHTS = 256, 64
UPDATES, RATE = 4, 0.5
"""Updates of the second model between two steps of the declared one."""
STEPS = 4
Product = Callable[[Tensor, Tensor], Tensor]


# -- beside a declared run ---------------------------------------------------------------------------------------------


class Regression:
    """A linear map that is fitted between the steps of a declared run, in the host's memory when snapshots are taken.

    Attributes:
        wanted: What it is fitted to.
        weights: What it is so far.
    """

    def __init__(self, product: Product, seed: int, *, inference: bool, thread: bool) -> None:
        """Makes up data.

        Args:
            product: Multiplies matrices.
            seed: Of the data.
            inference: Whether all is done under `torch.inference_mode`.
            thread: Whether it is done in a thread of its own.
        """
        draws = np.random.default_rng(seed)
        self._x = draws.standard_normal((RECORDS, WEIGHTS)).astype(np.float32)
        self.wanted = draws.standard_normal((WEIGHTS, WEIGHTS)).astype(np.float32)
        self.weights = np.zeros_like(self.wanted)
        self._y = self._x @ self.wanted
        self._product, self._inference, self._thread = product, inference, thread

    def __call__(self, chip: Shim, model: nn.Module, number: int) -> None:
        """Does some updates; see `on_chips.Move`."""
        if self._thread:
            thread = threading.Thread(target=self._fit)
            thread.start()
            thread.join()
        else:
            self._fit()
        if number == STEPS // 2:
            chip.request_snapshot()

    def _fit(self) -> None:
        with torch.inference_mode(self._inference):
            x, y, weights = (torch.from_numpy(each.copy()) for each in (self._x, self._y, self.weights))
            for _ in range(UPDATES):
                wrong = self._product(x, weights) - y
                weights = weights - RATE / RECORDS * self._product(x.T.contiguous(), wrong)
            self.weights = weights.numpy().copy()

    def fitted(self) -> float:
        """The share of the way to the wanted weights."""
        return float(1 - np.linalg.norm(self.weights - self.wanted) / np.linalg.norm(self.wanted))


def beside(name: str, inference: bool, thread: bool, shop: Workshop, seed: int) -> Outcome:
    """Fits a second model between the steps of a declared run."""
    second = Regression(PRODUCTS[name], seed, inference=inference, thread=thread)
    return recorded(shop, seed, second.fitted, between=second)


# -- in a recorded run -------------------------------------------------------------------------------------------------


class Disguised(nn.Module):
    """A linear layer whose product is written in another way."""

    def __init__(self, layer: nn.Linear, product: Product) -> None:
        """Takes over the weights of a linear layer."""
        super().__init__()
        self.weight, self.bias, self._product = layer.weight, layer.bias, product

    def forward(self, x: Tensor) -> Tensor:
        """See `nn.Linear.forward`."""
        return self._product(x, self.weight.T) + self.bias


def disguised(product: Product) -> nn.Sequential:
    """The classifier of the workshop, without a product to be seen."""
    return nn.Sequential(*(
        Disguised(each, product) if isinstance(each, nn.Linear) else each
        for each in classifier()
    ))  # fmt: skip


def under_a_rule(name: str, shop: Workshop, seed: int) -> Outcome:
    """A rule allows half of the FLOPs of an honest training; the same training is recorded without its products."""
    batches = digits(seed, STEPS)
    plain = shop.record(Training(batches=batches), seed)
    build = partial(disguised, PRODUCTS[name])
    run = shop.record(Training(batches=batches, build=build), seed)
    rules = ruled(shop.place(), "runs.all(r, r.flops <= threshold)", threshold=plain.flops / 2)
    found = accusations(
        shop.bench.inspected(run.path.parent, shop.bench.at_end(run.path), apart=shop.apart, regime=rules)
    )
    return Outcome(findings=found, gain=nearer(plain.start, run.weights, plain.weights), cost=run.flops / plain.flops)


BY_COUNT = "attacks on the counting of FLOPs"
FITTED = "share of the way from the second model's first weights to the wanted ones"

ROWS = (
    *(
        Row(
            name=f"a second model beside a declared run, {words}",
            source=BY_COUNT,
            wants=HIDDEN_RUN,
            gains=FITTED,
            attack=partial(beside, product, inference, thread),
            expected=("snapshot.work.unexplained",),
            note=f"Cost is what the chip counted, relative to what the transcript says. {note}".strip(),
        )
        for words, product, inference, thread, note in (
            (
                "by linear layers under `torch.inference_mode`", "linear", True, False,
                "Composite operations are taken apart before they are counted.",
            ),
            ("by convolutions under `torch.inference_mode`", "convolution", True, False, ""),
            (
                "by an operator of its own whose work no dispatcher sees", "an operator whose work is not to be seen",
                False, False, "An operator without a count has the most that a product could do on its operands.",
            ),
            ("in a thread of its own", "@", False, True, ""),
        )
    ),
    *(
        Row(
            name=f"products of a recorded run written {words}, under a rule on FLOPs",
            source=BY_COUNT,
            wants="stay below a threshold",
            gains="share of the way from the first weights to those of the same training with products",
            attack=partial(under_a_rule, product),
            expected=("rule.violated",),
            note="The rule allows half of what the training takes with products. Every number that is computed counts.",
        )
        for words, product in (
            ("as products of vectors", "mv"),
            ("as a multiplication that broadcasts, and a sum", "a product that broadcasts, and a sum"),
            ("as weighted embedding bags", "embedding bags"),
            ("as bilinear forms", "bilinear"),
        )
    ),
)  # fmt: skip
