"""What this rank was asked to show: taps, each one expression, and the readers that make frames of what is seen."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from megatronapp.core.errors import DataError
from megatronapp.core.scope.expression import Expression, parse
from megatronapp.core.scope.operations import Last, LogitLens, Operation, Pool, Reduce, Slice, Stats, Take, When
from megatronapp.core.scope.reducers import OF_ONE_ITSELF
from megatronapp.core.scope.sites import TOKENS, Axis, matching
from megatronapp.trainer.plugins.scope.derived import (
    reduce_attention,
    reduce_expert_results,
    reduce_features,
    reduce_head_results,
)
from megatronapp.trainer.plugins.scope.finished import Finished
from megatronapp.trainer.plugins.scope.frames import Address, FrameQueue
from megatronapp.trainer.plugins.scope.places import EXPERT, EXPERT_ACT, RESULT, Dims, Spot
from megatronapp.trainer.plugins.scope.reduce import (
    counts_patterns,
    reduce_by_patterns,
    reduce_entries,
    reduce_shard,
)
from megatronapp.trainer.plugins.scope.reduced import Reduced
from megatronapp.trainer.plugins.scope.saes import Sae
from megatronapp.trainer.plugins.scope.shards import Shard
from megatronapp.trainer.plugins.scope.spelling import Speller
from megatronapp.trainer.plugins.scope.statistics import Alert, alerts
from megatronapp.trainer.plugins.scope.taps import Capture

UNFIT = (DataError, LookupError, ValueError, TypeError, RuntimeError)
"""What an expression raises that does not fit the values, or has no memory left. Training goes on without it."""
MAX_TAPS = 256
NOTHING = torch.empty(0)
GRADIENT = "grad."
MASKED = frozenset({"attn.scores", "attn.probs"})
MAX_SHAPES = 64
"""Known of a tap; a generation's grow with each token."""
MERGEABLE = Pool | Reduce | Stats


@dataclass(frozen=True, slots=True)
class Tap:
    """A `ScopeTap`, read."""

    id: int
    expression: Expression
    partial: bool
    every: int
    stride: int
    """Of the steps that `every` leaves, one in so many: a limit of frames in a second, as one in steps."""
    when: When | None
    request: str

    @classmethod
    def parse(cls, document: Mapping[str, Any], step_seconds: float) -> Tap:
        """`step_seconds`: what a step takes, 0: not known; a limit of frames in a second becomes one of steps, as ranks
        have no clock in common. Raises DataError."""
        if not isinstance(document, Mapping):
            raise DataError("a tap must be an object")
        text, number = document.get("expression"), document.get("id", 0)
        if not isinstance(text, str) or type(number) is not int or not 0 <= number < 1 << 32:
            raise DataError("a tap has a number and an expression")
        expression = parse(text)
        every = max(_number(document.get("every_steps")), 1.0)
        fps = _number(document.get("max_fps"))
        stride = max(math.ceil(1 / (fps * step_seconds * every)), 1) if fps and step_seconds else 1
        condition = document.get("when")
        mergeable = bool(expression.operations) and isinstance(expression.operations[-1], MERGEABLE)
        return cls(
            id=number,
            expression=expression,
            partial=document.get("partial") is True and mergeable,
            every=int(every),
            stride=stride,
            when=_when(condition) if condition else None,
            request=str(document.get("request", "")),
        )

    @property
    def lens(self) -> LogitLens | None:
        last = self.expression.operations[-1] if self.expression.operations else None
        return last if isinstance(last, LogitLens) else None

    @property
    def gradient(self) -> bool:
        return self.expression.selector.site.startswith(GRADIENT)

    @property
    def operations(self) -> tuple[Operation, ...]:
        return self.expression.operations

    def of(self, request: str | None) -> bool:
        """Whether it is asked for in this generation, or in a training."""
        return self.request in ("", request)

    def chooses(self, spot: Spot, layers: int) -> bool:
        selector = self.expression.selector
        if not matching(selector.site.removeprefix(GRADIENT), (spot.site,)):
            return False
        if spot.layer is None:
            return not selector.layers
        return spot.layer in selector.numbers(layers)

    def due(self, step: int, *, unlimited: bool) -> bool:
        """`unlimited`: whatever the limit of frames in a second, as that of the step before a pause, which is looked at
        for long."""
        return step % (self.every if unlimited else self.every * self.stride) == 0


def _number(value: Any) -> float:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)  # as JSON writes 64 bits
    if value is None:
        return 0.0
    if type(value) not in (int, float) or not 0 <= value < 1e15:
        raise DataError(f"{value!r:.40} is no number that a tap can have")
    return float(value)


def _when(text: Any) -> When:
    if not isinstance(text, str):
        raise DataError("a tap's condition must be text")
    operations = parse(f"site | when({text})").operations
    if len(operations) != 1 or not isinstance(operations[0], When):
        raise DataError(f"{text!r:.40} is no condition")
    return operations[0]


_Of = tuple[tuple[Axis, ...], Reduced | None]


class _Shape(NamedTuple):
    """Of values."""

    axes: tuple[Axis, ...]
    operations: tuple[Operation, ...]
    """Those of the tap that do anything here."""


class TapReader:
    """Reduces what is seen and puts it into the queue. Made for one tap."""

    def __init__(self, tap: Tap, queue: FrameQueue, speller: Speller | None = None) -> None:
        self.tap = tap
        shows_ids = matching(tap.expression.selector.site, (TOKENS,)) and all(
            isinstance(each, Take | Last) for each in tap.operations
        )
        self._speller = speller if shows_ids else None
        self.due = False
        """Whether the present step is shown."""
        self.seconds = 0.0
        """That the training thread has spent on it in this step."""
        self.failed = ""
        """Why it shows nothing: the expression does not fit the values."""
        self.alerts: list[tuple[Capture, Alert]] = []
        """That have come since somebody asked; without the values."""
        self._queue = queue
        self._shapes: dict[tuple[str, Shard, torch.Size], _Shape] = {}

    def read(self, capture: Capture) -> None:
        """A `taps.Reader`."""
        if not self.due or self.failed:
            return
        begin = time.perf_counter()
        try:
            self._reduce(capture)
        except UNFIT as error:
            self.failed = str(error) or type(error).__name__
        self.seconds += time.perf_counter() - begin

    def _reduce(self, capture: Capture) -> None:
        spot = capture.spot
        if spot.sae is not None:
            axes, reduced = self._features(capture, spot.sae)
        elif capture.key is not None:
            of = {RESULT: self._results, EXPERT_ACT: self._experts, EXPERT: self._experts}.get(
                spot.site, self._attention
            )
            axes, reduced = of(capture, capture.key)
        else:
            axes, operations = self._known(capture)
            key = operations, self.tap.partial
            if key not in capture.made:
                capture.made[key] = self._reduced(capture, axes, operations)
            reduced = capture.made[key]
        if reduced is not None:
            self._queue.put(self._address(capture, axes), reduced)

    def _known(self, capture: Capture) -> _Shape:
        """Of values of this shape: worked out once, as a training has the same in each step."""
        key = (capture.spot.site, capture.shard, capture.value.shape)
        known = self._shapes.get(key)
        if known is None:
            if len(self._shapes) >= MAX_SHAPES:
                self._shapes.clear()
            axes = sizes(capture)
            known = self._shapes[key] = _Shape(axes, effective(self.tap, axes))
        return known

    def _reduced(self, capture: Capture, axes: tuple[Axis, ...], operations: Sequence[Operation]) -> Reduced | None:
        if len(operations) == 1 and capture.spot.site not in MASKED and capture.value.numel():
            stats = operations[0]
            if counts_patterns(stats, capture.value, capture.absent):  # in whatever order
                return reduce_by_patterns(capture.value, stats, partial=self.tap.partial)
        values = ordered(capture, axes)
        absent = masked(capture, values)
        entries = reduce_entries(values, axes, operations) if absent is None else None
        return entries or reduce_shard(values, absent, axes, operations, partial=self.tap.partial)

    def _attention(self, capture: Capture, key: torch.Tensor) -> _Of:
        """Scores or probabilities of a fused attention, given [token, batch, head, chan]."""
        spot, query = capture.spot, capture.value
        shape = (query.shape[1], query.shape[2], query.shape[0], key.shape[0])
        axes = capture.shard.axis_sizes(spot.site, spot.place.dims, shape)
        operations = resolved(self.tap.operations, axes)
        scale = getattr(spot.module, "softmax_scale", None) or query.shape[-1] ** -0.5
        reduced = reduce_attention(
            query.permute(1, 2, 0, 3),
            key.permute(1, 2, 0, 3),
            axes,
            operations,
            scale=float(scale),
            softmax=spot.site == "attn.probs",
            partial=self.tap.partial,
        )
        return axes, reduced

    def _results(self, capture: Capture, weight: torch.Tensor) -> _Of:
        """What each head adds: contexts [token, batch, heads · chan] times the projection [hidden, heads · chan]."""
        tokens, batch, width = capture.value.shape
        heads, channels = capture.shard.counts(("head", "chan"), width)
        shape = (tokens, batch, heads, weight.shape[0])
        axes = capture.shard.axis_sizes(capture.spot.site, capture.spot.place.dims, shape)
        operations = resolved(self.tap.operations, axes)
        reduced = reduce_head_results(
            capture.value.view(tokens, batch, heads, channels).permute(1, 0, 2, 3),
            weight.view(-1, heads, channels),
            axes,
            operations,
            partial=self.tap.partial,
        )
        return axes, reduced

    def _experts(self, capture: Capture, rows: torch.Tensor) -> _Of:
        """What each expert makes of its tokens: rows [row, chan], and which one is whose [token, batch, expert]."""
        shape = (*rows.shape, capture.value.shape[-1])
        axes = capture.shard.axis_sizes(capture.spot.site, capture.spot.place.dims, shape)
        operations = resolved(self.tap.operations, axes)
        of = rows.permute(1, 0, 2)
        reduced = reduce_expert_results(
            capture.value, of, axes, operations, each_once=capture.request is None, partial=self.tap.partial
        )
        return axes, reduced

    def _features(self, capture: Capture, sae: Sae) -> _Of:
        """What an SAE makes of rows [token, batch, hidden]."""
        shape = (*capture.value.shape[:2], sae.features)
        axes = capture.shard.axis_sizes(capture.spot.site, capture.spot.place.dims, shape)
        operations = resolved(self.tap.operations, axes)
        rows = capture.value.permute(1, 0, 2)
        return axes, reduce_features(rows, sae, axes, operations, partial=self.tap.partial)

    def _address(self, capture: Capture, axes: Sequence[Axis]) -> Address:
        spot, shard, step = capture.spot, capture.shard, capture.step
        microbatch, gradient = capture.microbatch, capture.gradient  # not the capture, which holds the values

        def inspect(finished: Finished) -> None:
            operations = resolved(self.tap.operations, axes)
            found = alerts(spot.site, [axis.name for axis in axes], operations, finished.result, finite=finished.finite)
            if found:
                about = Capture(spot, NOTHING, shard, step, microbatch, gradient=gradient)
                self.alerts += [(about, alert) for alert in found]

        return Address(
            tap=self.tap.id,
            step=step,
            microbatch=microbatch if capture.request is None else None,
            request=capture.request or "",
            layer=spot.layer,
            extents=[axis.size for axis in axes],
            origins=[capture.first_token if axis.name in ("token", "query") else 0 for axis in axes],
            when=self.tap.when,
            inspect=inspect,
            spell=self._speller,
        )


def in_axes(capture: Capture) -> tuple[torch.Tensor, tuple[Axis, ...]]:
    """The value in the order of its site's axes, which have the sizes that they have over all shards; a view."""
    axes = sizes(capture)
    return ordered(capture, axes), axes


def sizes(capture: Capture) -> tuple[Axis, ...]:
    return capture.shard.axis_sizes(capture.spot.site, capture.spot.place.dims, capture.value.shape)


def ordered(capture: Capture, axes: tuple[Axis, ...]) -> torch.Tensor:
    dims, value = capture.spot.place.dims, capture.value
    if len(axes) != len(dims):  # heads and their channels are one dimension
        counts = capture.shard.counts
        value = value.reshape([n for dim, size in zip(dims, value.shape, strict=True) for n in counts(dim, size)])
    return value.permute(_order(dims, tuple(axis.name for axis in axes)))


@lru_cache(maxsize=512)
def _order(dims: Dims, names: tuple[str, ...]) -> tuple[int, ...]:
    local = [name for dim in dims for name in dim]
    return tuple(map(local.index, names))


def masked(capture: Capture, values: torch.Tensor) -> torch.Tensor | None:
    """Of scores and probabilities: a key after the query has none. Of what this rank has some cells of: the others."""
    if capture.spot.site not in MASKED:
        return capture.absent
    queries, keys = values.shape[-2:]
    if queries == 1:  # a generation's new token sees all keys
        return None
    rows = torch.arange(keys - queries, keys, device=values.device).unsqueeze(-1)
    return torch.arange(keys, device=values.device) > rows


def resolved(operations: Sequence[Operation], axes: Sequence[Axis]) -> list[Operation]:
    """`last(n)` is of queries where there are any."""
    rows = "query" if any(axis.name == "query" for axis in axes) else "token"
    return [Take(rows, Slice(-each.count)) if isinstance(each, Last) else each for each in operations]


def effective(tap: Tap, axes: Sequence[Axis]) -> tuple[Operation, ...]:
    """Without pools into as many bins as there are cells, and more: taps that differ in nothing else show the same."""
    operations = resolved(tap.operations, axes)
    most = {axis.name: axis.size for axis in axes}
    merged = len(operations) - 1 if tap.partial else None
    return tuple(
        each
        for at, each in enumerate(operations)
        if at == merged or not (isinstance(each, Pool) and keeps_cells(each, most.get(each.axis)))
    )


def keeps_cells(pool: Pool, size: int | None) -> bool:
    """Of an axis of at most this size; None: there is none."""
    return size is not None and pool.bins >= size and pool.how in OF_ONE_ITSELF
