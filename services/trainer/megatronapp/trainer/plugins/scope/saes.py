"""Sparse autoencoders of a folder, and the features that they make of a layer's values.

Each is a folder as sae_lens writes it: `cfg.json`, which says whose values it takes, and `sae_weights.safetensors`. It
is a site of its own, `layers[L].sae.NAME`, with features as channels. What it takes is whole on each rank, so that each
one encodes the rows that it has, in any layout. Weights are read when somebody looks, and let go when nobody does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from megatronapp.core.errors import DataError, NotFoundError, UsageError
from megatronapp.core.json_file import load_json_file
from megatronapp.core.scope.captures import Place
from megatronapp.core.scope.sites import MAX_SIZE, SAE
from megatronapp.core.scope.transformer_lens import place_of

if TYPE_CHECKING:
    from megatronapp.trainer.safetensors_folder import Stored

CONFIG, WEIGHTS = "cfg.json", "sae_weights.safetensors"
MAX_SAES = 64
MAX_CONFIG_BYTES = 1 << 20
MAX_ENCODER_BYTES = 4 << 30
"""Of W_enc in float32, as it lies on the device while somebody looks."""
SITES = ("resid_pre", "resid_mid", "resid_post", "attn.out", "mlp.out")
"""Those whose channels no rank splits."""
NORMALIZATIONS = ("none", "expected_average_only_in", "constant_norm_rescale", "layer_norm")
"""Of sae_lens; the second one is in the weights when they are saved."""
RELU, TOPK, JUMPRELU = "standard", "topk", "jumprelu"
_LAYER_NORM_EPSILON = 1e-5
_NAME = re.compile(r"[A-Za-z]\w{0,63}", re.A)
_USED = ("W_enc", "b_enc", "b_dec")
_LEFT = ("W_dec", "scaling_factor")
"""That the way back needs alone."""
Columns = Callable[[torch.Tensor, int], torch.Tensor]
"""Takes some features along a dimension."""


@dataclass(eq=False)
class Sae:
    """One of them. `k`: features that a row has at most; 0: any number."""

    name: str
    """Of its site."""
    place: Place
    stored: Mapping[str, Stored]
    normalization: str = "none"
    subtracts: bool = True
    """b_dec, from what it takes."""
    k: int = 0
    _weights: dict[torch.device, dict[str, torch.Tensor]] = field(default_factory=dict)

    @property
    def site(self) -> str:
        """Whose values it takes."""
        return self.place[0]

    @property
    def layer(self) -> int:
        return self.place[1] or 0

    @property
    def channels(self) -> int:
        return self.stored["W_enc"].shape[0]

    @property
    def features(self) -> int:
        return self.stored["W_enc"].shape[1]

    def check(self, layers: int, hidden: int) -> None:
        """Raises UsageError for an SAE of another model."""
        where = self.stored["W_enc"].file.parent
        if self.layer >= layers:
            raise UsageError(f"{where} is of layer {self.layer}, and the model has {layers}: take it out of the folder")
        if self.channels != hidden:
            raise UsageError(
                f"{where} takes {self.channels} channels, and the model has {hidden}: take it out of the folder"
            )

    def encode(self, rows: torch.Tensor, columns: Columns = lambda values, _: values) -> torch.Tensor:
        """Features [..., feature], float32, of rows [..., channel]; `columns` says which. Raises DataError for a file
        that is another one by now."""
        held = self._on(rows.device)
        given = self._normalized(rows.float())
        if self.subtracts:
            given = given - held["b_dec"]
        if self.k:  # needs all to know which are the largest
            return columns(_largest(given @ held["W_enc"] + held["b_enc"], self.k), -1)
        before = given @ columns(held["W_enc"], 1) + columns(held["b_enc"], 0)
        features = before.relu()
        return features * (before > columns(held["threshold"], 0)) if "threshold" in held else features

    def release(self) -> None:
        self._weights.clear()

    def _normalized(self, rows: torch.Tensor) -> torch.Tensor:
        if self.normalization == "constant_norm_rescale":
            return rows * (math.sqrt(self.channels) / rows.norm(dim=-1, keepdim=True))
        if self.normalization == "layer_norm":
            centred = rows - rows.mean(-1, keepdim=True)
            return centred / (centred.std(-1, keepdim=True) + _LAYER_NORM_EPSILON)
        return rows

    def _on(self, device: torch.device) -> dict[str, torch.Tensor]:
        if device not in self._weights:
            from megatronapp.trainer import safetensors_folder

            held = {}
            for name, stored in self.stored.items():
                tensor = safetensors_folder.read(stored)
                if tuple(tensor.shape) != stored.shape:
                    raise DataError(f"{stored.file} has changed since the start: start again")
                held[name] = tensor.to(device, torch.float32)
            self._weights[device] = held
        return self._weights[device]


def _largest(values: torch.Tensor, k: int) -> torch.Tensor:
    top = values.topk(k, dim=-1)
    return torch.zeros_like(values).scatter_(-1, top.indices, top.values.relu())


def found_saes(folder: Path) -> tuple[Sae, ...]:
    """All of a folder, by name. Raises UsageError, DataError and NotFoundError, one line that names the file."""
    if not folder.is_dir():
        raise NotFoundError(f"--scope-sae-dir {folder}: there is no such folder")
    places = sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    if not 0 < len(places) <= MAX_SAES:
        raise UsageError(
            f"--scope-sae-dir {folder} holds {len(places)} folders; 1 to {MAX_SAES} are taken, each with {CONFIG} and "
            f"{WEIGHTS}"
        )
    saes = [read_sae(place) for place in places]
    names = [sae.name for sae in saes]
    for number, name in enumerate(names):
        if name in names[:number]:
            raise UsageError(f"--scope-sae-dir {folder}: two folders would be {name}; rename one")
    return tuple(saes)


def read_sae(folder: Path) -> Sae:
    """What is said of one; its weights stay where they are. Raises UsageError, DataError and NotFoundError."""
    name = re.sub(r"\W", "_", folder.name, flags=re.A)
    if not _NAME.fullmatch(name):
        raise UsageError(f"{folder}: begin its name with a letter, of 64 characters at most")
    for file in (CONFIG, WEIGHTS):
        if not (folder / file).is_file():
            raise NotFoundError(f"{folder} has no {file}: save the SAE with sae_lens; pickled ones are not read")
    config = load_json_file(folder / CONFIG, MAX_CONFIG_BYTES)
    if not isinstance(config, dict):
        raise DataError(f"{folder / CONFIG} is no object")
    activation, k = _activation(folder, config)
    stored = _stored(folder / WEIGHTS, threshold=activation == JUMPRELU)
    if k > stored["W_enc"].shape[1]:
        raise DataError(f"{folder / CONFIG}: k {k} of {stored['W_enc'].shape[1]} features")
    return Sae(
        name=SAE + name,
        place=_place(folder, config),
        stored=stored,
        normalization=_one_of(folder, config, "normalize_activations", NORMALIZATIONS),
        subtracts=config.get("apply_b_dec_to_input", True) is True,
        k=k,
    )


def _place(folder: Path, config: Mapping[str, Any]) -> Place:
    metadata = config.get("metadata")
    hook = config.get("hook_name") or (metadata.get("hook_name") if isinstance(metadata, dict) else None)
    place = place_of(hook) if isinstance(hook, str) else None
    if place is None or place[0] not in SITES:
        raise DataError(
            f"{folder / CONFIG}: hook_name {hook!r:.60} is not taken; blocks.3.hook_resid_post is, as are "
            "hook_resid_pre, hook_resid_mid, hook_attn_out and hook_mlp_out"
        )
    return place


def _activation(folder: Path, config: Mapping[str, Any]) -> tuple[str, int]:
    """Which one, and its k."""
    kind = _one_of(folder, config, "architecture", (RELU, TOPK, JUMPRELU))
    if config.get("rescale_acts_by_decoder_norm") or config.get("reshape_activations", "none") != "none":
        raise DataError(
            f"{folder / CONFIG}: rescale_acts_by_decoder_norm and reshape_activations are not taken: fold them in "
            "and save it again"
        )
    function = config.get("activation_fn_str") or config.get("activation_fn") or "relu"
    if function not in ("relu", "topk") or (kind == JUMPRELU and function != "relu"):
        raise DataError(f"{folder / CONFIG}: activation_fn {function!r:.40} is not taken; relu and topk are")
    if kind != TOPK and function != "topk":
        return kind, 0
    options = config.get("activation_fn_kwargs")
    k = config.get("k", options.get("k") if isinstance(options, dict) else None)
    if type(k) is not int or k < 1:
        raise DataError(f"{folder / CONFIG}: k {k!r:.40} is no number of features")
    return TOPK, k


def _one_of(folder: Path, config: Mapping[str, Any], key: str, known: tuple[str, ...]) -> str:
    value = config.get(key, known[0])
    if not isinstance(value, str) or value not in known:
        raise DataError(f"{folder / CONFIG}: {key} {value!r:.40} is not taken; {', '.join(known)} are")
    return value


def _stored(file: Path, *, threshold: bool) -> dict[str, Stored]:
    """What encoding needs, of shapes that fit each other."""
    from megatronapp.trainer import safetensors_folder  # its library is not in every environment with a model

    needed = (*_USED, "threshold") if threshold else _USED
    found = dict(safetensors_folder.listed(file))
    missing = [name for name in needed if name not in found]
    foreign = [name for name in found if name not in (*needed, *_LEFT)]
    if missing or foreign:
        raise DataError(
            f"{file} holds {', '.join(sorted(found))[:120] or 'nothing'}; it is to hold {', '.join(needed)} and may "
            f"hold {', '.join(_LEFT)}"
        )
    shape = found["W_enc"].shape
    if len(shape) != 2 or not all(shape):
        raise DataError(f"{file}: W_enc of shape {list(shape)[:4]}; it is to be [channels, features]")
    channels, features = shape
    if features > MAX_SIZE or 4 * channels * features > MAX_ENCODER_BYTES:
        raise DataError(
            f"{file}: W_enc of {channels} x {features}; at most {MAX_SIZE} features and {MAX_ENCODER_BYTES >> 30} GiB"
        )
    for name, size in {"b_enc": features, "b_dec": channels, "threshold": features}.items():
        if name in needed and found[name].shape != (size,):
            raise DataError(f"{file}: {name} of shape {list(found[name].shape)[:4]}; W_enc asks for [{size}]")
    return {name: found[name] for name in needed}
