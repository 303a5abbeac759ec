"""Calls of what `weighbridge.numerics.rewrites.factorisations` decomposes."""

from __future__ import annotations

import torch
from support.operator_calls.draw import Call, Draw, call, of


@of("cholesky_solve.default")
def _(draw: Draw) -> Call:
    a = draw.matrix(draw.size())
    upper = draw.flag()
    factor = torch.linalg.cholesky(a @ a.mT + torch.eye(a.shape[-1]), upper=upper)
    return call(draw.real(*a.shape[:-1], 2), factor, upper)


@of("linalg_solve_triangular.default")
def _(draw: Draw) -> Call:
    n, left = draw.size(), draw.flag()
    a = draw.matrix(n).flip(-2)
    b = draw.real(*a.shape[:-2], n, 2) if left else draw.real(*a.shape[:-2], 2, n)
    return call(a, b, upper=draw.flag(), left=left, unitriangular=draw.flag())


@of("linalg_cholesky_ex.default")
def _(draw: Draw) -> Call:
    a = draw.matrix(draw.size())
    return call(a @ a.mT + torch.eye(a.shape[-1]), upper=draw.flag())


@of("linalg_lu_factor_ex.default", "linalg_inv_ex.default", "_linalg_det.default", "_linalg_slogdet.default")
def _(draw: Draw) -> Call:
    return call(draw.matrix(draw.size()))


@of("linalg_lu_solve.default")
def _(draw: Draw) -> Call:
    n, left = draw.size(), draw.flag()
    lu, pivots, _ = torch.linalg.lu_factor_ex(draw.matrix(n))
    b = draw.real(*lu.shape[:-2], n, 2) if left else draw.real(*lu.shape[:-2], 2, n)
    return call(lu, pivots, b, left=left, adjoint=draw.flag())


@of("_linalg_solve_ex.default")
def _(draw: Draw) -> Call:
    a = draw.matrix(draw.size())
    return call(a, draw.real(*a.shape[:-1], *draw.of((), (3,))))


@of("linalg_qr.default")
def _(draw: Draw) -> Call:
    return call(draw.real(*draw.of((), (2,)), draw.size(), draw.size()), draw.of("reduced", "complete", "r"))


@of("_linalg_check_errors.default")
def _(draw: Draw) -> Call:
    return call(torch.zeros(draw.shape(), dtype=torch.int32), "linalg.inv", is_matrix=False)
