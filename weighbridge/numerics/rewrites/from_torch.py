"""PyTorch's own decompositions that end in operations with rules."""

from __future__ import annotations

import torch

from weighbridge.numerics.rewrites.rewrite_table import TABLE, Decomposition

_NAMES = """
addr.default col2im.default deg2rad.default _fused_rms_norm_backward.default im2col.default linalg_cross.default
logit.default logit_backward.default max_unpool2d.default max_unpool3d.default rad2deg.default renorm.default
rot90.default sinc.default soft_margin_loss.default soft_margin_loss_backward.default special_entr.default
"""


def _decomposition(name: str) -> dict[str, Decomposition]:
    """PyTorch's decomposition of an overload, or nothing in a version that lacks the overload."""
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    return {} if op is None else {name: torch._decomp.decomposition_table[op]}


for _name in _NAMES.split():
    TABLE.update(_decomposition(_name))
