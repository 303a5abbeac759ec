"""Attention in the forms people write: encoders and decoders, contrastive pairs, tables, graphs, sparse masks."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from zoo.machines import Zoo
from zoo.material import Batch, real, whole

Tensor = torch.Tensor


def minimise(batch: Batch, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One update of a model that returns its own loss."""
    optimizer.zero_grad()
    out = model(**batch)
    (out if isinstance(out, Tensor) else out.loss).backward()
    optimizer.step()


def adamw(make: Any) -> Any:
    """Builds a model and AdamW for those of its parameters that learn."""

    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = make().train()
        return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    return build


def test_masked_words_with_padding(zoo: Zoo) -> None:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=16,
    )  # fmt: skip
    batches = []
    for seed in range(2):
        words = whole(32, 3, 8, seed=seed)
        masked = real(3, 8, seed=seed) > 0.5
        mask = torch.arange(8) < torch.tensor([[8], [5], [6]])
        batches.append({
            "input_ids": words.masked_fill(masked, 1), "attention_mask": mask.long(),
            "labels": words.masked_fill(~masked, -100),
        })  # fmt: skip
    zoo.holds(adamw(lambda: BertForMaskedLM(config)), minimise, batches)


def test_an_encoder_and_a_decoder(zoo: Zoo) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, feed_forward_proj="gated-gelu",
        decoder_start_token_id=0,
    )  # fmt: skip
    batches = [{"input_ids": whole(32, 2, 7, seed=i), "labels": whole(32, 2, 5, seed=i)} for i in range(2)]
    zoo.holds(adamw(lambda: T5ForConditionalGeneration(config)), minimise, batches)


def test_fine_tuning_the_head_and_the_last_layer(zoo: Zoo) -> None:
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    def make() -> nn.Module:
        config = DistilBertConfig(vocab_size=32, dim=16, n_layers=2, n_heads=2, hidden_dim=32, num_labels=3)
        model: Any = DistilBertForSequenceClassification(config)
        for part in (model.distilbert.embeddings, model.distilbert.transformer.layer[0]):
            part.requires_grad_(False)
        return model

    batches = [{"input_ids": whole(32, 4, 6, seed=i), "labels": whole(3, 4, seed=i)} for i in range(2)]
    zoo.holds(adamw(make), minimise, batches)


class Pairs(nn.Module):
    """Two towers and a learned temperature: each picture must find its own text among all others."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.read, self.mix = nn.Embedding(20, 8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        h = self.read(words)
        h = self.mix(h, h, h, need_weights=False)[0].mean(1)
        a, b = F.normalize(self.see(x), dim=-1), F.normalize(h, dim=-1)
        logits = self.scale.exp().clamp(max=100) * a @ b.T
        target = torch.arange(len(x))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def test_pictures_and_texts(zoo: Zoo) -> None:
    batches = [{"x": real(4, 3, 8, 8, seed=i), "words": whole(20, 4, 5, seed=i)} for i in range(3)]
    zoo.holds(adamw(Pairs), minimise, batches)


class Table(nn.Module):
    """Columns of categories through a transformer, beside columns of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.ModuleList(nn.Embedding(n, 8) for n in (3, 5, 7))
        self.which = nn.Parameter(torch.randn(3, 8) * 0.02)
        self.mix = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.norm, self.out = nn.LayerNorm(2), nn.Sequential(nn.Linear(26, 16), nn.SELU(), nn.Linear(16, 1))

    def forward(self, kinds: Tensor, numbers: Tensor, y: Tensor) -> Tensor:
        h = torch.stack([e(kinds[:, i]) for i, e in enumerate(self.columns)], 1) + self.which
        h = torch.cat([self.mix(h).flatten(1), self.norm(numbers)], 1)
        return F.binary_cross_entropy_with_logits(self.out(h)[:, 0], y, pos_weight=torch.tensor(2.0))


def test_a_table(zoo: Zoo) -> None:
    batches = [
        {
            "kinds": torch.stack([whole(n, 6, seed=i) for n in (3, 5, 7)], 1),
            "numbers": real(6, 2, seed=i),
            "y": whole(2, 6, seed=i).float(),
        }
        for i in range(3)
    ]
    zoo.holds(adamw(Table), minimise, batches)


class GraphAttention(nn.Module):
    """Softmax over the edges that arrive at a node, by a scattered maximum and a scattered sum."""

    def __init__(self) -> None:
        super().__init__()
        self.lift, self.out = nn.Linear(5, 8, bias=False), nn.Linear(8, 2)
        self.a = nn.Parameter(torch.empty(2, 2, 4))
        nn.init.xavier_uniform_(self.a)

    def forward(self, x: Tensor, edges: Tensor, y: Tensor) -> Tensor:
        source, target = edges
        h = self.lift(x).view(-1, 2, 4)
        score = F.leaky_relu((h[source] * self.a[0]).sum(-1) + (h[target] * self.a[1]).sum(-1), 0.2)
        places = target[:, None].expand_as(score)
        most = torch.full((len(x), 2), -math.inf).scatter_reduce(0, places, score, "amax")
        weight = (score - most[target]).exp()
        total = torch.zeros(len(x), 2).scatter_add(0, places, weight)
        weight = F.dropout(weight / (total[target] + 1e-16), 0.3, self.training)
        gathered = torch.zeros_like(h).index_add(0, target, h[source] * weight[..., None])
        return F.nll_loss(self.out(F.elu(gathered.flatten(1))).log_softmax(-1), y)


def test_a_graph_with_attention(zoo: Zoo) -> None:
    batches = [{"x": real(9, 5, seed=i), "edges": whole(9, 2, 25, seed=i), "y": whole(2, 9, seed=i)} for i in range(3)]
    zoo.holds(adamw(GraphAttention), minimise, batches)


class Windows(nn.Module):
    """Attention within a window and to a few global places; sums of relative positions by a bucket table."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(16, 8), nn.Linear(8, 24), nn.Linear(8, 16)
        self.bias = nn.Embedding(8, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        n = x.shape[1]
        q, k, v = self.qkv(self.embed(x)).view(*x.shape, 3, 2, 4).permute(2, 0, 3, 1, 4)
        away = torch.arange(n)[:, None] - torch.arange(n)
        allowed = ((away >= 0) & (away < 3)) | (torch.arange(n) == 0)
        bias = self.bias(away.abs().clamp(max=7)).permute(2, 0, 1)
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(~allowed, -math.inf))
        blocked = torch.where(allowed, q @ k.mT / 2, -1e9).softmax(-1) @ v
        h = (h + blocked).transpose(1, 2).flatten(2)
        return F.cross_entropy(self.out(h).flatten(0, 1), y.flatten())


def test_sparse_masks(zoo: Zoo) -> None:
    batches = [{"x": whole(16, 2, 9, seed=i), "y": whole(16, 2, 9, seed=i + 5)} for i in range(3)]
    zoo.holds(adamw(Windows), minimise, batches)
