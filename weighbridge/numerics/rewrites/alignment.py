"""The loss over all alignments of a sequence with labels that have no times (connectionist temporal classification).

A kernel adds over alignments in an order of its own. Here each time is one group of ruled operations over all records:
about six operations for a time in the forward pass, and six in the backward pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weighbridge.core.errors import RefusedOperationError
from weighbridge.numerics.rewrites.rewrite_table import decomposes

Tensor = torch.Tensor

IMPOSSIBLE = -1e30
"""The logarithm of the probability of what cannot be. It is finite, because infinities are logged in whole."""


def _numbers(lengths: Tensor | Sequence[int]) -> list[int]:
    return [int(n) for n in (lengths.tolist() if isinstance(lengths, Tensor) else lengths)]


def _extended(targets: Tensor, lengths: list[int], blank: int) -> Tensor:
    """Returns the labels of each record with blanks before, between and behind them; shape (N, 2 S + 1)."""
    longest = max([*lengths, 0])
    rows = targets if targets.dim() == 2 else None
    out = torch.full((len(lengths), 2 * longest + 1), blank, dtype=torch.int64, device=targets.device)
    start = 0
    for n, length in enumerate(lengths):
        row = rows[n, :length] if rows is not None else targets[start : start + length]
        out[n, 1 : 2 * length : 2] = row.to(torch.int64)
        start += length
    return out


def _skips(labels: Tensor, blank: int) -> Tensor:
    """True where a path may come from two places earlier: at a label that differs from the one before it."""
    before = torch.nn.functional.pad(labels[:, :-2], (min(2, labels.shape[1]), 0), value=blank)
    return (labels != blank) & (labels != before)


def _shifted(x: Tensor, places: int) -> Tensor:
    """Moves columns to the right (left if negative); what comes in is impossible."""
    width = x.shape[1]
    gap = x.new_full((x.shape[0], min(abs(places), width)), IMPOSSIBLE)
    return torch.cat([gap, x[:, : max(width - places, 0)]], 1) if places > 0 else torch.cat([x[:, -places:], gap], 1)


def _at_ends(lengths: list[int], width: int, device: torch.device) -> Tensor:
    """True at the last blank and the last label of each record; shape (N, width)."""
    last = torch.tensor([[2 * length] for length in lengths], device=device)
    places = torch.arange(width, device=device)
    return (places == last) | ((places == last - 1) & (last > 0))


@decomposes("_ctc_loss.default", "_ctc_loss.Tensor")
def _forward(
    log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int], target_lengths: Tensor | Sequence[int],
    blank: int = 0, zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Returns the negative logarithms of the labels' probabilities (N,) and of the prefixes' (N, T, 2 S + 1)."""
    times, lengths = _numbers(input_lengths), _numbers(target_lengths)
    if not times or min(times) < 1 or max(times) > log_probs.shape[0]:
        raise RefusedOperationError(
            f"ctc_loss of input lengths {times[:4]} over {log_probs.shape[0]} times; leave out empty records"
        )
    labels = _extended(targets, lengths, blank)
    skips = _skips(labels, blank)
    alpha = log_probs[0].gather(1, labels)
    alpha = torch.where(torch.arange(labels.shape[1], device=labels.device) < 2, alpha, IMPOSSIBLE)
    prefixes = [alpha]
    for t in range(1, log_probs.shape[0]):
        ways = torch.stack([alpha, _shifted(alpha, 1), torch.where(skips, _shifted(alpha, 2), IMPOSSIBLE)])
        alpha = torch.logsumexp(ways, 0) + log_probs[t].gather(1, labels)
        prefixes.append(alpha)
    whole = torch.stack(prefixes, 1)
    last = torch.tensor([[[t - 1]] for t in times], device=labels.device).expand(-1, 1, labels.shape[1])
    ends = torch.where(_at_ends(lengths, labels.shape[1], labels.device), whole.gather(1, last)[:, 0], IMPOSSIBLE)
    loss = -torch.logsumexp(ends, 1)
    return torch.where(loss > -IMPOSSIBLE / 10, float("inf"), loss), whole


@decomposes("_ctc_loss_backward.default", "_ctc_loss_backward.Tensor")
def _backward(
    grad: Tensor, log_probs: Tensor, targets: Tensor, input_lengths: Tensor | Sequence[int],
    target_lengths: Tensor | Sequence[int], neg_log_likelihood: Tensor, log_alpha: Tensor, blank: int,
    zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """Returns the gradient as PyTorch defines it: exp(log_probs) less the probability of each label at each time."""
    times, lengths = _numbers(input_lengths), _numbers(target_lengths)
    labels = _extended(targets, lengths, blank)
    skips, ends = _skips(labels, blank), _at_ends(lengths, labels.shape[1], labels.device)
    ahead = torch.nn.functional.pad(skips[:, 2:], (0, min(2, labels.shape[1])), value=False)
    last = torch.tensor([[t - 1] for t in times], device=labels.device)
    beta = log_probs.new_full(labels.shape, IMPOSSIBLE)
    shares: list[Tensor] = []
    for t in reversed(range(log_probs.shape[0])):
        here = log_probs[t].gather(1, labels)
        ways = torch.stack([beta, _shifted(beta, -1), torch.where(ahead, _shifted(beta, -2), IMPOSSIBLE)])
        begin = torch.where(ends, 0.0, IMPOSSIBLE)
        rest = torch.where(last == t, begin, torch.where(last > t, torch.logsumexp(ways, 0), IMPOSSIBLE))
        shares.append(torch.exp(log_alpha[:, t] + rest + neg_log_likelihood[:, None]))
        beta = (rest + here).clamp_min(IMPOSSIBLE)
    share = torch.stack(shares[::-1])
    by_label = torch.zeros_like(log_probs).scatter_add(2, labels.expand(share.shape), share)
    slope = (torch.exp(log_probs) - by_label) * grad[:, None]
    outside = torch.arange(log_probs.shape[0], device=labels.device)[:, None] > last[:, 0]
    slope = torch.where(outside[..., None], 0.0, slope)
    return torch.where(torch.isinf(neg_log_likelihood)[:, None], 0.0, slope) if zero_infinity else slope
