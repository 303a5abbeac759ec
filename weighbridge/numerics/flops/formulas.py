"""Formulas: the FLOPs of products, windows, sorts and factorisations, from the shapes of their operands.

A formula takes operands by schema name and a list of results. A multiplication and an addition are two FLOPs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor of which only the shape is known: that of a tape.

    Attributes:
        shape: Its sizes.
    """

    shape: tuple[int, ...]

    def numel(self) -> int:
        """Returns how many elements it has."""
        return math.prod(self.shape)


Formula = Callable[[dict[str, Any], list[Any]], int]
"""From operands by schema name, and results, to FLOPs; tensors among them are `Shape` or real ones."""


def sizes(values: Iterable[Any]) -> Iterator[int]:
    """Yields how many elements each operand has; a list counts as one."""
    for value in values:
        if isinstance(value, (torch.Tensor, Shape)):
            yield value.numel()
        elif isinstance(value, (list, tuple)):
            yield sum(sizes(value))


def largest(values: Iterable[Any]) -> int:
    """Returns how many elements the largest of some operands or results has; 0 if none is a tensor."""
    most = 0
    for value in values:  # every kernel on a chip comes by here
        if isinstance(value, torch.Tensor):
            most = max(most, value.numel())
        elif isinstance(value, (list, tuple)):
            if value and not isinstance(value[0], int):
                most = max(most, sum(sizes(value)))
        elif isinstance(value, Shape):
            most = max(most, value.numel())
    return most


def bound(operands: dict[str, Any], results: list[Any]) -> int:
    """Returns 2n^2 for n elements of operands and results together: a bound of anything that is bilinear in them.

    Products, recurrent layers (2 for each pair of an element and a weight) and factorisations keep it.
    """
    return 2 * sum([*sizes(operands.values()), *sizes(results)]) ** 2


def product(left: str, right: str = "") -> Formula:
    """Each element of the left operand meets each column of the right one, or a vector: a product and a sum."""
    return lambda operands, _: int(2 * operands[left].numel() * (operands[right].shape[-1] if right else 1))


def trilinear(operands: dict[str, Any], results: list[Any]) -> int:
    """A product of three and a sum for each place of the operands, expanded against each other."""
    shapes = []
    for i in "123":
        shape = list(operands[f"i{i}"].shape)
        for place in sorted(operands[f"expand{i}"]):
            shape.insert(place, 1)
        shapes.append(shape)
    return 3 * math.prod(int(max(places)) for places in zip(*shapes, strict=True))


def kernel(weight: Any) -> int:
    """How many numbers of a filter meet each position."""
    return int(weight.numel() // max(weight.shape[0], 1))


def convolution(operands: dict[str, Any], results: list[Any]) -> int:
    """Each result, or operand if transposed, meets its share of the filter."""
    walked = operands["input"] if operands.get("transposed") else results[0]
    return int(2 * walked.numel() * kernel(operands["weight"]))


def vendor_convolution(operands: dict[str, Any], results: list[Any]) -> int:
    """Transposed or not, which only the name says: the worse of the two."""
    return int(2 * max(operands["self"].numel(), results[0].numel()) * kernel(operands["weight"]))


def convolution_backward(operands: dict[str, Any], results: list[Any]) -> int:
    """As many for each gradient that is asked for, and a sum for that of the bias."""
    walked = operands["input"] if operands.get("transposed") else operands["grad_output"]
    products = 2 * walked.numel() * kernel(operands["weight"])
    for_input, for_weight, for_bias = operands["output_mask"]
    return int(products * (bool(for_input) + bool(for_weight)) + bool(for_bias) * operands["grad_output"].numel())


def attention(operands: dict[str, Any], results: list[Any]) -> int:
    """Two products and a softmax, without a mask: the worst case."""
    query, key, value = (operands[name] for name in ("query", "key", "value"))
    scores = query.numel() // max(query.shape[-1], 1) * key.shape[-2]
    return int(scores * (2 * query.shape[-1] + 2 * value.shape[-1] + 5))


def attention_backward(operands: dict[str, Any], results: list[Any]) -> int:
    """Five products, of which scores are one, and the gradient of the softmax."""
    return 3 * attention(operands, results)


def embedding_bag(operands: dict[str, Any], results: list[Any]) -> int:
    """A weighted sum of rows; one more for each bag."""
    return int(2 * (operands["indices"].numel() + operands["offsets"].numel()) * operands["weight"].shape[-1])


def recurrent(operands: dict[str, Any], results: list[Any]) -> int:
    """Each step of each sequence meets every weight, and at most as many functions of the state."""
    rest = sum(sizes(operands.values())) - operands["input"].numel()
    return int(3 * (operands["input"].numel() // max(operands["input"].shape[-1], 1)) * rest)


def distances(operands: dict[str, Any], results: list[Any]) -> int:
    """A difference, a power and a sum for each component of each pair."""
    return int(3 * results[0].numel() * operands["x1"].shape[-1])


def self_distances(operands: dict[str, Any], results: list[Any]) -> int:
    """As `distances`, of each row and each other."""
    return int(3 * operands["self"].numel() * operands["self"].shape[0])


def windows(operands: dict[str, Any], results: list[Any]) -> int:
    """One for each position of each window."""
    walked = operands["grad_output"] if "grad_output" in operands else results[0]
    window = list(operands["kernel_size"])
    return int(walked.numel() * math.prod(window if len(window) > 1 else window * 3))


def adaptive(operands: dict[str, Any], results: list[Any]) -> int:
    """Windows that are next to each other share at most one position: no more than n + m in a dimension."""
    x = operands["self"].shape
    y = operands["grad_output"].shape if "grad_output" in operands else results[0].shape
    return math.prod(max(a, b) if a == b else a + b for a, b in zip(x, y, strict=True))


def sorting(operands: dict[str, Any], results: list[Any]) -> int:
    """n*log2(n) comparisons."""
    n = sum(sizes(operands.values()))
    return n * max(n, 2).bit_length()


def pairs(operands: dict[str, Any], results: list[Any]) -> int:
    """One for each element of the first operand and each of the others."""
    return math.prod(sizes(operands.values()))


def factorisation(operands: dict[str, Any], results: list[Any]) -> int:
    """100*n*m*min(n, m): an iteration for singular values takes about 20, one for eigenvalues 25."""
    least = 1
    for value in (*operands.values(), *results):
        if isinstance(value, (torch.Tensor, Shape)) and len(value.shape) >= 2:
            least = max(least, min(value.shape[-2:]))
    return 100 * sum([*sizes(operands.values()), *sizes(results)]) * least


def transform(operands: dict[str, Any], results: list[Any]) -> int:
    """60*n*log2(4n): three transforms of up to four times the length (Bluestein) of 5*n*log2(n) each."""
    n = max(largest(operands.values()), largest(results))
    return 60 * n * ((4 * n).bit_length())


def reduction(operands: dict[str, Any], results: list[Any]) -> int:
    """One for each element that a member of the group contributes."""
    return len(operands["group"]) * max(sizes([operands["outs"], operands["ins"]]), default=0)
