"""What layers keep beside their weights: `_extra_state`, an object of each.

megatron-core's own have an empty one, Transformer Engine's the scales of products in 8 bits, and which layers have one
differs between the two: the weights are the same, so that a checkpoint of one is loaded into the other.

With delayed scaling the scales come as a pickle, which Transformer Engine refuses to read, as it would run what is in
it. Here it is read first by an unpickler that knows what belongs there, and nothing else.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.mapping import ShardedObject

from megatronapp.core.errors import DataError
from megatronapp.trainer.torch_dist import read_metadata

EXTRA_STATE = "_extra_state"
ALLOWS_PICKLES = "NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE"
RECIPES = "transformer_engine.common.recipe"
_BUILT = {
    ("torch._utils", "_rebuild_tensor_v2"),
    ("collections", "OrderedDict"),
    ("megatron.core.extensions.transformer_engine", "TEDelayedScaling"),
}


def leave_out_unsaved(chunks: Iterable[dict[str, Any]], checkpoint: Path) -> None:
    """Of what chunks are to load, the extra states that the checkpoint does not hold. Raises DataError."""
    saved = read_metadata(checkpoint).state_dict_metadata
    for chunk in chunks:
        for name, value in list(chunk.items()):
            if isinstance(value, ShardedObject) and _is_extra(name) and value.unique_key not in saved:
                del chunk[name]


def load_into(chunk: torch.nn.Module, state: Mapping[str, Any], checkpoint: Path) -> None:
    """A chunk's weights, and the extra states that it has. Raises DataError for a pickle that holds something else, and
    RuntimeError, as torch does, for weights that do not fit."""
    for name, value in state.items():
        if _is_extra(name):
            _check(name, value, checkpoint)
    with _pickles_allowed():
        found = chunk.load_state_dict(state, strict=False)
    if wrong := [name for name in (*found.missing_keys, *found.unexpected_keys) if not _is_extra(name)]:
        raise RuntimeError(f"{checkpoint} and the model do not both have {', '.join(wrong)}")


def _is_extra(name: str) -> bool:
    """Grouped layers have one for each of their products: `_extra_state1`."""
    return name.rpartition(".")[2].startswith(EXTRA_STATE)


class _Unpickler(pickle.Unpickler):
    """Builds tensors, and the recipes of 8-bit training."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("torch.storage", "_load_from_bytes"):
            return _storage
        if (module, name) in _BUILT:
            return super().find_class(module, name)
        if module == RECIPES and isinstance(found := super().find_class(module, name), type):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} does not belong there")


def _storage(data: bytes) -> Any:
    return torch.load(io.BytesIO(data), weights_only=True)


def _check(name: str, value: Any, checkpoint: Path) -> None:
    if value is None:
        return
    if not isinstance(value, torch.Tensor):  # what an older Transformer Engine wrote, and would be run
        raise DataError(f"{name} in {checkpoint} can't be read: it is a {type(value).__name__}")
    if value.numel() == 0:
        return
    try:
        _Unpickler(io.BytesIO(value.cpu().numpy().tobytes())).load()
    except Exception as error:  # whatever a broken pickle raises
        raise DataError(f"{name} in {checkpoint} can't be read: {error!r:.200}") from error


@contextmanager
def _pickles_allowed() -> Iterator[None]:
    before = os.environ.get(ALLOWS_PICKLES)
    os.environ[ALLOWS_PICKLES] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[ALLOWS_PICKLES]
        else:
            os.environ[ALLOWS_PICKLES] = before
