"""Models of `transformers` as a reference: run by a Python that has it (tests/support/transformer_lens_venv.py).

    python transformers_model.py FOLDER

FOLDER/wanted.json maps names to {"config": …, "tokens": [[…]]}. Of each, FOLDER/NAME gets a model of random weights as
save_pretrained writes it, and FOLDER/NAME.npz its `logits` [batch, position, vocabulary]. T5 decodes the tokens that it
encodes, in their order back; of Megatron-BERT, whose second half of tokens is the second text, there is `order` too.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (  # type: ignore[import-not-found]
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForPreTraining,
    AutoModelForSeq2SeqLM,
)

KINDS = {"t5": AutoModelForSeq2SeqLM, "mt5": AutoModelForSeq2SeqLM, "megatron-bert": AutoModelForPreTraining}


def main(folder: Path) -> None:
    for name, wanted in json.loads((folder / "wanted.json").read_text()).items():
        make(folder, name, **wanted)


def make(folder: Path, name: str, config: dict[str, Any], tokens: list[list[int]]) -> None:
    torch.manual_seed(1)
    # Weights so large that attention is far from uniform, and biases and norms far from 0 and 1.
    kind = KINDS.get(config["model_type"], AutoModelForCausalLM)
    model = kind.from_config(AutoConfig.for_model(**config), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        found = answers(model, torch.tensor(tokens))
    model.save_pretrained(folder / name, max_shard_size="100KB")
    np.savez(folder / f"{name}.npz", **{key: each.numpy() for key, each in found.items()})


def answers(model: Any, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    kind = model.config.model_type
    if kind == "megatron-bert":
        types = (torch.arange(tokens.shape[1]) >= tokens.shape[1] // 2).long().expand_as(tokens)
        output = model(tokens, token_type_ids=types)
        return {"logits": output.prediction_logits, "order": output.seq_relationship_logits}
    if kind in ("t5", "mt5"):
        return {"logits": model(tokens, decoder_input_ids=tokens.flip(1)).logits}
    return {"logits": model(tokens).logits}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
