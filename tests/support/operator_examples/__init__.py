"""Small example calls of every overload with a rounded rule, in a module for each family of rules."""

from support.operator_examples import (  # noqa: F401 (each adds its examples)
    activations,
    convolutions,
    functions,
    losses,
    normalisations,
    pooling,
    products,
    resampling,
    scatters,
    softmax,
    sums,
)
from support.operator_examples.example import EXAMPLES, REFERENCES, STYLES, WIDE_ENOUGH, Example, Maker, long

__all__ = ["EXAMPLES", "REFERENCES", "STYLES", "WIDE_ENOUGH", "Example", "Maker", "long"]
