"""Factorisations of matrices, column by column, out of operations that have rules.

A library blocks its factorisations as it likes, and an ill-conditioned matrix turns another order into another result.
Here each column is one group of ruled operations in a fixed order: slower (a QR of order n costs some 30 n operations),
but the same everywhere. All of it works on the last two dimensions of any batch.
"""

from __future__ import annotations

from typing import cast

import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.rewrites.rewrite_table import decomposes

Tensor = torch.Tensor


def _reflect(x: Tensor, v: Tensor, w: Tensor) -> None:
    """Subtracts v (w^T x), both in columns."""
    x.sub_(v * (w.mT @ x))


@decomposes("linalg_qr.default")
def _qr(a: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """Householder's QR with the signs of LAPACK: what a reflection leaves on the diagonal is of the other sign."""
    m, n = a.shape[-2:]
    k = min(m, n)
    r = a.clone(memory_format=torch.contiguous_format)
    reflectors = []
    for j in range(min(m - 1, n)):
        column = r[..., j:, j : j + 1]
        head = column[..., :1, :].clone()
        norm = torch.linalg.vector_norm(column, dim=-2, keepdim=True)
        done = torch.linalg.vector_norm(column[..., 1:, :], dim=-2, keepdim=True) == 0
        diagonal = torch.where(done, head, torch.where(head < 0, norm, -norm))
        v = column.clone(memory_format=torch.contiguous_format)
        v[..., :1, :] -= diagonal  # two numbers of one sign are added: nothing cancels
        w = torch.where(done, 0.0, v / (norm * v[..., :1, :].abs()))  # v over half of v^T v
        if j + 1 < n:
            _reflect(r[..., j:, j + 1 :], v, w)
        r[..., j : j + 1, j : j + 1] = diagonal
        reflectors.append((v, w))
    if mode == "r":
        return a.new_empty(0), r[..., :k, :].triu()
    width = m if mode == "complete" else k
    q = torch.eye(m, width, dtype=a.dtype, device=a.device).expand(*a.shape[:-2], m, width).contiguous()
    for j, (v, w) in reversed(list(enumerate(reflectors))):
        _reflect(q[..., j:, j:], v, w)
    return q, r[..., :width, :].triu()


@decomposes("linalg_solve_triangular.default")
def _solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """Substitution, one row of the solution at a time."""
    if not left:
        transposed = _solve_triangular(a.mT, b.mT, upper=not upper, left=True, unitriangular=unitriangular)
        return cast(Tensor, transposed.mT.contiguous())
    n = a.shape[-1]
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    x = b.expand(*batch, *b.shape[-2:]).clone(memory_format=torch.contiguous_format)
    for i in reversed(range(n)) if upper else range(n):
        row = x[..., i : i + 1, :]
        if not unitriangular:
            row.div_(a[..., i : i + 1, i : i + 1])
        rest = slice(0, i) if upper else slice(i + 1, n)
        x[..., rest, :].sub_(a[..., rest, i : i + 1] * row)
    return x


@decomposes("linalg_cholesky_ex.default")
def _cholesky(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """Cholesky, one column at a time; `info` is the first column without a positive pivot, or 0."""
    rest = (a.mH if upper else a).clone(memory_format=torch.contiguous_format)
    info = torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)
    for j in range(a.shape[-1]):
        pivot = rest[..., j : j + 1, j : j + 1]
        bad = ~(pivot[..., 0, 0] > 0)
        info = torch.where(bad & (info == 0), j + 1, info)
        pivot.sqrt_()
        column = rest[..., j + 1 :, j : j + 1]
        column.div_(pivot)
        rest[..., j + 1 :, j + 1 :].sub_(column * column.mT)
    factor = rest.tril()
    if check_errors:
        _check(info, "linalg.cholesky", is_matrix=a.dim() == 2)
    return (factor.mH.contiguous() if upper else factor), info.to(torch.int32)


@decomposes("linalg_lu_factor_ex.default")
def _lu(a: Tensor, *, pivot: bool = True, check_errors: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Gaussian elimination with partial pivoting; of equal pivots the first is taken."""
    m, n = a.shape[-2:]
    lu = a.clone(memory_format=torch.contiguous_format)
    rows = torch.arange(m, device=a.device).expand(*a.shape[:-2], m)
    info = torch.zeros(a.shape[:-2], dtype=torch.int32, device=a.device)
    pivots = []
    for j in range(min(m, n)):
        chosen = lu[..., j:, j].abs().argmax(-1, keepdim=True) + j if pivot else rows[..., j : j + 1]
        order = rows.scatter(-1, chosen, j)
        order[..., j : j + 1] = chosen  # rows j and chosen trade places
        lu = lu.gather(-2, order.unsqueeze(-1).expand(lu.shape))
        pivots.append(chosen + 1)
        head = lu[..., j : j + 1, j : j + 1]
        info = torch.where((head[..., 0, 0] == 0) & (info == 0), j + 1, info)
        column = lu[..., j + 1 :, j : j + 1]
        column.copy_(torch.where(head == 0, column, column / head))
        lu[..., j + 1 :, j + 1 :].sub_(column * lu[..., j : j + 1, j + 1 :])
    if check_errors:
        _check(info, "linalg.lu_factor", is_matrix=a.dim() == 2)
    all_pivots = torch.cat(pivots, -1) if pivots else rows[..., :0]
    return lu, all_pivots.to(torch.int32), info.to(torch.int32)


@decomposes("linalg_lu_solve.default")
def _lu_solve(lu: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    if not left:
        return cast(Tensor, _lu_solve(lu, pivots, b.mT, left=True, adjoint=not adjoint).mT.contiguous())
    n = lu.shape[-1]
    batch = torch.broadcast_shapes(lu.shape[:-2], b.shape[:-2])  # type: ignore[no-untyped-call]
    order = torch.arange(n, device=lu.device).expand(*lu.shape[:-2], n).contiguous()
    for j in range(n):
        other = pivots[..., j : j + 1].to(torch.int64) - 1
        here, there = order[..., j : j + 1].clone(), order.gather(-1, other)
        order = order.scatter(-1, other, here)
        order[..., j : j + 1] = there
    if adjoint:  # A = P L U, so A^T x = b is U^T L^T P^T x = b
        order = torch.argsort(order, dim=-1, stable=True)
        b = _solve_triangular(lu.mT, b, upper=False)
        b = _solve_triangular(lu.mT, b, upper=True, unitriangular=True)
    b, order = b.expand(*batch, *b.shape[-2:]), order.expand(*batch, n)
    b = b.gather(-2, order.unsqueeze(-1).expand(b.shape))
    if adjoint:
        return b
    b = _solve_triangular(lu, b, upper=False, unitriangular=True)
    return cast(Tensor, _solve_triangular(lu, b, upper=True))


def _solves_by_the_transpose() -> bool:
    """Whether this PyTorch solves with the factors of the transpose where the matrix is contiguous, as older ones do.

    Its backward pass takes the factors for those that its own kernel returns.
    """
    a = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
    return not torch.equal(torch.ops.aten._linalg_solve_ex(a, torch.ones(2))[1], a)


_SOLVES_BY_THE_TRANSPOSE = _solves_by_the_transpose()


@decomposes("_linalg_solve_ex.default")
def _solve(
    a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    transposed = _SOLVES_BY_THE_TRANSPOSE and a.is_contiguous()
    lu, pivots, info = _lu(a.mT if transposed else a)
    if check_errors:
        _check(info, "linalg.solve", is_matrix=a.dim() == 2)
    vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    x = _lu_solve(lu, pivots, b.unsqueeze(-1) if vector else b, left=left, adjoint=transposed)
    return (x.squeeze(-1) if vector else x), lu, pivots, info


@decomposes("linalg_inv_ex.default")
def _inverse(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    lu, pivots, info = _lu(a)
    if check_errors:
        _check(info, "linalg.inv", is_matrix=a.dim() == 2)
    return _lu_solve(lu, pivots, torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)), info


def _parity(pivots: Tensor) -> Tensor:
    """True where the rows traded places an odd number of times."""
    still = torch.arange(1, pivots.shape[-1] + 1, device=pivots.device)
    return (pivots != still).sum(-1) & 1 == 1


def _factored(a: Tensor) -> Tensor:
    """What a determinant factors: the backward pass expects the factors of the transpose where `a` is contiguous."""
    return a.mT if a.is_contiguous() else a


@decomposes("_linalg_det.default")
def _determinant(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    lu, pivots, _ = _lu(_factored(a))
    product = lu.diagonal(dim1=-2, dim2=-1).prod(-1)
    return torch.where(_parity(pivots), -product, product), lu, pivots


@decomposes("_linalg_slogdet.default")
def _log_determinant(a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    lu, pivots, _ = _lu(_factored(a))
    diagonal = lu.diagonal(dim1=-2, dim2=-1)
    sign = diagonal.sign().prod(-1)
    return torch.where(_parity(pivots), -sign, sign), diagonal.abs().log().sum(-1), lu, pivots


@decomposes("_linalg_check_errors.default")
def _check(info: Tensor, api_name: str, *, is_matrix: bool) -> None:
    if bool((info != 0).any()):
        raise RefusedOperationError(
            f"{api_name}: the factorisation broke down (a pivot is zero, or the matrix is not positive definite); "
            "add a multiple of the identity before factorising"
        )


@decomposes("cholesky_solve.default")
def _cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    first, second = (factor.mT, factor) if upper else (factor, factor.mT)
    half = torch.linalg.solve_triangular(first, b, upper=False)
    return cast(Tensor, torch.linalg.solve_triangular(second, half, upper=True))
