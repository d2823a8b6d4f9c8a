"""The memory that a conversion takes, there and back: `python -m bench.conversion`.

A model of Llama 3 8B's shape (16 GB in bfloat16) whose weights are all 0, in a file that takes no room on the disk.
Each direction runs in a process of its own, whose greatest resident set is read at its end. `--layers 4` needs
less disk and has the same peak: the embedding is the largest tensor. Prints one JSON object, and exits with 1 where a
direction takes more than 4 GB.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from megatronapp.trainer import arguments
from megatronapp.trainer.convert import families
from megatronapp.trainer.convert.family import Sizes
from megatronapp.trainer.convert.fields import Fields
from megatronapp.trainer.safetensors_folder import SINGLE, Planned, header

LIMIT_BYTES = 4 * 10**9
SHAPE: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "torch_dtype": "bfloat16",
}
OF_A_RUN = ("--train-iters", "1", "--micro-batch-size", "1", "--lr", "0", "--seq-length", "8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--folder", type=Path, help="where to write: twice the model's size; default: a temporary one")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        size = write_zeros(folder / "model", options.layers)
        there = converted("hf-to-core", folder / "model", folder / "core", "--tokenizer-type", "NullTokenizer")
        back = converted("core-to-hf", folder / "core", folder / "back")
    found = {"layers": options.layers, "model_bytes": size, "hf_to_core": there, "core_to_hf": back}
    print(json.dumps(found, indent=1))
    return int(max(there["peak_bytes"], back["peak_bytes"]) > LIMIT_BYTES)


def write_zeros(folder: Path, layers: int) -> int:
    """Returns the weights' bytes."""
    config = {**SHAPE, "num_hidden_layers": layers}
    fields = Fields(config, "config.json")
    family = families.of_config(fields)
    model = arguments.parse([*family.flags(fields), *OF_A_RUN])[0].model
    weights = family.weights(model, Sizes.of(model, SHAPE["vocab_size"], 8))
    planned = [Planned(name, shape, torch.bfloat16) for weight in weights for name, shape in weight.sources.items()]
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    beginning, size = header(planned), sum(math.prod(each.shape) * 2 for each in planned)
    (folder / SINGLE).write_bytes(beginning)
    os.truncate(folder / SINGLE, len(beginning) + size)
    return size


def converted(*words: str | Path) -> dict[str, float]:
    begin = time.perf_counter()
    code = (
        "import resource, sys; from megatronapp.trainer.convert.main import main; code = main(sys.argv[1:]); "
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *map(str, words)], check=True, capture_output=True, text=True)
    kilobytes = int(done.stdout.split()[-1])
    return {"peak_bytes": kilobytes * 1024, "seconds": round(time.perf_counter() - begin, 1)}


if __name__ == "__main__":
    sys.exit(main())
