"""JAX as this package uses it: float64, XLA's compiler for the CPU, and nothing else."""

from __future__ import annotations

import jax

jax.config.update("jax_enable_x64", True)  # type: ignore[no-untyped-call]
jax.config.update("jax_platforms", "cpu")  # type: ignore[no-untyped-call]


def start() -> None:
    """Makes XLA load what it compiles and computes with."""
    jax.jit(lambda x: x @ x)(jax.numpy.ones((2, 2))).block_until_ready()
