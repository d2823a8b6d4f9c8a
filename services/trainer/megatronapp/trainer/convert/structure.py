"""`--print-checkpoint-structure`: the tensors of a source, one a line."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch

from megatronapp.trainer import checkpoint_folder
from megatronapp.trainer.safetensors_folder import TensorFolder
from megatronapp.trainer.torch_dist import StoredWeights


def show_folder(folder: Path) -> None:
    """Of Hugging Face. Raises MegatronAppError."""
    show((name, each.shape, each.dtype) for name, each in TensorFolder(folder).tensors.items())


def show_checkpoint(folder: Path) -> None:
    """Of the trainer. Raises MegatronAppError."""
    stored = StoredWeights(checkpoint_folder.find_complete(folder))
    show((key, tuple(each.size), each.properties.dtype) for key, each in stored.tensors.items())


def show(tensors: Iterable[tuple[str, tuple[int, ...], torch.dtype]]) -> None:
    for name, shape, dtype in tensors:
        print(f"{name}  {'x'.join(map(str, shape))}  {str(dtype).removeprefix('torch.')}")
