"""Sparse autoencoders as sae_lens writes them, and what NumPy makes of their weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from megatronapp.trainer.plugins.scope.saes import CONFIG, WEIGHTS

Floats = npt.NDArray[np.float32]
Tensors = dict[str, Floats]


def random_weights(channels: int, features: int, *, threshold: bool = False, seed: int = 0) -> Tensors:
    draw = np.random.default_rng(seed)
    sizes: dict[str, tuple[int, ...]] = {
        "W_enc": (channels, features),
        "b_enc": (features,),
        "W_dec": (features, channels),
        "b_dec": (channels,),
    }
    found = {name: draw.normal(size=size).astype(np.float32) for name, size in sizes.items()}
    return found | ({"threshold": np.abs(draw.normal(size=features)).astype(np.float32)} if threshold else {})


def written(folder: Path, weights: Tensors, hook: str, **config: Any) -> Path:
    folder.mkdir(parents=True)
    said = {"architecture": "standard", "metadata": {"hook_name": hook}, **config}
    (folder / CONFIG).write_text(json.dumps(said))
    save_file(weights, folder / WEIGHTS)
    return folder


def features_of(rows: Floats, weights: Tensors, *, k: int = 0, subtracts: bool = True) -> Floats:
    given = rows.astype(np.float64) - (weights["b_dec"] if subtracts else 0)
    before = given @ weights["W_enc"] + weights["b_enc"]
    features = np.maximum(before, 0)
    if "threshold" in weights:
        features = np.where(before > weights["threshold"], features, 0)
    if k:
        features = np.where(before >= np.sort(before, axis=-1)[..., -k, None], features, 0)
    return features.astype(np.float32)
