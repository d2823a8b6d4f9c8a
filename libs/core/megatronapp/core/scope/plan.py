"""What an expression means on a model, before anything is done: shape, bytes, cost, and which part runs where.

Operations run on the rank as long as each shard can do them alone. The first one that goes over an axis which is split
leaves mergeable parts there (`partial`); what follows it runs on the merged whole, at the gateway.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from megatronapp.core.errors import DataError
from megatronapp.core.scope import reducers
from megatronapp.core.scope.expression import Expression
from megatronapp.core.scope.frame import (
    HEADER_BYTES,
    ITEM_BYTES,
    MAX_DIMS,
    MAX_FRAME_BYTES,
    MAX_SHARD_BYTES,
    Dtype,
    Kind,
)
from megatronapp.core.scope.joined import joined
from megatronapp.core.scope.layout import Track, distinct, shape
from megatronapp.core.scope.operations import (
    Compare,
    Elementwise,
    Every,
    Hist,
    Last,
    LogitLens,
    Operation,
    Pca,
    Pool,
    Reduce,
    Reducer,
    Replicas,
    Slice,
    Stats,
    Take,
    TopK,
    When,
)
from megatronapp.core.scope.pca import MAX_ROWS
from megatronapp.core.scope.quantize import FORMATS
from megatronapp.core.scope.replicas import of_one_replica, why_not_apart
from megatronapp.core.scope.sites import Axis

ASSUMED_SIZE = 1024
"""Of an axis whose size changes, where nobody says what to expect."""
LAUNCH_MICROSECONDS = 8.0
"""Of one kernel, launched from Python: assumed, as the next two are."""
BYTES_PER_MICROSECOND = 1e6
"""Read from a device's memory: 1 TB/s."""
COPIED_BYTES_PER_MICROSECOND = 2e4
"""From the device to its host: 20 GB/s."""
RESIDUAL_SITES = ("embed", "resid_pre", "resid_mid", "resid_post", "final_norm")


class PlanError(DataError):
    """An expression that is well-formed, but means nothing here or too much. `code` is for machines."""

    def __init__(self, code: str, text: str, hint: str = "") -> None:
        super().__init__(text + (f"; {hint}" if hint else ""))
        self.code, self.text, self.hint = code, text, hint


@dataclass(frozen=True, slots=True)
class Plan:
    expression: Expression
    site: str
    rank: tuple[Operation, ...]
    partial: bool
    """The last of `rank` leaves mergeable parts."""
    gateway: tuple[Operation, ...]
    """Reductions of the merged whole."""
    beside: tuple[Pca | Compare, ...]
    """What needs other frames too, last of all."""
    before: tuple[str, ...]
    """Axes of the values that it is done to."""
    kind: Kind
    """Of the frames that viewers get."""
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    """0: another size in each frame."""
    sizes: tuple[int, ...]
    """The same, with the sizes that are expected."""
    statistics: tuple[str, ...]
    parts: tuple[Track, ...]
    """The site's axes: who has which cells of the model's values."""
    held: tuple[Track, ...]
    """The same axes after `rank`, but for a last Stats, Hist or TopK: where each part's cells lie in the whole."""
    representatives: tuple[tuple[int, ...], ...]
    """For each axis of `parts` and each part: the first one that holds the same cells; -1: none is in the picture."""
    elements: int
    """Of one frame, with the sizes that are expected."""
    shard_elements: int
    """Read on the rank that has most."""
    every: int
    when: When | None
    lens: bool
    """Rows go through the output layer: `parts` are of the logits."""
    downsampled: bool
    replicas: int
    """Data-parallel replicas that are shown apart; 0: they are shown together. `parts` and `held` are then of one."""

    @property
    def stitched(self) -> bool:
        """Whether more than one rank's frames make one picture."""
        return self.partial or self.replicas > 0 or any(len(distinct(track.pieces)) > 1 for track in self.held)

    @property
    def condition_of_rank(self) -> str:
        """What of `when` a rank can decide, as a ScopeTap has it; empty: none of it. Of a picture of several parts no
        rank knows whether it is to be shown."""
        if self.when is None or self.stitched or self.gateway or self.beside or self.lens:
            return ""
        return str(self.when).removeprefix("when(").removesuffix(")")

    def frame_bytes(self, quantizer: str) -> int:
        """Of a frame for viewers, without sections."""
        item = {
            Kind.TOPK: 2 * ITEM_BYTES[Dtype.U32],
            Kind.HIST: ITEM_BYTES[Dtype.U32],
        }.get(self.kind, ITEM_BYTES[FORMATS[quantizer].dtype])
        return HEADER_BYTES + self.elements * item

    def cost_microseconds(self, quantizer: str, item_bytes: int = 2) -> float:
        """An estimate of what one frame takes on the rank that has most to do, on a data-centre GPU: launches, reading
        the values, copying the result to the host."""
        launches = 2.0 + sum(_launches(operation) for operation in self.rank)
        read = self.shard_elements * item_bytes / BYTES_PER_MICROSECOND
        return launches * LAUNCH_MICROSECONDS + read + self.frame_bytes(quantizer) / COPIED_BYTES_PER_MICROSECOND


def plan(
    expression: Expression,
    site: str,
    axes: Sequence[Axis],
    *,
    logits: Sequence[Axis] = (),
    expected: Mapping[str, int] | None = None,
    max_bytes: int = MAX_FRAME_BYTES,
    quantizer: str = "asinh",
    replicas: int = 1,
) -> Plan:
    """Of one site. `axes` are its axes as any rank has them, `logits` those of the logits, for the lens; `expected`
    sizes of axes that change, by name; `replicas` how many data-parallel ones there are. Raises PlanError.
    """
    if Replicas() in expression.operations:
        if why := why_not_apart(expression.operations, site, axes, replicas):
            raise PlanError("invalid", why)
        axes = [of_one_replica(axis) for axis in axes]
    planner = _Planner(expression, site, axes, logits, expected or {}, replicas)
    for operation in joined(expression.operations, axes):
        planner.add(operation)
    made = planner.plan()
    if quantizer not in FORMATS:
        raise PlanError("invalid", f"there is no quantiser {quantizer}", f"one of {', '.join(FORMATS)}")
    if (size := made.frame_bytes(quantizer)) > max_bytes:
        raise PlanError(
            "too_large", f"a frame would have {size} bytes; at most {max_bytes}", "slice it, or pool(chan,64,absmax)"
        )
    return made


class _Planner:
    """Takes operations one after the other; `plan` says what came of them."""

    def __init__(
        self,
        expression: Expression,
        site: str,
        axes: Sequence[Axis],
        logits: Sequence[Axis],
        expected: Mapping[str, int],
        replicas: int,
    ) -> None:
        self._expression = expression
        self._site = site
        self._expected = expected
        self._logits = logits
        self._changing = {axis.name for axis in (*axes, *logits) if not axis.size}
        self._tracks = self._tracked(axes)
        self._shard_elements = math.prod(max(map(len, track.pieces)) for track in self._tracks)
        self._rank: list[Operation] = []
        self._gateway: list[Operation] = []
        self._beside: list[Pca | Compare] = []
        self._before: tuple[str, ...] = ()
        self._parts = self._tracks
        self._held: tuple[Track, ...] | None = None
        self._partial = False
        self._kind = Kind.TENSOR
        self._ended = ""
        self._statistics: tuple[str, ...] = ()
        self._every = 1
        self._when: When | None = None
        self._lens = False
        self._downsampled = False
        self._all_replicas = replicas
        self._replicas = 0

    def _tracked(self, axes: Sequence[Axis]) -> tuple[Track, ...]:
        sizes = (axis.size or self._expected.get(axis.name, ASSUMED_SIZE) for axis in axes)
        return tuple(Track.of(replace(axis, size=size)) for axis, size in zip(axes, sizes, strict=True))

    def add(self, operation: Operation) -> None:
        if isinstance(operation, Every):
            self._every = math.lcm(self._every, operation.steps)
        elif isinstance(operation, When):
            self._when = operation
        elif isinstance(operation, Replicas):
            self._apart()
        elif self._ended and (self._replicas or not (isinstance(operation, Compare) and self._kind is Kind.TENSOR)):
            raise PlanError("invalid", f"{operation} can't follow {self._ended}", f"{self._ended} comes last")
        else:
            self._add(operation)

    def _add(self, operation: Operation) -> None:
        match operation:
            case Last(count=count):
                axis = "query" if any(track.name == "query" for track in self._tracks) else "token"
                self._add(Take(axis, Slice(-count)))
            case Take(axis=axis):
                self._change(axis, self._picked(self._track(axis), operation))
                self._place(operation)
            case Elementwise():
                self._place(operation)
            case Pool(axis=axis, bins=bins, how=how):
                track = self._track(axis)
                self._downsampled |= bins < track.size
                self._place(operation, merges=self._pools_across(track, bins))
                self._send(reducers.component_count(how), self._with(axis, track.pool(bins)))
                self._change(axis, track.pool(bins))
            case Reduce(axis=axis, how=how):
                track = self._track(axis)
                self._place(operation, merges=track.split)
                self._send(reducers.component_count(how), self._with(axis, track.pool(1)))
                self._change(axis, replace(track.pool(1), dropped=True))
            case Stats() | Hist():
                self._distribution(operation)
            case TopK():
                self._top(operation)
            case LogitLens():
                self._lens_of(operation)
            case Pca() | Compare():
                self._beside_of(operation)

    def plan(self) -> Plan:
        held = self._tracks if self._held is None else self._held
        kept = [track for track in self._tracks if not track.dropped]
        if max(len(kept), len(shape(held))) > MAX_DIMS:
            raise PlanError("invalid", f"more than {MAX_DIMS} axes are left", "take an index, such as head(0)")
        return Plan(
            expression=self._expression,
            site=self._site,
            rank=tuple(self._rank),
            partial=self._partial,
            gateway=tuple(self._gateway),
            beside=tuple(self._beside),
            before=self._before,
            kind=self._kind,
            axes=tuple(track.name for track in kept),
            shape=tuple(0 if track.name in self._changing else track.size for track in kept),
            sizes=tuple(track.size for track in kept),
            statistics=self._statistics,
            parts=self._parts,
            held=held,
            representatives=tuple(_representatives(*both) for both in zip(self._parts, held, strict=True)),
            elements=math.prod(track.size for track in kept),
            shard_elements=self._shard_elements,
            every=self._every,
            when=self._when,
            lens=self._lens,
            downsampled=self._downsampled,
            replicas=self._replicas,
        )

    def _place(self, operation: Operation, *, merges: bool = False) -> None:
        """To the rank as long as nothing has gone to the gateway."""
        if self._held is not None:
            self._gateway.append(operation)
            return
        self._rank.append(operation)
        self._partial = merges

    def _send(self, components: int, tracks: Sequence[Track]) -> None:
        """Mergeable parts are float64, several a cell: a rank's frame of them may be too large where the picture is
        not."""
        if self._held is not None or not self._partial:
            return
        size = HEADER_BYTES + components * ITEM_BYTES[Dtype.F64] * math.prod(max(map(len, t.pieces)) for t in tracks)
        if size > MAX_SHARD_BYTES:
            raise PlanError(
                "too_large",
                f"a rank's part would have {size} bytes, as {self._rank[-1]} goes over several ranks; at most "
                f"{MAX_SHARD_BYTES}",
                "slice it before",
            )

    def _with(self, name: str, track: Track) -> tuple[Track, ...]:
        return tuple(track if each.name == name else each for each in self._tracks)

    def _change(self, name: str, track: Track) -> None:
        self._tracks = self._with(name, track)
        if self._partial:
            self._hold()

    def _hold(self) -> None:
        """From here on it is the gateway that has the whole."""
        if self._held is None:
            self._held = self._tracks
            self._tracks = tuple(
                replace(track, pieces=Track.of(Axis(track.name, track.size)).pieces) for track in self._tracks
            )

    def _track(self, name: str) -> Track:
        for track in self._tracks:
            if track.name == name and not track.dropped:
                return track
        names = ", ".join(track.name for track in self._tracks if not track.dropped)
        raise PlanError("invalid", f"{self._site} has no axis {name} here", f"it has {names}" if names else "")

    def _picked(self, track: Track, take: Take) -> Track:
        try:
            return track.take(take)
        except DataError as error:
            if track.name in self._changing:
                # It may be there in another forward; this one has none of it.
                return replace(track, size=1, pieces=track.pieces, dropped=not isinstance(take.pick, Slice))
            raise PlanError("invalid", str(error)) from error

    def _pools_across(self, track: Track, bins: int) -> bool:
        if track.name in self._changing:
            return track.split  # whether bins end where parts do is another answer in each forward
        return track.pools_across(bins)

    def _distribution(self, operation: Stats | Hist) -> None:
        over = operation.over if isinstance(operation, Stats) else ""
        gone = [self._track(over)] if over else list(self._tracks)
        names = {track.name for track in gone}
        self._place(operation, merges=any(track.split for track in gone))
        if isinstance(operation, Stats):
            self._send(
                reducers.statistics_count(operation), [track for track in self._tracks if track.name not in names]
            )
        self._hold()
        kept = [track for track in self._tracks if track.name not in names]
        if isinstance(operation, Stats):
            self._end(operation, Kind.TENSOR, [*kept, Track.of(Axis("statistic", len(operation.names)))])
            self._statistics = operation.names
        else:
            self._end(operation, Kind.HIST, [*kept, Track.of(Axis("bin", operation.bins))])

    def _apart(self) -> None:
        if self._kind is not Kind.TENSOR or self._beside or self._replicas:
            raise PlanError("invalid", f"replicas can't follow {self._ended}", "stats(mean,std,absmax) can come before")
        self._hold()
        self._replicas = self._all_replicas
        apart = Track.of(Axis("replica", self._replicas))
        self._end(Replicas(), Kind.TENSOR, [apart, *self._tracks])

    def _top(self, operation: TopK | LogitLens) -> None:
        last = self._tracks[-1] if self._tracks else None
        if last is None or last.dropped:
            raise PlanError("invalid", f"{operation} goes over the last axis, of which nothing is left")
        self._place(operation, merges=last.split)
        self._hold()
        self._end(operation, Kind.TOPK, [*self._tracks[:-1], Track.of(Axis("candidate", operation.k))])

    def _end(self, operation: Operation, kind: Kind, tracks: Sequence[Track]) -> None:
        self._tracks, self._kind, self._ended = tuple(tracks), kind, str(operation)

    def _lens_of(self, operation: LogitLens) -> None:
        if self._site not in RESIDUAL_SITES or not self._logits:
            raise PlanError("invalid", f"{self._site} has no logit lens", f"one of {', '.join(RESIDUAL_SITES)} has")
        before, self._rank = self._rank, []
        if any(not isinstance(each, Take) or each.axis == "chan" for each in before) or self._held is not None:
            raise PlanError("invalid", "the lens needs whole rows", "only batch(…), token(…) and last(…) come before")
        self._tracks = self._parts = self._tracked(self._logits)
        self._lens = True
        for each in before:
            self._add(each)
        self._top(operation)

    def _beside_of(self, operation: Pca | Compare) -> None:
        """At the gateway, on whole values."""
        self._hold()
        kept = [track for track in self._tracks if not track.dropped]
        if not kept:
            raise PlanError("invalid", f"{operation} goes over the last axis, and there is none")
        self._before = self._before or tuple(track.name for track in kept)
        self._beside.append(operation)
        if isinstance(operation, Pca):
            rows = Track.of(Axis("row", MAX_ROWS))
            self._changing.add("row")
            self._end(operation, Kind.TENSOR, [rows, Track.of(Axis("component", operation.components))])
        else:
            self._end(operation, Kind.TENSOR, kept if operation.how == "diff" else kept[:-1])


def _representatives(parts: Track, held: Track) -> tuple[int, ...]:
    first: dict[bytes, int] = {}
    return tuple(
        first.setdefault(cells.tobytes(), index) if len(left) else -1
        for index, (cells, left) in enumerate(zip(parts.pieces, held.pieces, strict=True))
    )


def _launches(operation: Operation) -> float:
    match operation:
        case Take() | Last():
            return 0.0
        case Stats() as stats:
            return 20.0 if reducers.needs_sketch(stats) else 8.0
        case Pool(how=Reducer.STD) | Reduce(how=Reducer.STD):
            return 3.0
        case LogitLens():
            return 10.0
        case _:
            return 2.0
