"""A model that generates: what `megatronapp generate`, a server and a training run at a step's border share.

    generator = Generator(chunks, config, tokenizer, max_positions, device)     # on all ranks together
    with generator.ready():                                                      # no dropout, no sequence parallelism
        for event in generator.generate(request):                                # on all ranks, the same request
            ...

Every rank makes the same calls in the same order and sees the same events. Data-parallel replicas compute the same, so
that experts split over them take part. Nothing here draws from a random generator, and weights stay as they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import psutil
import torch
import torch.distributed as dist
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.core.errors import UsageError
from megatronapp.core.generation import Event, Finished, GenerationRequest, Limits
from megatronapp.trainer.data import Tokenizer
from megatronapp.trainer.generate.beam_session import BeamSession
from megatronapp.trainer.generate.cache import Cache
from megatronapp.trainer.generate.engine import Engine
from megatronapp.trainer.generate.gradient_session import GradientSession
from megatronapp.trainer.generate.parallel import Ranks, Stages, generating
from megatronapp.trainer.generate.rows import Row, rows_of
from megatronapp.trainer.generate.session import Session
from megatronapp.trainer.plugins.generating import PassObserver

KEPT = 2
"""Sessions whose caches later requests may take over: a branch, and what it branched from."""
LIVE = 4
"""Sessions that may be under way at once."""
MEMORY_SHARE = 0.8 / (KEPT + LIVE)
"""Of the memory that is free at the beginning: what the cache of one session may take."""

CachingSession = Session | BeamSession
AnySession = CachingSession | GradientSession


class Generator:
    def __init__(
        self,
        chunks: Sequence[torch.nn.Module],
        config: TransformerConfig,
        tokenizer: Tokenizer,
        max_positions: int,
        device: torch.device,
    ) -> None:
        """`chunks` are this rank's GPTModels, not wrapped. All ranks of the world make it together."""
        self._chunks = chunks
        self._config = config
        ranks = Ranks()
        self.limits = Limits(
            vocabulary=tokenizer.vocab_size,
            max_positions=max_positions,
            max_cached=ranks.least(int(MEMORY_SHARE * _free_bytes(device)) // _bytes_per_position(chunks, config)),
        )
        self.engine = Engine(Stages(chunks, config, device), ranks, tokenizer, self.limits)
        self._kept: deque[CachingSession] = deque(maxlen=KEPT)

    @property
    def ranks(self) -> Ranks:
        return self.engine.ranks

    def observe(self, observer: PassObserver) -> None:
        """Tell it of each forward pass of a session from now on."""
        self.engine.observer = observer

    def ready(self) -> AbstractContextManager[None]:
        """In which sessions may be stepped; after it the model is as it was before."""
        return generating(self._chunks, self._config)

    def session(self, request: GenerationRequest) -> AnySession:
        """Raises MegatronAppError on all ranks alike for what this model does not take."""
        rows = rows_of(request, self.engine.tokenizer, self.limits)
        positions = max(len(row.ids) for row in rows) + request.max_new_tokens
        self.limits.check_cache(request.beam_width or len(rows), positions)
        self._look_inside(request, request.beam_width or len(rows), positions)
        if request.input_gradients:
            return GradientSession(self.engine, request, rows[0])
        session: CachingSession
        if request.beam_width:
            session = BeamSession(self.engine, request, rows, Cache(1, positions))
        else:
            cache = self._computed(request, rows, positions) if request.reuse_prefix else None
            session = Session(self.engine, request, rows, cache or Cache(len(rows), positions))
        if not request.interventions:
            self._kept.append(session)
        return session

    def ended(self, request: str) -> None:
        """Its session is not stepped any more, or never began."""
        if self.engine.observer is not None:
            self.engine.observer.request_end(request)

    def _look_inside(self, request: GenerationRequest, rows: int, positions: int) -> None:
        observer = self.engine.observer
        if observer is not None:
            observer.request_begin(request, rows, positions)
        elif request.looks_inside:
            raise UsageError("interventions and keep need MegaScope: start the ranks with --scope")

    def generate(self, request: GenerationRequest) -> Iterator[Event]:
        """To its end; the last event is Finished. Raises MegatronAppError for what this model does not take."""
        session = self.session(request)
        yield from session.start()
        try:
            while not session.done:
                yield from session.step()
        finally:
            self.ended(request.id)
        yield Finished(request=request.id, reason="done")

    def forget(self) -> None:
        """What was computed is of another model than the present one: weights changed, or something disturbs it."""
        self._kept.clear()

    def close(self) -> None:
        self.forget()
        self.ranks.close()

    def _computed(self, request: GenerationRequest, rows: Sequence[Row], positions: int) -> Cache | None:
        """A cache of what the rows have in common with those of a kept session, as far as nobody must see it again."""
        scored_from = 1 if request.prompt_log_probabilities else min(row.prompt for row in rows)
        most = min(scored_from if request.continuations or request.prompt_log_probabilities else positions, positions)
        best: tuple[int, CachingSession | None, list[int]] = (0, None, [])
        for session in self._kept:
            pairs = [_nearest(row.ids, session.ids, session.cache.at) for row in rows]
            length = min(min(common for common, _ in pairs), min(len(row.ids) for row in rows) - 1, most - 1)
            if length > best[0]:
                best = (length, session, [place for _, place in pairs])
        length, found, places = best
        return found.cache.head(places, length, positions) if found else None


def _nearest(ids: Sequence[int], others: Sequence[Sequence[int]], at: int) -> tuple[int, int]:
    """How many of the first `at` tokens are the same as in one of the others, at best, and in which."""
    lengths = [(_common(ids, other[:at]), -place) for place, other in enumerate(others)]
    length, place = max(lengths, default=(0, 0))
    return length, -place


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _bytes_per_position(chunks: Sequence[torch.nn.Module], config: TransformerConfig) -> int:
    """Of keys and values of this rank's layers."""
    layers = sum(len(chunk.decoder.layers) for chunk in chunks)  # type: ignore[union-attr, arg-type, misc]
    groups = -(-(config.num_query_groups or config.num_attention_heads) // config.tensor_model_parallel_size)
    width = config.kv_channels or config.hidden_size // config.num_attention_heads
    return max(1, 2 * layers * groups * width * config.params_dtype.itemsize)


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return int(psutil.virtual_memory().available // dist.get_world_size())
