"""`megatronapp checkpoint inspect|verify|reshape`: what a checkpoint is, whether it is whole, and under which layouts
it loads; offline, on one machine."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import megatronapp.trainer.lean_imports  # noqa: F401  before anything of megatron-core

# isort: split
from megatronapp.core import library_warnings, logging
from megatronapp.core.errors import DataError, MegatronAppError
from megatronapp.trainer import checkpoint_folder, checkpoint_verify
from megatronapp.trainer.convert import structure
from megatronapp.trainer.generate.arguments import Parser
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.recipe import RunRecipe
from megatronapp.trainer.torch_dist import StoredWeights

library_warnings.silence()

AXES = ("tensor", "pipeline", "expert")


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code: 2 on wrong flags, 1 on other errors and on a damaged checkpoint."""
    logging.configure("warning")
    try:
        _run(sys.argv[1:] if argv is None else list(argv))
    except MegatronAppError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    return 0


def _run(argv: Sequence[str]) -> None:
    parser = Parser(prog="megatronapp checkpoint", allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", required=True, metavar="inspect|verify|reshape")
    inspect = actions.add_parser("inspect", allow_abbrev=False, help="settings, tokenizer and size of a checkpoint")
    inspect.add_argument("--tensors", action="store_true", help="list its tensors too")
    verify = actions.add_parser("verify", allow_abbrev=False, help="check sizes and the checksum of every tensor")
    reshape = actions.add_parser(
        "reshape", allow_abbrev=False, help="whether it loads under this layout; no file changes"
    )
    for axis in AXES:
        reshape.add_argument(f"--target-{axis}-model-parallel-size", dest=axis, type=_count, default=1)
    for each in (inspect, verify, reshape):
        each.add_argument("checkpoint", type=Path, help="a run's checkpoints, of which the newest, or one of them")
    options = parser.parse_args(argv)
    if options.action == "verify":
        _verify(options.checkpoint)
        return
    if options.action == "reshape":
        _reshape(options.checkpoint, {axis: getattr(options, axis) for axis in AXES})
        return
    folder = checkpoint_folder.find_complete(options.checkpoint)
    for line in described(folder):
        print(line)
    if options.tensors:
        structure.show_checkpoint(folder)


def _verify(given: Path) -> None:
    folder = checkpoint_folder.find_complete(given)
    found = list(checkpoint_verify.faults(folder))
    for line in found[1:]:
        print(line)
    if found:
        raise DataError(f"{found[0]}; load an older checkpoint, or a copy of this one")
    print(f"{folder} is whole")


def _reshape(given: Path, sizes: Mapping[str, int]) -> None:
    """Raises UsageError where the model can't be cut so."""
    folder = checkpoint_folder.find_complete(given)
    recipe = checkpoint_folder.read_recipe(folder)
    ranks = math.prod(sizes.values())
    parallel = {f"{axis}_model_parallel_size": size for axis, size in sizes.items()} | _WITHOUT
    parallel["sequence_parallel"] = sizes["tensor"] > 1 and recipe.settings.get("num_experts") is not None
    Layout.of(recipe.to_config(**parallel, micro_batch_size=1, global_batch_size=ranks), ranks)
    print(f"{folder} loads so as it is, weights and optimizer: there is nothing to write. Give the sizes to the run")


_WITHOUT = {
    "decoder_first_pipeline_num_layers": None,
    "decoder_last_pipeline_num_layers": None,
    "num_layers_per_virtual_pipeline_stage": None,
    "num_virtual_stages_per_pipeline_rank": None,
    "context_parallel_size": 1,
    "rampup_batch_size": (),
}


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"{number} is too small: the least is 1")
    return number


def described(folder: Path) -> Iterator[str]:
    """Of one checkpoint. Raises DataError."""
    recipe, stored = checkpoint_folder.read_recipe(folder), StoredWeights(folder)
    weights = {key: each for key, each in stored.tensors.items() if "optimizer" not in key.split(".")[:2]}
    dtypes = sorted({str(each.properties.dtype).removeprefix("torch.") for each in weights.values()})
    parameters = sum(math.prod(each.size) for each in weights.values())
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    yield f"checkpoint  {folder}"
    yield f"size        {size / 1e9:.3f} GB"
    yield f"weights     {parameters:,} parameters in {len(weights)} tensors, {' '.join(dtypes)}"
    yield f"optimizer   {'stored' if len(weights) < len(stored.tensors) else 'not stored'}"
    yield f"tokenizer   {recipe.tokenizer.get('class', 'unknown')}, {recipe.tokenizer['vocab_size']} tokens"
    yield f"settings    {_settings(recipe)}"
    yield f"versions    {' '.join(f'{name} {version}' for name, version in sorted(recipe.versions.items()))}"


def _settings(recipe: RunRecipe) -> str:
    return " ".join(
        f"--{each.name}" if each.value == "on" else f"--{each.name} {each.value}" for each in recipe.to_value().settings
    )
