"""What `Accelerator.prepare` gives back: a model whose call is a whole step, data in each rank's parts, and optimizer
and schedule that have nothing left to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, Subset

from megatronapp.core.errors import UsageError
from megatronapp.core.generation import Sampling
from megatronapp.trainer.data.sampler import SequentialSampler
from megatronapp.trainer.engine import MegatronEngine, StepResult


class MegatronLMDummyScheduler:
    """Steps of the learning rate's schedule: warm-up, then decay to the end."""

    def __init__(self, optimizer: Any, total_num_steps: int | None = None, warmup_num_steps: int = 0, **_: Any) -> None:
        self.optimizer = optimizer
        self.total_num_steps = total_num_steps
        self.warmup_num_steps = warmup_num_steps


class MegatronLMDummyDataLoader:
    """An indexed dataset by the trainer's flags: data_path, splits_string, seq_length, micro_batch_size, …"""

    def __init__(self, **dataset_kwargs: Any) -> None:
        self.dataset_args = dataset_kwargs


@dataclass(frozen=True)
class ModelOutput:
    """`loss` is averaged over microbatches and data ranks on the last stage, zero on the others. `logits` there, where
    the plug-in says return_logits."""

    loss: torch.Tensor
    logits: torch.Tensor | None = None


class PreparedModel:
    """In training, a call is forward, backward, optimizer and schedule over this rank's part of a global batch."""

    def __init__(self, engine: MegatronEngine, config: Any, *, return_logits: bool) -> None:
        self.engine = engine
        self.config = config
        self.training = True
        self._return_logits = return_logits

    def __call__(self, **batch: Any) -> ModelOutput:
        step = self.engine.train_step if self.training else self.engine.eval_step
        result: StepResult = step(batch or None, return_logits=self._return_logits)
        return ModelOutput(torch.tensor(result.loss or 0.0, device=self.engine.device), result.logits)

    def train(self, mode: bool = True) -> PreparedModel:
        self.training = mode
        return self

    def eval(self) -> PreparedModel:
        return self.train(False)

    def parameters(self) -> Iterator[torch.nn.Parameter]:
        """This rank's."""
        for chunk in self.engine.chunks:
            yield from chunk.parameters()

    def megatron_generate(
        self,
        inputs: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        max_length: int | None = None,
        max_new_tokens: int | None = None,
        num_beams: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        length_penalty: float | None = None,
        *,
        top_p_decay: float = 1.0,
        top_p_bound: float = 0.0,
        add_BOS: bool = False,  # noqa: N803  Accelerate's name
        random_seed: int = 0,
    ) -> torch.Tensor:
        """Prompts and what is drawn after them, [rows, longest]; shorter rows are filled with the end of a document."""
        real = torch.ones_like(inputs) if attention_mask is None else attention_mask
        prompts = [tuple(row[mask.bool()].tolist()) for row, mask in zip(inputs.cpu(), real.cpu(), strict=True)]
        if max_new_tokens is None:
            max_new_tokens = (max_length or 0) - max(map(len, prompts))
        if max_new_tokens < 1:
            raise UsageError("megatron_generate needs max_new_tokens, or a max_length above the prompts' length")
        rows = self.engine.generate(
            prompts,
            max_new_tokens=max_new_tokens,
            sampling=Sampling(
                temperature=1.0 if temperature is None else temperature,
                top_k=top_k or 0,
                top_p=top_p or 1.0,
                top_p_decay=top_p_decay,
                top_p_bound=top_p_bound,
            ),
            beam_width=num_beams or 0,
            length_penalty=1.0 if length_penalty is None else length_penalty,
            add_bos=add_BOS,
            seed=random_seed,
        )
        longest, end = max(map(len, rows)), self.engine.end_of_document
        return torch.tensor([row + [end] * (longest - len(row)) for row in rows], device=self.engine.device)


class PreparedOptimizer:
    """The model's call has moved the weights already."""

    def __init__(self, engine: MegatronEngine) -> None:
        self._engine = engine

    @property
    def param_groups(self) -> Any:
        return self._engine.optimizer.param_groups

    def step(self, *_: Any) -> None:
        pass

    def zero_grad(self, *_: Any, **__: Any) -> None:
        pass


class PreparedScheduler:
    """The model's call has moved the learning rate already."""

    def __init__(self, engine: MegatronEngine) -> None:
        self._engine = engine

    def step(self, *_: Any) -> None:
        pass

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self._engine.optimizer.param_groups]


class PreparedLoader:
    """A script's data in global batches, of which each data rank is given its part."""

    def __init__(self, loader: DataLoader[Any], rows: int, rank: int, ranks: int, seed: int) -> None:
        self._loader, self._rows, self._rank, self._ranks = loader, rows, rank, ranks
        self._shuffled = isinstance(loader.sampler, RandomSampler)
        self._seed, self._epoch = seed, 0
        self.dataset: Any = loader.dataset

    def __len__(self) -> int:
        return len(self.dataset) // (self._rows * self._ranks)

    def __iter__(self) -> Iterator[Mapping[str, torch.Tensor]]:
        """In another order each time where the loader shuffles. Rows that fill no global batch are left out."""
        dataset = self.dataset
        if self._shuffled:
            generator = torch.Generator().manual_seed(self._seed + self._epoch)
            dataset = Subset(dataset, torch.randperm(len(dataset), generator=generator).tolist())
            self._epoch += 1
        sampler = SequentialSampler(
            total_samples=len(dataset),
            consumed_samples=0,
            micro_batch_size=self._rows,
            data_parallel_rank=self._rank,
            data_parallel_size=self._ranks,
        )
        with torch.random.fork_rng(devices=[]):  # a loader draws a seed
            return iter(
                DataLoader(
                    dataset,
                    batch_sampler=sampler,
                    collate_fn=self._loader.collate_fn,
                    num_workers=self._loader.num_workers,
                )
            )


class IndexedLoader:
    """Without end: the engine reads its own data where a batch is empty."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return self

    def __next__(self) -> dict[str, torch.Tensor]:
        return {}
