"""The logit lens: what a layer's residual would predict if the model ended there.

Final norm and output layer are on the last stage, the residual is anywhere. The chosen rows of the step's first
microbatch are kept where they are seen, and go to the last stage point to point in the border that follows the step:
all ranks know from the agreed taps which rows those are and whose. There the rank's part of the vocabulary gives its
largest logits and their log-sum-exp, which the gateway merges with the others'. The model's own pass is not touched.
Of a generation the rows go after each pass, and the vocabulary is put together before.

Source: nostalgebraist, "interpreting GPT: the logit lens", 2020.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import gather_from_tensor_model_parallel_region

from megatronapp.core.errors import DataError
from megatronapp.core.scope.layout import Positions, picked, piece_index, pieces
from megatronapp.core.scope.operations import Slice, Take, TopK
from megatronapp.core.scope.plan import RESIDUAL_SITES
from megatronapp.core.scope.results import Result, Top
from megatronapp.core.scope.sites import Axis, matching
from megatronapp.trainer.plugins.scope.commands import Document
from megatronapp.trainer.plugins.scope.frames import Address, FrameQueue
from megatronapp.trainer.plugins.scope.places import LOGITS, Spot
from megatronapp.trainer.plugins.scope.reduce import reduce_shard
from megatronapp.trainer.plugins.scope.reduced import Reduced
from megatronapp.trainer.plugins.scope.shards import Shard
from megatronapp.trainer.plugins.scope.taps import Capture, Reader
from megatronapp.trainer.plugins.scope.watch import Tap, in_axes, resolved

Source = tuple[str, int | None]
"""Site and layer."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Which rows of [batch, token, chan] a tap asks for, of this rank's replica."""

    batch: Positions
    """Indexes in the microbatch."""
    tokens: int
    """How many, over all tensor ranks."""
    kept: tuple[bool, bool]
    """Whether batch and token stay as axes: of which an index was taken is gone."""

    @property
    def empty(self) -> bool:
        return not (len(self.batch) and self.tokens)


@dataclass(frozen=True, slots=True)
class _Pass:
    """What the rows are of: the same on all ranks."""

    shard: Shard
    step: int
    axes: tuple[Axis, ...]
    """Of the residual stream, with its sizes over all shards."""
    request: str = ""
    first_token: int = 0


class Lens:
    """Of one rank; `exchange` is called by all ranks in the same borders."""

    def __init__(self, chunks: Sequence[torch.nn.Module], shard: Shard, queue: FrameQueue) -> None:
        self._shard = shard
        self._queue = queue
        self._device = next(chunks[0].parameters()).device
        self._last: Any = next((chunk for chunk in chunks if chunk.post_process), None)
        self._taps: list[Tap] = []
        self._due: list[Tap] = []
        """Those of the present step or pass."""
        self._pass = _Pass(shard, 0, ())
        self._shown: set[int] = set()
        self._captured: dict[tuple[int, Source], torch.Tensor] = {}
        self._owners: dict[int, int] = {}
        """By layer, the stage that has it."""

    @property
    def at_end(self) -> bool:
        """Whether this rank is of the last stage, whose demands count for all."""
        return self._last is not None

    def set(self, documents: Sequence[Any], step_seconds: float) -> None:
        """Taps that all ranks have agreed on, in place of those before. What can't be read is left out, by all."""
        self._captured.clear()
        self._taps = []
        for document in documents:
            try:
                tap = Tap.parse(document, step_seconds)
            except DataError:
                continue
            if tap.lens is not None and all(_of_rows(each) for each in tap.operations[:-1]):
                self._taps.append(tap)

    def show(self, documents: Sequence[Any]) -> None:
        """This rank was asked for the frames of these."""
        self._shown = {each["id"] for each in documents if isinstance(each, Mapping) and type(each.get("id")) is int}

    def step_begin(self, step: int, *, before_pause: bool = False) -> bool:
        """Returns whether anything of this step is shown."""
        self._due = [tap for tap in self._taps if tap.of(None) and tap.due(step, unlimited=before_pause)]
        self._pass = _Pass(self._shard, step, self._shard.stream)
        return self.due

    def pass_begin(self, request: str, start: int, end: int, rows: int) -> bool:
        """The same of a generation's pass over these positions."""
        self._due = [tap for tap in self._taps if tap.of(request) and tap.due(end - 1, unlimited=True)]
        shard = self._shard.generating
        batch, token, *channels = shard.stream
        axes = (replace(batch, size=rows), replace(token, size=end - start), *channels)
        self._pass = _Pass(shard, end - 1, axes, request, start)
        return self.due

    @property
    def due(self) -> bool:
        """Whether rows of a step wait for `exchange`; the same on all ranks."""
        return bool(self._due)

    def wanted(self, spot: Spot) -> list[Reader]:
        layers = self._shard.model.layers
        chosen = [tap for tap in self._taps if spot.site in RESIDUAL_SITES and tap.chooses(spot, layers)]
        return [self._keeper(tap) for tap in chosen]

    @torch.no_grad()
    def exchange(self) -> None:
        """In the border after a step, and after a generation's pass: rows go to the last stage, and what they predict
        into the queue."""
        for tap in self._due:
            for source in self._sources(tap):
                # What does not fit does so on all ranks: none of them sends or waits then.
                with contextlib.suppress(DataError, LookupError):
                    self._exchange(tap, source)
        self._due = []
        self._captured.clear()

    # -- rows --

    def _keeper(self, tap: Tap) -> Reader:
        def keep(capture: Capture) -> None:
            if capture.microbatch or tap not in self._due:
                return
            values, axes = in_axes(capture)
            try:
                rows = self._rows(tap, axes)
            except (DataError, LookupError):
                return
            kept = values.new_zeros((len(rows.batch), rows.tokens, values.shape[-1]), dtype=torch.float32)
            left, positions = _chosen(tap, axes[1])
            device = values.device
            chosen = values.index_select(0, torch.from_numpy(rows.batch).to(device))
            kept[:, torch.from_numpy(positions).to(device)] = chosen.index_select(
                1, torch.from_numpy(left).to(device)
            ).float()
            self._captured[tap.id, (capture.spot.site, capture.spot.layer)] = kept

        return keep

    def _rows(self, tap: Tap, axes: Sequence[Axis]) -> _Rows:
        whole = replace(axes[1], splits=())
        batch, _ = _chosen(tap, axes[0])
        _, tokens = _chosen(tap, whole)
        indexed = {
            each.axis
            for each in resolved(tap.operations[:-1], axes)
            if isinstance(each, Take) and not isinstance(each.pick, Slice)
        }
        return _Rows(batch, len(tokens), ("batch" not in indexed, "token" not in indexed))

    def _sources(self, tap: Tap) -> list[Source]:
        """In the same order on all ranks."""
        selector = tap.expression.selector
        found: list[Source] = []
        for site in matching(selector.site, RESIDUAL_SITES):
            if site in ("embed", "final_norm"):
                found += [(site, None)] if not selector.layers else []
            else:
                found += [(site, layer) for layer in selector.numbers(self._shard.model.layers)]
        return found

    # -- the way to the last stage --

    def _exchange(self, tap: Tap, source: Source) -> None:
        rows = self._rows(tap, self._pass.axes)
        if rows.empty:
            return
        stage, last = self._stage_of(source), parallel_state.get_pipeline_model_parallel_world_size() - 1
        here = parallel_state.get_pipeline_model_parallel_rank()
        if here not in (stage, last):
            return
        group = parallel_state.get_pipeline_model_parallel_group()
        if here == stage:
            sent = self._whole(self._captured.get((tap.id, source)), rows)
            if stage != last:
                dist.send(sent, dist.get_global_rank(group, last), group=group)
                return
            received = sent
        else:
            received = self._empty(rows)
            dist.recv(received, dist.get_global_rank(group, stage), group=group)
        # Of a generation the tensor ranks come together, also where one was not asked yet.
        if tap.id in self._shown or self._pass.request:
            self._predict(tap, source, rows, received)

    def _whole(self, kept: torch.Tensor | None, rows: _Rows) -> torch.Tensor:
        """Of all tensor ranks' tokens, where sequence parallelism has spread them."""
        whole = self._empty(rows).fill_(torch.nan) if kept is None else kept
        if self._pass.shard.at.sequence_parallel and self._shard.tensors > 1:
            dist.all_reduce(whole, group=parallel_state.get_tensor_model_parallel_group())
        return whole

    def _empty(self, rows: _Rows) -> torch.Tensor:
        return torch.empty((len(rows.batch), rows.tokens, self._shard.model.hidden), device=self._device)

    def _stage_of(self, source: Source) -> int:
        site, layer = source
        last = parallel_state.get_pipeline_model_parallel_world_size() - 1
        if layer is None:
            return 0 if site == "embed" else last
        if not self._owners:
            found: list[Any] = [None] * (last + 1)
            group = parallel_state.get_pipeline_model_parallel_group()
            dist.all_gather_object(found, self._shard.at.layers, group=group)
            self._owners = {number: stage for stage, layers in enumerate(found) for number in layers}
        return self._owners[layer]

    # -- on the last stage --

    def _predict(self, tap: Tap, source: Source, rows: _Rows, values: torch.Tensor) -> None:
        assert tap.lens is not None  # noqa: S101
        at = self._pass
        logits = predicted(self._last, values, norm=source[0] != "final_norm")
        if at.request:
            logits = gather_from_tensor_model_parallel_region(logits)[..., : at.shard.model.vocabulary]
        if tap.id not in self._shown:
            return
        of_logits = at.shard.sites[LOGITS].axes
        axes = (Axis("batch", logits.shape[0]), Axis("token", logits.shape[1]), of_logits[-1])
        reduced = reduce_shard(logits, None, axes, [TopK(tap.lens.k)])
        assert reduced is not None  # noqa: S101
        address = Address(
            tap=tap.id,
            step=at.step,
            microbatch=None if at.request else 0,
            layer=source[1],
            extents=[at.axes[0].size, at.axes[1].size, of_logits[-1].size],
            origins=[0, at.first_token, 0],
            request=at.request,
            when=tap.when,
        )
        self._queue.put(address, _with_axes(reduced, rows.kept))


def lens_documents(demand: Document) -> list[Any]:
    """Those of a demand's taps that are a lens's."""
    taps = demand.get("taps")
    found = [each for each in taps if isinstance(each, dict)] if isinstance(taps, list) else []
    return [each for each in found if "logitlens(" in str(each.get("expression", ""))]


def predicted(chunk: Any, rows: torch.Tensor, *, norm: bool) -> torch.Tensor:
    """This tensor rank's logits [..., vocab] of residual rows [..., hidden], by the last chunk's final norm and output
    layer. No collective: what a parallel layer would gather first is here already."""
    tied = chunk.share_embeddings_and_output_weights
    weight = chunk.shared_embedding_or_output_weight() if tied else chunk.output_layer.weight
    rows = rows.to(weight.dtype)
    return F.linear(chunk.decoder.final_layernorm(rows) if norm else rows, weight)


def _of_rows(operation: Any) -> bool:
    return str(operation).split("(")[0] in ("batch", "token", "last")


def _chosen(tap: Tap, axis: Axis) -> tuple[Positions, Positions]:
    """Of this part of an axis the indexes that the tap's slices leave, and their positions in what is left of it."""
    held = positions = pieces(axis)[piece_index(axis)].copy()
    left, size = np.arange(len(held)), axis.size
    for take in resolved(tap.operations[:-1], (axis,)):
        if isinstance(take, Take) and take.axis == axis.name:
            index, positions = picked(positions, size, take)
            left = left[index]
            size = len(take.pick.of(size)) if isinstance(take.pick, Slice) else 1
    return left, positions


def _with_axes(reduced: Reduced, kept: tuple[bool, bool]) -> Reduced:
    """Without the axes of which an index was taken."""
    gone = tuple(at for at, stays in enumerate(kept) if not stays)

    def finish(arrays: Sequence[Any]) -> Result:
        top = reduced.finish(arrays)
        assert isinstance(top, Top)  # noqa: S101
        return Top(top.indexes.squeeze(gone), top.values.squeeze(gone), top.log_sum_exp.squeeze(gone))

    return Reduced(reduced.tensors, finish)
