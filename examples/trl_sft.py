"""Record a supervised fine-tuning with TRL's SFTTrainer, then replay it: `python examples/trl_sft.py`."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

import prover
from weighbridge import replay

RUN = Path("runs/trl_sft")
WORDS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def dialogues(count: int) -> Dataset:
    """Prompts with completions that repeat them."""
    drawn = np.random.default_rng(0).choice(WORDS, (count, 4))
    return Dataset.from_list([{"prompt": " ".join(each), "completion": " " + " ".join(each[::-1])} for each in drawn])


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer of whole words, made here instead of read from a hub."""
    words = Tokenizer(models.WordLevel({word: n for n, word in enumerate(["<pad>", "</s>", *WORDS])}, "<pad>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="</s>")


def main(out: Path = RUN) -> None:
    shutil.rmtree(out, ignore_errors=True)
    with prover.follow(out, seed=7):  # all that is added
        sizes = dict(vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2)
        arguments = SFTConfig(
            output_dir=str(out.with_name(out.name + "-checkpoints")), num_train_epochs=2, learning_rate=3e-3,
            per_device_train_batch_size=4, gradient_accumulation_steps=2, max_grad_norm=1.0, warmup_steps=2,
            lr_scheduler_type="cosine", eval_strategy="epoch", save_strategy="epoch", report_to=[], use_cpu=True,
            bf16=False, max_length=16,
        )  # fmt: skip
        model = LlamaForCausalLM(LlamaConfig(**sizes))
        SFTTrainer(
            model, arguments, train_dataset=dialogues(32), eval_dataset=dialogues(8), processing_class=tokenizer(),
            peft_config=LoraConfig(r=4, lora_dropout=0.1, target_modules=["q_proj", "v_proj"]),
        ).train()  # fmt: skip


if __name__ == "__main__":
    main()
    result = replay(RUN)
    print(result.verdict, result.state)
    for finding in result.findings:
        print(f"{finding.severity}  {finding.id}: {finding.message}")
