"""The flags of `megatronapp convert`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from megatronapp.trainer.convert import aliases
from megatronapp.trainer.data.tokenizers import TOKENIZER_TYPES
from megatronapp.trainer.generate.arguments import Parser

DTYPES = ("fp32", "bf16", "fp16")
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
TOKENIZER_FLAGS = ("tokenizer_type", "tokenizer_model", "vocab_file", "merge_file")


@dataclass(frozen=True, kw_only=True)
class Options:
    """`dtype` None: that of the source. `model_type` None: what the model's settings say. `tokenizer`: settings by
    name, where the source's own is not taken."""

    source: Path
    target: Path
    dtype: str | None = None
    tensor: int = 1
    pipeline: int = 1
    tokenizer: dict[str, str] = field(default_factory=dict)
    model_type: str | None = None
    max_shard_bytes: int = 5 * 10**9
    print_structure: bool = False


def parse(argv: Sequence[str]) -> tuple[str, Options]:
    """The direction, `hf-to-core`, `megatron-to-core` or `core-to-hf`, and its options. Raises UsageError."""
    namespace = _parser().parse_args(aliases.translate(argv))
    given = {name: getattr(namespace, name, None) for name in TOKENIZER_FLAGS}
    return namespace.direction, Options(
        source=namespace.source,
        target=namespace.target,
        dtype=namespace.target_params_dtype,
        tensor=getattr(namespace, "target_tensor_model_parallel_size", 1),
        pipeline=getattr(namespace, "target_pipeline_model_parallel_size", 1),
        tokenizer={name: value for name, value in given.items() if value is not None},
        model_type=getattr(namespace, "model_type", None),
        max_shard_bytes=getattr(namespace, "max_shard_size", Options.max_shard_bytes),
        print_structure=namespace.print_checkpoint_structure,
    )


def _parser() -> Parser:
    parser = Parser(
        prog="megatronapp convert",
        description="Weights of Hugging Face as a checkpoint of the trainer, and back. The flags of Accelerate's and "
        "of Megatron-LM's converters are understood too: docs/conversion.md.",
        allow_abbrev=False,
    )
    directions = parser.add_subparsers(
        dest="direction", required=True, metavar="hf-to-core|megatron-to-core|core-to-hf"
    )
    there = directions.add_parser("hf-to-core", allow_abbrev=False, help="safetensors to a checkpoint of the trainer")
    _add_there(there, "folder of the Hugging Face model", "what the folder holds")
    foreign = directions.add_parser("megatron-to-core", allow_abbrev=False, help="a checkpoint of Megatron-LM")
    _add_there(foreign, "a run's checkpoints, or one of them (torch_dist, mp_rank_*)", "that of the run")
    back = directions.add_parser("core-to-hf", allow_abbrev=False, help="a checkpoint of the trainer to safetensors")
    _add_common(back, "a run's checkpoints, or one of them", "folder of the Hugging Face model, which must not exist")
    back.add_argument("--max-shard-size", type=_bytes, default="5GB", help="of one file (default %(default)s)")
    names = "llama, mistral, qwen2, qwen3, gpt2, megatron-bert, t5 or mt5"
    back.add_argument("--model-type", help=f"{names}; default: the first that fits")
    return parser


def _add_there(parser: argparse.ArgumentParser, source: str, tokenizer: str) -> None:
    _add_common(parser, source, "folder of the checkpoint, which must not exist")
    for axis in ("tensor", "pipeline"):
        text = "checked against the model's sizes; the checkpoint loads under every other layout too"
        parser.add_argument(f"--target-{axis}-model-parallel-size", type=_count, default=1, help=text)
    parser.add_argument("--tokenizer-type", choices=TOKENIZER_TYPES, help=f"default: {tokenizer}")
    parser.add_argument("--tokenizer-model", help=f"the tokenizer's file; default: {tokenizer}")
    parser.add_argument("--vocab-file", help="likewise, of GPT2BPETokenizer and of BertWordPieceLowerCase")
    parser.add_argument("--merge-file", help="likewise")


def _add_common(parser: argparse.ArgumentParser, source: str, target: str) -> None:
    parser.add_argument("source", type=Path, help=source)
    parser.add_argument("target", type=Path, help=target)
    parser.add_argument("--target-params-dtype", choices=DTYPES, help="default: that of the source")
    parser.add_argument("--print-checkpoint-structure", action="store_true", help="list the tensors that are read")


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is too small: the least is 1")
    return number


def _bytes(text: str) -> int:
    """As transformers reads it: 5GB, 200MB, 1GiB."""
    found = re.fullmatch(r"(\d{1,15})\s*([A-Za-z]{0,3})", text)
    if found is None or found[2].upper() not in _UNITS or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write it as 5GB or 200MB")
    return int(found[1]) * _UNITS[found[2].upper()]
