"""Models of `transformers` as a reference: run by a Python that has it (tests/support/transformer_lens_venv.py).

    python transformers_model.py FOLDER

FOLDER/wanted.json maps names to {"config": …, "tokens": [[…]]}. Of each, FOLDER/NAME gets a model of random weights as
save_pretrained writes it, and FOLDER/NAME.npz its `logits` [batch, position, vocabulary].
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM  # type: ignore[import-not-found]


def main(folder: Path) -> None:
    for name, wanted in json.loads((folder / "wanted.json").read_text()).items():
        make(folder, name, **wanted)


def make(folder: Path, name: str, config: dict[str, Any], tokens: list[list[int]]) -> None:
    torch.manual_seed(1)
    # Weights so large that attention is far from uniform, and biases and norms far from 0 and 1.
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config), attn_implementation="eager").eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        logits = model(torch.tensor(tokens)).logits
    model.save_pretrained(folder / name, max_shard_size="100KB")
    np.savez(folder / f"{name}.npz", logits=logits.numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
