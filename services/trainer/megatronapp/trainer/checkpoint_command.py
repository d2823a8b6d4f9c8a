"""`megatronapp checkpoint inspect|verify`: what a checkpoint is, and whether it is whole; offline, on one machine."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import megatronapp.trainer.lean_imports  # noqa: F401  before anything of megatron-core

# isort: split
from megatronapp.core import library_warnings, logging
from megatronapp.core.errors import DataError, MegatronAppError
from megatronapp.trainer import checkpoint_folder, checkpoint_verify
from megatronapp.trainer.convert import structure
from megatronapp.trainer.generate.arguments import Parser
from megatronapp.trainer.recipe import RunRecipe
from megatronapp.trainer.torch_dist import StoredWeights

library_warnings.silence()


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
    actions = parser.add_subparsers(dest="action", required=True, metavar="inspect|verify")
    inspect = actions.add_parser("inspect", allow_abbrev=False, help="settings, tokenizer and size of a checkpoint")
    inspect.add_argument("--tensors", action="store_true", help="list its tensors too")
    verify = actions.add_parser("verify", allow_abbrev=False, help="check sizes and the checksum of every tensor")
    for each in (inspect, verify):
        each.add_argument("checkpoint", type=Path, help="a run's checkpoints, of which the newest, or one of them")
    options = parser.parse_args(argv)
    if options.action == "verify":
        _verify(options.checkpoint)
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
