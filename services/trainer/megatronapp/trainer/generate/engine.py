"""What every session needs: the model's stages on this rank, the other ranks, and what they agreed on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from megatronapp.core.generation import Candidate, Limits
from megatronapp.trainer.data import Tokenizer
from megatronapp.trainer.generate.cache import Cache, takes_masks
from megatronapp.trainer.generate.gradients import Differentiated, Score, differentiated
from megatronapp.trainer.generate.parallel import Ranks, Stages
from megatronapp.trainer.plugins.generating import PassObserver

TOKENS_PER_PASS = 1 << 12
"""Of all rows together: what bounds the memory of attention scores."""
LOGITS_PER_PASS = 1 << 26
"""Values, where those of all tokens are looked at."""


@dataclass
class Engine:
    stages: Stages
    ranks: Ranks
    tokenizer: Tokenizer
    limits: Limits
    text_of: Callable[[int], str] = field(init=False)
    """Of one id alone."""
    observer: PassObserver | None = None

    def __post_init__(self) -> None:
        self._takes_masks = takes_masks(self.stages.chunks)
        self.text_of = lru_cache(maxsize=1 << 14)(lambda token: self.tokenizer.detokenize([token]))

    def forward(
        self, request: str, fed: Sequence[Sequence[int]], cache: Cache, *, all_logits: bool
    ) -> torch.Tensor | None:
        """Of these tokens of each row of a request, which follow the cache's: as `Stages.forward`."""
        with self._observed(request, cache.at, cache.at + len(fed[0]), len(fed)):
            return self.stages.forward(torch.tensor(fed), cache, all_logits=all_logits)

    def differentiated(self, request: str, fed: Sequence[int], score: Score) -> Differentiated:
        """Of these tokens, the one row of a request, from the beginning on: a pass forward and back."""
        with self._observed(request, 0, len(fed), 1):
            return differentiated(self.stages, torch.tensor([list(fed)]), score)

    @contextmanager
    def _observed(self, request: str, start: int, end: int, rows: int) -> Iterator[None]:
        if self.observer is None:
            yield
            return
        self.observer.pass_begin(request, start, end, rows)
        try:
            yield
        finally:
            self.observer.pass_end()

    def end_of_pass(self, cache: Cache, end: int, *, all_logits: bool) -> int:
        """How far one forward pass goes from the cache's position towards `end`."""
        if cache.at > 0 and not self._takes_masks:
            return cache.at + 1
        most = TOKENS_PER_PASS // cache.rows
        if all_logits:
            most = min(most, LOGITS_PER_PASS // (cache.rows * self.limits.vocabulary))
        if cache.at == 0 and not self._takes_masks:
            return end
        return min(end, cache.at + max(1, most))

    def real(self, logits: torch.Tensor) -> torch.Tensor:
        """Without the padding of the vocabulary."""
        return logits[..., : self.limits.vocabulary]

    def candidates(self, numbers: Sequence[float]) -> tuple[Candidate, ...]:
        """From ids and log-probabilities, one after the other."""
        pairs = zip(numbers[::2], numbers[1::2], strict=True)
        return tuple(
            Candidate(id=int(token), text=self.text_of(int(token)), log_probability=value) for token, value in pairs
        )


def ranked(log_probabilities: torch.Tensor, count: int) -> torch.Tensor:
    """The likeliest ids and their log-probabilities, one after the other: [..., 2 x count], float64."""
    values, ids = log_probabilities.topk(count, dim=-1)
    return torch.stack((ids.double(), values.double()), dim=-1).flatten(-2)
