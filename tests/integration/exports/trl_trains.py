"""Run by an interpreter that has TRL: load training sets as its users do, train a step on each, and tell what TRL made
of them.

    trl_trains.py JOBS     JOBS: JSON, a list of `{kind, path}`; kinds: sft, sft_tokens, dpo, dpo_tokens
                           prints JSON, for each job what it saw

The model is a tiny one with random weights; the tokenizer knows bytes and the marks of Qwen's template, TRL's own.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from importlib.resources import files
from typing import Any

from datasets import Dataset, load_dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 512


def tokenizer() -> PreTrainedTokenizerFast:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator([], trainers.BpeTrainer(special_tokens=SPECIAL, initial_alphabet=alphabet))
    fast = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=SPECIAL[2], pad_token=SPECIAL[0])
    fast.chat_template = (files("trl") / "chat_templates" / "qwen3.jinja").read_text()
    return fast


def model() -> LlamaForCausalLM:
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=8192, **size))


def settings() -> dict[str, Any]:
    return {
        "output_dir": tempfile.mkdtemp(),
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
        "max_length": None,
    }


def loaded(path: str) -> Dataset:
    kind = "parquet" if path.endswith(".parquet") else "json"
    return load_dataset(kind, data_files=path, split="train", cache_dir=tempfile.mkdtemp())


def sft(path: str, *, of_tokens: bool) -> dict[str, Any]:
    spoken, given = tokenizer(), loaded(path)
    config = SFTConfig(**settings(), assistant_only_loss=not of_tokens, shuffle_dataset=False)
    trainer = SFTTrainer(model=model(), args=config, train_dataset=given, processing_class=spoken)
    [batch, *_] = trainer.get_train_dataloader()
    rows = list(trainer.train_dataset)
    loss = trainer.train().training_loss
    told: dict[str, Any] = {"rows": len(rows), "columns": given.column_names, "finite": math.isfinite(loss)}
    told["first"] = given[0]
    told["batch"] = {name: list(batch[name].shape) for name in ("input_ids", "labels", "attention_mask")}
    if of_tokens:
        return told | {"input_ids": [row["input_ids"] for row in rows], "labels": [row["labels"] for row in rows]}
    learnt = [[id for id in row["labels"] if id != -100] for row in rows]
    return told | {
        "texts": [spoken.decode(row["input_ids"]) for row in rows],
        "learnt": [spoken.decode(ids) for ids in learnt],
    }


class TokenDPOTrainer(DPOTrainer):
    """Takes a set that is tokenised already; this one method is all that differs."""

    def _prepare_dataset(self, dataset: Dataset, *arguments: Any, **more: Any) -> Dataset:
        return dataset


def dpo(path: str, *, of_tokens: bool) -> dict[str, Any]:
    spoken, given = tokenizer(), loaded(path)
    kind = TokenDPOTrainer if of_tokens else DPOTrainer
    policy, reference = model(), model()  # without the second, TRL would load it by the first's name
    trainer = kind(policy, reference, DPOConfig(**settings()), train_dataset=given, processing_class=spoken)
    rows = list(trainer.train_dataset)
    batch = trainer.data_collator([dict(row) for row in rows[:2]])
    loss = trainer.train().training_loss
    told: dict[str, Any] = {"rows": len(rows), "columns": given.column_names, "finite": math.isfinite(loss)}
    told["first"] = given[0]
    told["batch"] = {name: batch[name].tolist() for name in ("input_ids", "completion_mask")}
    if not of_tokens:
        for name in ("prompt", "chosen", "rejected"):
            told[name] = [spoken.decode(row[f"{name}_ids"]) for row in rows]
    return told


def main() -> None:
    jobs = json.loads(sys.argv[1])
    kinds = {"sft": sft, "dpo": dpo}
    told = []
    for job in jobs:
        kind, _, form = job["kind"].partition("_")
        told.append(kinds[kind](job["path"], of_tokens=form == "tokens"))
    print(json.dumps(told))


if __name__ == "__main__":
    main()
