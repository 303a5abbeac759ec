"""Householder reflections as LAPACK keeps them: factors of a matrix, and the product of the reflections."""

from __future__ import annotations

import torch

from weighbridge.numerics.rewrites.rewrite_table import decomposes

Tensor = torch.Tensor


@decomposes("geqrf.default")
def _geqrf(a: Tensor) -> tuple[Tensor, Tensor]:
    """Returns R with the reflections' vectors below its diagonal, and their factors tau; column by column."""
    m, n = a.shape[-2:]
    r = a.clone(memory_format=torch.contiguous_format)
    taus = []
    for j in range(min(m, n)):
        column = r[..., j:, j : j + 1]
        head, tail = column[..., :1, :].clone(), column[..., 1:, :]
        done = torch.linalg.vector_norm(tail, dim=-2, keepdim=True) == 0
        norm = torch.linalg.vector_norm(column, dim=-2, keepdim=True)
        diagonal = torch.where(done, head, torch.where(head < 0, norm, -norm))
        tau = torch.where(done, 0.0, (diagonal - head) / diagonal)
        v = torch.cat([torch.ones_like(head), torch.where(done, 0.0, tail / (head - diagonal))], -2)
        if j + 1 < n:
            r[..., j:, j + 1 :].sub_(v * tau * (v.mT @ r[..., j:, j + 1 :]))
        column.copy_(torch.cat([diagonal, v[..., 1:, :]], -2))
        taus.append(tau[..., 0])
    return r, torch.cat(taus, -1) if taus else a.new_zeros(*a.shape[:-2], 0)


@decomposes("linalg_householder_product.default")
def _householder_product(vectors: Tensor, tau: Tensor) -> Tensor:
    """Returns the first columns of the product of the reflections."""
    m, n = vectors.shape[-2:]
    q = torch.eye(m, n, dtype=vectors.dtype, device=vectors.device).expand(vectors.shape).contiguous()
    for j in reversed(range(tau.shape[-1])):
        below = vectors[..., j + 1 :, j : j + 1]
        v = torch.cat([torch.ones_like(vectors[..., j : j + 1, j : j + 1]), below], -2)
        part = q[..., j:, j:]
        part.sub_(v * tau[..., j : j + 1, None] * (v.mT @ part))
    return q
