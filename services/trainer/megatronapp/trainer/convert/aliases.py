"""The command lines of two other converters, as ours.

transformers' `checkpoint_reshaping_and_interoperability.py`, which Accelerate's Megatron-LM page names, and
Megatron-LM's `tools/checkpoint/convert.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from megatronapp.core.errors import UsageError
from megatronapp.trainer.generate.arguments import Parser

DIRECTIONS = ("hf-to-core", "core-to-hf", "megatron-to-core")
_RENAMED = {
    "--target-tensor-model-parallel-size": (
        "--target_tensor_model_parallel_size",
        "--target-tensor-parallel-size",
    ),
    "--target-pipeline-model-parallel-size": (
        "--target_pipeline_model_parallel_size",
        "--target-pipeline-parallel-size",
    ),
    "--target-params-dtype": ("--target_params_dtype",),
    "--tokenizer-model": ("--tokenizer_name",),
    "--tokenizer-type": (),
    "--vocab-file": (),
    "--merge-file": (),
    "--max-shard-size": ("--max_shard_size",),
}
"""Ours, and their other spellings."""
_ONLY_BACK = ("--max-shard-size",)
_BOTH = ("--target-params-dtype",)
_WITHOUT_EFFECT = (
    "--target_data_parallel_size",
    "--make_vocab_size_divisible_by",
    "--megatron-path",
    "--model-size",
    "--max-queue-size",
    "--position-embedding-type",
    "--true-vocab-size",
)
_HUGGING_FACE, _CORE = ("llama_mistral", "hf"), ("core", "mcore", "megatron")


def translate(argv: Sequence[str]) -> list[str]:
    """Unchanged where no other converter's flags come first. Raises UsageError."""
    if not argv or not argv[0].startswith("--") or argv[0] == "--help":
        return list(argv)
    given = _parser().parse_args(argv)
    direction = _direction(given)
    flags = ["--print-checkpoint-structure"] if given.print_structure else []
    for flag in _RENAMED:
        value = getattr(given, flag)
        fits = flag in _BOTH or (flag in _ONLY_BACK) == (direction == DIRECTIONS[1])
        if value is not None and fits:
            flags += [flag, value]
    return [direction, given.source, given.target, *flags]


def _parser() -> Parser:
    parser = Parser(prog="megatronapp convert", allow_abbrev=False)
    parser.add_argument("--load_path", "--load-dir", dest="source", required=True)
    parser.add_argument("--save_path", "--save-dir", dest="target", required=True)
    parser.add_argument("--convert_checkpoint_from_megatron_to_transformers", dest="back", action="store_true")
    parser.add_argument("--loader")
    parser.add_argument("--saver")
    parser.add_argument("--model-type", default="GPT")
    parser.add_argument("--checkpoint-type", default="hf")
    parser.add_argument("--print-checkpoint-structure", dest="print_structure", action="store_true")
    parser.add_argument("--use_distributed_optimizer", action="store_true")
    for dtype in ("bf16", "fp16"):
        parser.add_argument(f"--{dtype}", dest="--target-params-dtype", action="store_const", const=dtype)
    for flag, others in _RENAMED.items():
        parser.add_argument(flag, *others, dest=flag)
    for flag in _WITHOUT_EFFECT:
        parser.add_argument(flag)
    return parser


def _direction(given: argparse.Namespace) -> str:
    """Raises UsageError for what neither direction is."""
    if given.loader is None and given.saver is None:
        return DIRECTIONS[given.back]
    if given.model_type != "GPT":
        raise UsageError(f"--model-type {given.model_type} is not converted: only GPT, which is Llama-like models too")
    if given.checkpoint_type != "hf":
        raise UsageError(f"--checkpoint-type {given.checkpoint_type} is not read: give the Hugging Face files (hf)")
    if given.loader in _HUGGING_FACE and given.saver in _CORE:
        return DIRECTIONS[0]
    if given.loader in _CORE and given.saver in _HUGGING_FACE:
        return DIRECTIONS[1]
    if given.loader in _CORE and given.saver in _CORE:
        return DIRECTIONS[2]
    raise UsageError(
        f"--loader {given.loader} --saver {given.saver} is not known: loaders and savers are "
        f"{', '.join((*_HUGGING_FACE, *_CORE))}"
    )
