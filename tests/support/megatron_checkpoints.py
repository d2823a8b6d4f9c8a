"""A checkpoint of the trainer as Megatron-LM would have written it."""

from __future__ import annotations

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from megatronapp.trainer import checkpoint_folder, torch_dist
from megatronapp.trainer.torch_dist import Block, Entry, StoredWeights

STACKED = "decoder.layers."
CUT = {
    r"(word_embeddings|output_layer)\.weight$": 0,
    r"linear_(qkv|fc1)\.(weight|bias)$": 0,
    r"linear_(proj|fc2)\.weight$": 1,
}
LOCAL = {
    "self_attention.linear_qkv.layer_norm_": "input_layernorm.",
    "mlp.linear_fc1.layer_norm_": "pre_mlp_layernorm.",
}
LEGACY = {
    "self_attention.linear_qkv.layer_norm_": "input_norm.",
    "mlp.linear_fc1.layer_norm_": "post_attention_norm.",
    "linear_qkv": "query_key_value",
    "linear_proj": "dense",
    "linear_fc1": "dense_h_to_4h",
    "linear_fc2": "dense_4h_to_h",
}


def arguments(core: Path, **changes: Any) -> Namespace:
    """Of the run that would have written it."""
    settings = dict(checkpoint_folder.read_recipe(checkpoint_folder.find_complete(core)).settings)
    settings |= {"add_bias_linear": not settings["disable_bias_linear"], "bias_gelu_fusion": settings["openai_gelu"]}
    settings |= {"norm_epsilon": None, "layernorm_epsilon": settings["norm_epsilon"], "openai_gelu": False}
    return Namespace(**{**settings, "num_experts": None, **changes})


def tensors(core: Path) -> dict[str, torch.Tensor]:
    """Of the newest checkpoint, layers stacked."""
    stored = StoredWeights(checkpoint_folder.find_complete(core))
    return {key: stored.read(key, None, tuple(each.size)) for key, each in stored.tensors.items()}


def by_layer(core: Path) -> dict[str, torch.Tensor]:
    """As a module names them: decoder.layers.0. …"""
    found: dict[str, torch.Tensor] = {}
    for key, tensor in tensors(core).items():
        if key.startswith(STACKED):
            found |= {f"{STACKED}{layer}.{key.removeprefix(STACKED)}": each for layer, each in enumerate(tensor)}
        else:
            found[key] = tensor
    return found


def write_rank_files(
    folder: Path, core: Path, *, tensor: int = 1, stages: int = 1, chunks: int = 1, legacy: bool = False, **changes: Any
) -> Path:
    """The older format. `legacy`: names and nesting of Megatron-LM's own layers."""
    args = arguments(core, **changes)
    for rank in range(tensor):
        for stage in range(stages):
            models = [
                _chunk(core, args, rank, tensor, stage + chunk * stages, stages * chunks) for chunk in range(chunks)
            ]
            models = [_legacy(each) if legacy else _renamed(each, LOCAL) for each in models]
            named = (
                {"model": models[0]} if chunks == 1 else {f"model{number}": each for number, each in enumerate(models)}
            )
            place = folder / "iter_0000007" / (f"mp_rank_{rank:02d}" + (f"_{stage:03d}" if stages > 1 else ""))
            place.mkdir(parents=True)
            content = {"args": args, "checkpoint_version": 3.0, "iteration": 7, **named}
            torch.save(content, place / "model_optim_rng.pt")
    (folder / checkpoint_folder.LATEST).write_text("7")
    return folder


def _chunk(core: Path, args: Namespace, rank: int, ranks: int, place: int, places: int) -> dict[str, torch.Tensor]:
    each = args.num_layers // places
    found: dict[str, torch.Tensor] = {}
    for key, tensor in by_layer(core).items():
        match = re.match(r"decoder\.layers\.(\d+)\.(.*)", key)
        where = int(match[1]) // each if match else 0 if key.startswith("embedding") else places - 1
        if where == place:
            name = f"{STACKED}{int(match[1]) % each}.{match[2]}" if match else key
            found[name] = _part(key, tensor, rank, ranks, gated=args.swiglu).clone()
    return found


def _part(key: str, tensor: torch.Tensor, rank: int, ranks: int, *, gated: bool) -> torch.Tensor:
    axis = next((axis for pattern, axis in CUT.items() if re.search(pattern, key)), None)
    if axis is None:
        return tensor
    if gated and "linear_fc1" in key:
        return torch.cat([half.chunk(ranks)[rank] for half in tensor.chunk(2)])
    return tensor.chunk(ranks, axis)[rank]


def _renamed(state: Mapping[str, torch.Tensor], names: Mapping[str, str]) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for key, tensor in state.items():
        for ours, theirs in names.items():
            key = key.replace(ours, theirs)
        found[key] = tensor
    return found


def _legacy(state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    nested: dict[str, Any] = {"encoder": {}, "embedding": {}}
    for key, tensor in _renamed(state, LEGACY).items():
        part, _, name = key.partition(".")
        if part == "decoder":
            nested["encoder"][name.replace("final_layernorm", "final_norm")] = tensor
        else:
            where = nested["embedding"] if part == "embedding" else nested
            where[name.removesuffix(".weight") if part == "embedding" else part] = {"weight": tensor}
    return {"language_model": nested}


def write_distributed(folder: Path, core: Path, *, stacked: bool, **changes: Any) -> Path:
    """torch_dist, with layers under one key or under one each."""
    args = arguments(core, **changes)
    place = folder / "iter_0000007"
    place.mkdir(parents=True)
    found = tensors(core) if stacked else by_layer(core)
    entries = [Entry(key, None, tuple(tensor.shape), tensor.dtype) for key, tensor in found.items()]

    def tensor_of(block: Block) -> torch.Tensor:
        return found[block.entry.key]

    torch_dist.write(place, entries, {"decoder": args.num_layers}, tensor_of, {"args": args, "checkpoint_version": 3.0})
    (folder / checkpoint_folder.LATEST).write_text("7")
    return folder
