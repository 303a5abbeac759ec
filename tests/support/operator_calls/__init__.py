"""Calls of every decomposed overload, drawn by hypothesis, in a module for each module of rewrites."""

from support.operator_calls import (  # noqa: F401 (each adds its calls)
    activations,
    alignment,
    arithmetic,
    bags,
    batch_norm,
    factorisations,
    from_torch,
    grids,
    indexing,
    margin_losses,
    normalisations,
    optimizers,
    ordering,
    products,
    quantisation,
    reflections,
    single_precision,
    windows,
)
from support.operator_calls.draw import CALLS, Call, Draw

__all__ = ["CALLS", "Call", "Draw"]
