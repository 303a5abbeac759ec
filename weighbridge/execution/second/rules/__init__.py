"""Rules of operations by family; importing this package fills the table."""

from weighbridge.execution.second import backend
from weighbridge.execution.second.rules import (
    arithmetic,
    batch_norm,
    convolutions,
    draws,
    functions,
    layer_norm,
    losses,
    moves,
    pooling,
    products,
    selections,
    softmax,
    sums,
)

BACKEND = backend
FAMILIES = (
    arithmetic,
    batch_norm,
    convolutions,
    draws,
    functions,
    layer_norm,
    losses,
    moves,
    pooling,
    products,
    selections,
    softmax,
    sums,
)
"""All of them."""
