"""Sequences without a transformer: scans, translation with attention, waveforms, alignment-free targets."""

from __future__ import annotations

import torch
import torch.distributions as D
import torch.nn.functional as F
from torch import nn
from zoo.machines import Zoo
from zoo.material import real, whole
from zoo.test_zoo_attention import adamw, minimise

Tensor = torch.Tensor


class Selective(nn.Module):
    """A selective state space: step sizes from the input, a scan in a loop, a short causal convolution, a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(16, 8), nn.RMSNorm(8)
        self.enter, self.conv = nn.Linear(8, 32), nn.Conv1d(16, 16, 3, groups=16, padding=2)
        self.select, self.step = nn.Linear(16, 9), nn.Linear(1, 16)
        self.log_a = nn.Parameter(torch.arange(1, 5).float().log().repeat(16, 1))
        self.skip, self.leave, self.out = nn.Parameter(torch.ones(16)), nn.Linear(16, 8), nn.Linear(8, 16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x)
        u, gate = self.enter(self.norm(h)).chunk(2, -1)
        u = F.silu(self.conv(u.mT)[..., : x.shape[1]].mT)
        delta, b, c = self.select(u).split([1, 4, 4], -1)
        delta = F.softplus(self.step(delta))
        decay = torch.exp(delta[..., None] * -self.log_a.exp())
        add = delta[..., None] * b[:, :, None] * u[..., None]
        state, outs = torch.zeros(len(x), 16, 4), []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + add[:, t]
            outs.append((state * c[:, t, None]).sum(-1))
        mixed = (torch.stack(outs, 1) + u * self.skip) * F.silu(gate)
        return F.cross_entropy(self.out(h + self.leave(mixed)).mT, y)


def test_a_selective_scan(zoo: Zoo) -> None:
    batches = [{"x": whole(16, 2, 6, seed=i), "y": whole(16, 2, 6, seed=i + 5)} for i in range(2)]
    zoo.holds(adamw(Selective), minimise, batches)


class Receptance(nn.Module):
    """Attention as a recurrence with an exponential decay, kept in range by a running maximum."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
        self.mix = nn.Parameter(torch.linspace(0, 1, 8))
        self.decay, self.first = nn.Parameter(torch.linspace(-3, 0, 8)), nn.Parameter(torch.full((8,), 0.3))
        self.r, self.k, self.v = (nn.Linear(8, 8, bias=False) for _ in range(3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embed(x)
        before = F.pad(h, (0, 0, 1, -1))
        h = torch.lerp(before, h, self.mix)
        r, k, v = self.r(h).sigmoid(), self.k(h), self.v(h)
        w = -self.decay.exp()
        above, below, most = torch.zeros(len(x), 8), torch.zeros(len(x), 8), torch.full((len(x), 8), -1e38)
        outs = []
        for t in range(x.shape[1]):
            now = torch.maximum(most, self.first + k[:, t])
            a, b = (most - now).exp(), (self.first + k[:, t] - now).exp()
            outs.append(r[:, t] * (a * above + b * v[:, t]) / (a * below + b))
            after = torch.maximum(most + w, k[:, t])
            a, b = (most + w - after).exp(), (k[:, t] - after).exp()
            above, below, most = a * above + b * v[:, t], a * below + b, after
        return F.cross_entropy(self.out(torch.stack(outs, 1)).flatten(0, 1), y.flatten())


def test_receptance_and_decay(zoo: Zoo) -> None:
    batches = [{"x": whole(16, 2, 5, seed=i), "y": whole(16, 2, 5, seed=i + 5)} for i in range(2)]
    zoo.holds(adamw(Receptance), minimise, batches)


class Translator(nn.Module):
    """A recurrent encoder, a recurrent decoder that looks back at it, scheduled sampling by a coin."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(12, 6, padding_idx=0), nn.Embedding(12, 6)
        self.encode, self.cell = nn.GRU(6, 5, batch_first=True, bidirectional=True), nn.GRUCell(16, 10)
        self.query, self.energy, self.out = nn.Linear(10, 10), nn.Linear(10, 1), nn.Linear(20, 12)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        states, last = self.encode(self.source(x))
        hidden, token, losses = torch.cat([last[0], last[1]], -1), torch.zeros(len(x), dtype=torch.long), []
        for t in range(y.shape[1]):
            score = self.energy(torch.tanh(self.query(hidden)[:, None] + states))[..., 0]
            weight = score.masked_fill(x == 0, float("-inf")).softmax(-1)
            context = torch.bmm(weight[:, None], states)[:, 0]
            hidden = self.cell(torch.cat([self.target(token), context], -1), hidden)
            logits = self.out(torch.cat([hidden, context], -1))
            losses.append(F.cross_entropy(logits, y[:, t], ignore_index=0))
            token = torch.where(torch.rand(len(x)) < 0.5, y[:, t], logits.argmax(-1))
        return torch.stack(losses).mean()


def test_translation(zoo: Zoo) -> None:
    batches = [{"x": whole(11, 3, 5, seed=i) + 1, "y": whole(11, 3, 4, seed=i) + 1} for i in range(2)]
    batches[0]["x"][1, 3:] = 0
    batches[1]["y"][2, 2:] = 0
    zoo.holds(adamw(Translator), minimise, batches)


class Listener(nn.Module):
    """Strided convolutions over a waveform with group norm, a wide positional convolution, and labels without times."""

    def __init__(self) -> None:
        super().__init__()
        self.front = nn.Sequential(
            nn.Conv1d(1, 8, 10, 5, bias=False), nn.GroupNorm(8, 8), nn.GELU(), nn.Conv1d(8, 8, 3, 2), nn.GELU()
        )
        self.place = nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 8, 4, padding=2, groups=2), dim=2)
        self.norm, self.mix = nn.LayerNorm(8), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.out = nn.Linear(8, 6)

    def forward(self, wave: Tensor, y: Tensor, lengths: Tensor) -> Tensor:
        h = self.front(wave[:, None])
        h = self.norm((h + F.gelu(self.place(h))[..., :-1]).mT)
        scores = self.out(self.mix(h)).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(scores, y, torch.full((len(wave),), len(scores)), lengths, zero_infinity=True)


def test_a_waveform_and_labels_without_times(zoo: Zoo) -> None:
    batches = [
        {"wave": real(2, 120, seed=i), "y": whole(5, 2, 4, seed=i) + 1, "lengths": torch.tensor([4, 2])}
        for i in range(2)
    ]
    zoo.holds(adamw(Listener), minimise, batches)


class Forecaster(nn.Module):
    """A recurrent network over a series with heavy tails and one of counts, which learns how heavy and how spread."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.out = nn.GRU(2, 8, batch_first=True), nn.Linear(8, 8)

    def forward(self, x: Tensor, counts: Tensor) -> Tensor:
        h = self.out(self.cell(torch.cat([x, counts.log1p()], -1))[0][:, :-1]).unsqueeze(-1)
        df, loc, scale, total, logits, alpha, beta, other = h.unbind(-2)
        x, counts, share = x[:, 1:], counts[:, 1:], x[:, 1:].sigmoid()
        heavy = D.StudentT(2 + F.softplus(df), loc, F.softplus(scale) + 1e-3, validate_args=False).log_prob(x)
        spread = D.NegativeBinomial(F.softplus(total) + 1e-3, logits=logits, validate_args=False).log_prob(counts)
        waits = D.Gamma(F.softplus(alpha) + 1e-3, F.softplus(beta), validate_args=False).log_prob(x.exp())
        shares = D.Beta(F.softplus(alpha) + 1e-3, F.softplus(other) + 1e-3, validate_args=False).log_prob(share)
        return -(heavy + spread + waits + shares).mean()


def test_forecasts_with_learned_tails(zoo: Zoo) -> None:
    batches = [{"x": real(4, 7, 1, seed=i), "counts": whole(9, 4, 7, 1, seed=i).float()} for i in range(3)]
    zoo.holds(adamw(Forecaster), minimise, batches, every=1)
    zoo.trains_as_without(adamw(Forecaster), minimise, batches)


def test_a_whisper(zoo: Zoo) -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=32, num_mel_bins=8, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, max_source_positions=8,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    batches = [{"input_features": real(2, 8, 16, seed=i), "labels": whole(32, 2, 5, seed=i)} for i in range(2)]
    zoo.holds(adamw(lambda: WhisperForConditionalGeneration(config)), minimise, batches)
