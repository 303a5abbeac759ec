"""Byte-level GPT-2 of Hugging Face's `transformers` on the sources of Python's library.

Dropout on, AdamW, linear warm-up, gradient clipping: what a user's own training has. As a program it records itself:
`python -m prover.recipes.gpt2 --out RUN --steps 20 --seed 7 --data-commitment`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from prover import formulas
from prover.recipes.corpus import library_records
from prover.recipes.program import main
from prover.recipes.recipe import Batch, Training


@dataclass(frozen=True)
class Gpt2:
    """The recipe; its default size has 2.2 million parameters.

    Attributes:
        layers: Transformer blocks.
        width: Size of the residual stream, divisible by `heads`.
        heads: Attention heads.
        context: Bytes in a record.
        batch_size: Records in a batch.
        records: Most records of the corpus to use.
        warmup: Updates until the learning rate is at its full value.
        dropout: Probability of every dropout in the model.
        device: Device to train on; the data set stays in host memory.
        share: Which records of a batch this process trains on: (first, stride).
        wrap: What to do with the model before its optimizer is built, e.g. to shard it.
    """

    layers: int = 4
    width: int = 208
    heads: int = 4
    context: int = 64
    batch_size: int = 8
    records: int = 8192
    warmup: int = 5
    dropout: float = 0.1
    device: str = "cpu"
    share: tuple[int, int] = (0, 1)
    wrap: Callable[[nn.Module], None] = lambda model: None
    name: str = "gpt2"

    def count(self) -> int:
        """Returns the number of records of the data set."""
        return len(library_records(self.context, self.records))

    def batch(self, ids: Sequence[int]) -> Batch:
        """Returns `{"input_ids": int64 (batch, context)}` of fresh tensors."""
        rows = library_records(self.context, self.records)[list(ids)]
        return {"input_ids": torch.tensor(rows, dtype=torch.int64, device=self.device)}

    def build(self) -> Training:
        """Builds the model with fresh weights, AdamW and a linear warm-up."""
        from transformers import GPT2Config, GPT2LMHeadModel  # noqa: PLC0415 (of the extra `demo`)

        config = GPT2Config(
            vocab_size=256,
            n_positions=self.context,
            n_embd=self.width,
            n_layer=self.layers,
            n_head=self.heads,
            resid_pdrop=self.dropout,
            embd_pdrop=self.dropout,
            attn_pdrop=self.dropout,
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,
        )
        with torch.device(self.device):
            model = GPT2LMHeadModel(config).train()
        model.loss_type = "ForCausalLM"  # what it would fall back to, with a warning
        self.wrap(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: min(1.0, (done + 1) / self.warmup))
        return Training(model, optimizer, schedule)

    def formulas(self) -> dict[str, str]:
        """Returns how the numbers that change follow from the step: warm-up and AdamW's corrections."""
        return formulas.warmup(1e-3, self.warmup) | formulas.adamw(weight_decay=0.01)

    def update(self, training: Training, batch: Batch) -> Tensor:
        """Does one update on the next-byte loss, gradients clipped to norm 1."""
        loss: Tensor = training.model(input_ids=batch["input_ids"], labels=batch["input_ids"]).loss
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        training.optimizer.step()
        training.optimizer.zero_grad()
        return loss


if __name__ == "__main__":
    main(Gpt2())
