"""One forward pass over all ranks of a model, and how the ranks agree on what comes of it.

Stages run one after the other, an interleaved rank's chunks in their order; the output layer gathers the vocabulary
over the tensor ranks. One rank chooses among the logits and tells all, so that no rounding lets them part; what rank 0
is asked goes to all the same way. Both go over a gloo group of their own, as numbers and text, on GPUs too: waiting in
it costs a rank nothing, and no other communicator is disturbed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import set_model_to_sequence_parallel

from megatronapp.trainer.generate.cache import Cache, mask

PATIENCE = timedelta(minutes=30)
"""How long a rank waits for another one. Whoever waits for requests says so in between."""


@contextmanager
def generating(chunks: Sequence[torch.nn.Module], config: TransformerConfig) -> Iterator[None]:
    """Without dropout and gradients, and without sequence parallelism, which can't split one token; as before after."""
    training = [chunk.training for chunk in chunks]
    split = config.sequence_parallel
    _set(chunks, [False] * len(chunks), split, False)
    try:
        with torch.no_grad():
            yield
    finally:
        _set(chunks, training, split, split)
        for chunk in chunks:
            chunk.set_input_tensor(None)  # type: ignore[operator]


def _set(chunks: Sequence[torch.nn.Module], training: Sequence[bool], was_split: bool, split: bool) -> None:
    for chunk, mode in zip(chunks, training, strict=True):
        chunk.train(mode)
        if was_split:
            set_model_to_sequence_parallel(chunk, split)


class Stages:
    """A model's chunks on this rank, among those of the other stages."""

    def __init__(self, chunks: Sequence[torch.nn.Module], config: TransformerConfig, device: torch.device) -> None:
        self.chunks = chunks
        self.device = device
        self._config = config
        self._group = parallel_state.get_pipeline_model_parallel_group()
        self._first = parallel_state.is_pipeline_first_stage(ignore_virtual=True)
        self._last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)

    def forward(self, tokens: torch.Tensor, cache: Cache | None, *, all_logits: bool = True) -> torch.Tensor | None:
        """`tokens` [rows, count], those after the cache's, which then holds them too. Logits [rows, count or 1,
        vocabulary with padding], float32, of all or of the last token, on the ranks of the last stage; None elsewhere.
        """
        rows, count = tokens.shape
        start = cache.at if cache else 0
        tokens = tokens.to(self.device)
        positions = torch.arange(start, start + count, device=self.device).expand(rows, count)
        seen = mask(start, start + count, self.device)
        if cache:
            cache.context.materialize_only_last_token_logits = not all_logits
        output = None
        for index, chunk in enumerate(self.chunks):
            if not self.is_first(index):
                chunk.set_input_tensor(self.receive(count, rows))  # type: ignore[operator]
            output = chunk(
                tokens, positions, seen, inference_context=cache.context if cache else None, runtime_gather_output=True
            )
            if not self.is_last(index):
                self.send(output)
        if cache:
            cache.advance(count)
        return output.float() if self._last and output is not None else None

    def is_first(self, index: int) -> bool:
        """Whether this rank's chunk of this index begins the model."""
        return self._first and index == 0

    def is_last(self, index: int) -> bool:
        return self._last and index == len(self.chunks) - 1

    def receive(self, count: int, rows: int, *, backward: bool = False) -> torch.Tensor:
        """Of the chunk before, [count, rows, hidden]; or of the one behind, what is its gradient."""
        shape = (count, rows, self._config.hidden_size)
        hidden = torch.empty(shape, dtype=self._config.pipeline_dtype, device=self.device)
        dist.recv(hidden, self._neighbour(ahead=backward), group=self._group)
        return hidden

    def send(self, hidden: torch.Tensor, *, backward: bool = False) -> None:
        dist.send(hidden.contiguous(), self._neighbour(ahead=not backward), group=self._group)

    @staticmethod
    def _neighbour(*, ahead: bool) -> int:
        if ahead:
            return int(parallel_state.get_pipeline_model_parallel_next_rank())
        return int(parallel_state.get_pipeline_model_parallel_prev_rank())


class Ranks:
    """All ranks of the world; every one of them makes it together."""

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo", timeout=PATIENCE)
        self.is_first = dist.get_rank() == 0
        mine = (
            parallel_state.is_pipeline_last_stage(ignore_virtual=True)
            and parallel_state.get_tensor_model_parallel_rank() == 0
        )
        self._chooser = self.least(dist.get_rank() if mine else dist.get_world_size())
        """Of those that see logits, the first one."""

    def chosen(
        self,
        shape: tuple[int, ...],
        logits: torch.Tensor | None,
        choose: Callable[[torch.Tensor], torch.Tensor],
        dtype: torch.dtype = torch.float64,
    ) -> torch.Tensor:
        """What `choose` makes of the logits, of this shape and dtype, on the rank that chooses; on all ranks, on the
        CPU. `logits` are None where a rank is not of the last stage."""
        if logits is not None and dist.get_rank() == self._chooser:
            numbers = choose(logits).cpu()
        else:
            numbers = torch.empty(shape, dtype=dtype)
        dist.broadcast(numbers, self._chooser, group=self._group)
        return numbers

    def of_first(self, shape: tuple[int, ...], numbers: torch.Tensor | None) -> torch.Tensor:
        """Rank 0's numbers, float64, of this shape, on all ranks, on the CPU."""
        numbers_of_first = (
            numbers.cpu() if numbers is not None and self.is_first else torch.empty(shape, dtype=torch.float64)
        )
        dist.broadcast(numbers_of_first, 0, group=self._group)
        return numbers_of_first

    def least(self, number: int) -> int:
        """Of all ranks' numbers."""
        least = torch.tensor(number)
        dist.all_reduce(least, dist.ReduceOp.MIN, group=self._group)
        return int(least)

    def from_first(self, text: str) -> str:
        """Rank 0's text, on all ranks."""
        content = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) if text else torch.empty(0)
        size = torch.tensor(content.numel())
        dist.broadcast(size, 0, group=self._group)
        if not size:
            return ""
        if not self.is_first:
            content = torch.empty(int(size), dtype=torch.uint8)
        dist.broadcast(content, 0, group=self._group)
        return content.numpy().tobytes().decode()

    def close(self) -> None:
        dist.destroy_process_group(self._group)
