"""Language models from transformers, as small as they can be."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.releases import lacking
from torch import nn
from zoo.machines import Zoo
from zoo.material import Batch, whole

VOCABULARY = 48


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    special = {"bos_token_id": 0, "eos_token_id": 0}
    return GPT2LMHeadModel(GPT2Config(vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2, **special))


COMMON = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 16,
}  # fmt: skip


def llama() -> nn.Module:
    """RMSNorm, rotary positions, grouped queries, SwiGLU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**COMMON, num_key_value_heads=2))


def mixtral() -> nn.Module:
    """Each token goes to two of four experts, and the router has a loss of its own.

    Without PyTorch's products of groups, transformers would take a custom operator of its own, which has no rule.
    """
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**COMMON, num_key_value_heads=2, num_local_experts=4, output_router_logits=True)
    if "_grouped_mm.default" in lacking():
        config._experts_implementation = "eager"
    return MixtralForCausalLM(config)


def bert() -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig(**COMMON))


@pytest.mark.parametrize(
    "model", [gpt2, llama, *(pytest.param(each, marks=pytest.mark.soak) for each in (mixtral, bert))]
)
def test_a_language_model(zoo: Zoo, model: Any) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        made = model().train()
        return made, torch.optim.AdamW(made.parameters(), lr=1e-3)

    def step(batch: Batch, made: Any, optimizer: torch.optim.Optimizer) -> None:
        made(input_ids=batch["x"], labels=batch["x"]).loss.backward()
        nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    here, *elsewhere = zoo.holds(build, step, [{"x": whole(VOCABULARY, 2, 10, seed=i)} for i in range(3)])
    assert here["followed"] == 0, "the machine that recorded rounds as it recorded"
    assert here["logged"] == elsewhere[0]["logged"]


class Experts(nn.Module):
    """A layer whose tokens go to the two best of four experts, with a capacity and the usual balancing loss."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4, bias=False)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        odds = self.router(x).softmax(-1)
        weights, chosen = odds.topk(2, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == number)
            token, rank = token[:12], rank[:12]
            out.index_add_(0, token, expert(x[token]) * weights[token, rank, None])
        load = F.one_hot(chosen, 4).float().mean((0, 1))
        return out, (load * odds.mean(0)).sum()


def test_a_mixture_of_experts_with_ties_between_experts(zoo: Zoo) -> None:
    def build() -> tuple[nn.Module, torch.optim.Optimizer]:
        layer = Experts()
        nn.init.zeros_(layer.router.weight)  # all experts tie at first: the lowest indices win
        return layer, torch.optim.Adam(layer.parameters(), lr=1e-2)

    def step(batch: Batch, layer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        x = F.one_hot(batch["x"], 8).float()
        out, balance = layer(x)
        (F.mse_loss(out, x.roll(1, 0)) + 0.1 * balance).backward()
        optimizer.step()
        optimizer.zero_grad()

    zoo.holds(build, step, [{"x": whole(8, 20, seed=i)} for i in range(3)])
