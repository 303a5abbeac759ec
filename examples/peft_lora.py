"""Record a fine-tuning with PEFT's LoRA, then replay it: `python examples/peft_lora.py`."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, get_cosine_schedule_with_warmup

import prover
from weighbridge import replay

RUN = Path("runs/peft_lora")


def rows(count: int) -> list[torch.Tensor]:
    """Rows of tokens of which each follows from the one before."""
    begins = np.random.default_rng(0).integers(0, 64, (count, 1))
    return list(torch.from_numpy((begins + 5 * np.arange(16)) % 64))


def main(out: Path = RUN) -> None:
    shutil.rmtree(out, ignore_errors=True)
    with prover.follow(out, seed=7):  # all that is added
        sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
        base = LlamaForCausalLM(LlamaConfig(**sizes))
        model = get_peft_model(base, LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]))
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
        schedule = get_cosine_schedule_with_warmup(optimizer, num_warmup_steps=2, num_training_steps=8)
        training, validation = DataLoader(rows(32), batch_size=4, shuffle=True), DataLoader(rows(16), batch_size=8)
        for epoch in range(2):
            model.train()
            for number, ids in enumerate(training):
                (model(input_ids=ids, labels=ids).loss / 2).backward()
                if number % 2:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    schedule.step()
                    optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                losses = [float(model(input_ids=ids, labels=ids).loss) for ids in validation]
            print(f"epoch {epoch}: loss {sum(losses) / len(losses):.3f}")
            model.save_pretrained(out.with_name(out.name + "-adapter"))


if __name__ == "__main__":
    main()
    result = replay(RUN)
    print(result.verdict, result.state)
    for finding in result.findings:
        print(f"{finding.severity}  {finding.id}: {finding.message}")
