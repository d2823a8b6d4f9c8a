"""What `transformers` goes on with, greedily: run by a Python that has it (tests/support/transformer_lens_venv.py).

    python transformers_greedy.py FOLDER PROMPT COUNT VOCABULARY

Prints COUNT token ids as JSON. Tokens from VOCABULARY on, which the tokenizer does not have, are never taken.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast  # type: ignore[import-not-found]


def main(folder: Path, prompt: str, count: int, vocabulary: int) -> None:
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    ids: list[int] = tokenizer(prompt)["input_ids"]
    given = len(ids)
    with torch.no_grad():
        while len(ids) < given + count:
            ids.append(int(model(torch.tensor([ids])).logits[0, -1, :vocabulary].argmax()))
    print(json.dumps(ids[given:]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
