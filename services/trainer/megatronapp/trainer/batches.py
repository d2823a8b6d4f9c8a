"""The iterators over this rank's microbatches, one per model chunk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.data import SequentialSampler, Tokenizer, build_datasets, microbatches
from megatronapp.trainer.data.lengths import Cut, CutCollate
from megatronapp.trainer.data.sampler import Collate, DocumentCollate
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.models import ModelFamily, family_of

Split = Literal["valid", "test"]


@dataclass(frozen=True)
class Batches:
    """Datasets, and who reads them: chunks that take anything from it; the others get empty iterators."""

    train_set: Any
    valid_set: Any
    test_set: Any
    splits: frozenset[str]
    layout: Layout
    reads: tuple[bool, ...]
    """One entry per model chunk."""
    collate: Collate
    num_workers: int
    pin_memory: bool

    @classmethod
    def build(
        cls,
        config: TrainerConfig,
        layout: Layout,
        tokenizer: Tokenizer,
        chunks: list[torch.nn.Module],
        device: torch.device,
        datasets: Callable[[], Sequence[Any]] | None = None,
    ) -> Batches:
        """Every rank calls this together, as the first one builds the sample indices for all. `datasets` in place of
        those that the flags name."""
        family = family_of(config.model)
        reads = tuple(family.reads(chunk, config) for chunk in chunks)
        evaluation_samples = config.evaluation.eval_iters * layout.global_batch_size
        train, valid, test = (
            datasets()
            if datasets is not None
            else build_datasets(
                config.data,
                tokenizer,
                family.dataset(config),
                train_samples=config.training.train_iters * layout.global_batch_size,
                valid_samples=evaluation_samples,
                test_samples=evaluation_samples,
                seed=config.training.seed,
                is_built_on_rank=lambda: any(reads),
            )
        )
        here = [name for name, dataset in (("train", train), ("valid", valid), ("test", test)) if dataset is not None]
        return cls(
            train_set=train,
            valid_set=valid,
            test_set=test,
            splits=frozenset(_names_of_first_rank(here)),
            layout=layout,
            reads=reads,
            collate=_collate(config, family),
            num_workers=config.data.num_workers,
            pin_memory=device.type == "cuda",
        )

    @property
    def has_training(self) -> bool:
        return "train" in self.splits

    def train(self, consumed_samples: int) -> list[Iterator[Any]]:
        """Microbatches from the given position in the data on."""
        return self._iterators(self.train_set, consumed_samples)

    def has(self, split: Split) -> bool:
        """Whether the data leaves anything for this split; the same answer on every rank."""
        return split in self.splits

    def evaluate(self, split: Split) -> list[Iterator[Any]]:
        """The same microbatches at every evaluation."""
        return self._iterators(self._set(split), 0)

    def _set(self, split: Split) -> Any:
        return self.valid_set if split == "valid" else self.test_set

    def _iterators(self, dataset: Any, consumed_samples: int) -> list[Iterator[Any]]:
        return [
            self._iterator(dataset, consumed_samples) if reads and dataset is not None else iter(())
            for reads in self.reads
        ]

    def _iterator(self, dataset: Any, consumed_samples: int) -> Iterator[Any]:
        sampler = SequentialSampler(
            total_samples=len(dataset),
            consumed_samples=consumed_samples,
            micro_batch_size=self.layout.micro_batch_size,
            data_parallel_rank=parallel_state.get_data_parallel_rank(),
            data_parallel_size=self.layout.data,
        )
        with torch.random.fork_rng(devices=[]):  # a loader draws a seed: training must not see who reads when
            return microbatches(
                dataset, sampler, self.collate, num_workers=self.num_workers, pin_memory=self.pin_memory
            )


def _collate(config: TrainerConfig, family: ModelFamily) -> Collate:
    collate = family.collate
    if config.training.variable_seq_lengths:
        collate = CutCollate(collate, Cut.of(config.parallel, family.counts))
    return DocumentCollate(collate) if config.data.reset_attention_mask else collate


def _names_of_first_rank(names: list[str]) -> list[str]:
    """Middle stages hold no dataset, but must take part in the evaluations of the others."""
    broadcast = [names]
    dist.broadcast_object_list(broadcast, src=0)
    return broadcast[0]
