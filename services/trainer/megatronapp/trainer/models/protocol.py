"""What the trainer asks of a family of models: all that differs between GPT, BERT and T5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.model_config import ModelConfig

if TYPE_CHECKING:
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    from megatronapp.trainer.data.datasets import DatasetKind
    from megatronapp.trainer.models.train_step import TrainStep


@dataclass(frozen=True, kw_only=True)
class ChunkPlace:
    """Where a chunk is in the whole model. `vocabulary`: with padding, of all tensor ranks together."""

    stage: int | None
    """Virtual stage on this rank; None without interleaving."""
    first: bool
    """It holds the embedding."""
    last: bool
    """It holds the output layer and gives the loss."""
    tied: bool
    """The output layer has the embedding's weights."""
    vocabulary: int
    positions: int
    """Longest sequence of learned positions."""


class ModelFamily(Protocol):
    """One kind of model, without state."""

    @property
    def train_step(self) -> type[TrainStep]:
        """What is computed of one microbatch, where --train-step names nothing else."""
        ...

    def losses(self, model: ModelConfig) -> tuple[str, ...]:
        """Names of those that it learns from, added up; the first one is the words'."""
        ...

    def build(self, config: TrainerConfig, transformer: TransformerConfig, place: ChunkPlace) -> torch.nn.Module:
        """One chunk, on the CPU or megatron-core's current device, with `pre_process` and `post_process`."""
        ...

    def reads(self, chunk: torch.nn.Module, config: TrainerConfig) -> bool:
        """Whether this chunk takes anything from the data."""
        ...

    def dataset(self, config: TrainerConfig) -> DatasetKind:
        """Raises UsageError for flags that are missing."""
        ...

    def collate(self, samples: Sequence[Any]) -> Mapping[str, Any]:
        """Samples to a microbatch: tensors, and "work": (tokens, sum of squared lengths), which compute time depends
        on."""
        ...

    @property
    def counts(self) -> str:
        """The tensor of a microbatch, [rows, tokens], that is 0 for tokens behind a sequence's end: what
        --variable-seq-lengths cuts off."""
        ...

    def depths(self, model: ModelConfig) -> Mapping[str, int]:
        """Layers of each of the whole model's stacks, by its name in the model."""
        ...

    def parameters(self, model: ModelConfig, vocabulary: int, positions: int) -> int:
        """Parameters of the whole model without biases and norms, all ranks together, counted from its shape."""
        ...

    def flops_per_sequence(self, config: TrainerConfig, vocabulary: int) -> float:
        """Floating-point operations of forward and backward over one sequence, the model's own: what is recomputed is
        not counted, causal attention is counted half (Narayanan et al., 2021, arXiv:2104.04473, appendix; extended to
        grouped queries, gated MLPs and experts)."""
        ...
