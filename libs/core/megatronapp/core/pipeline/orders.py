"""Schedules as orders of one stage's operations: to be run as they are, or as hints (policy.py).

Sources: 1F1B and its interleaved form, Narayanan et al. 2021 (arXiv 2104.04473), as megatron-core 0.16 runs them;
ZB-H1, ZB-H2 and ZBV, Qi et al. 2023 (arXiv 2401.10241) and 2024 (2405.15362); DualPipeV, DeepSeek (arXiv 2412.19437).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.placement import Layout, Placement

F, B, W = Kind
Order = list[Operation]


def microbatch_groups(stages: int, microbatches: int, group: int = 0) -> list[range]:
    """Microbatches that pass one chunk before the next chunk's turn: `group` of them (megatron-core's
    microbatch_group_size_per_vp_stage; 0: as many as stages). Fewer than stages at the end join the group before, which
    megatron-core refuses."""
    size = group or stages
    starts = [first for first in range(0, microbatches, size) if first == 0 or microbatches - first >= stages]
    return [range(first, after) for first, after in zip(starts, [*starts[1:], microbatches], strict=True)]


def passes(stages: int, chunks: int, microbatches: int, group: int = 0) -> list[tuple[int, int]]:
    """(chunk, microbatch) of the forwards in megatron-core's order: of each group chunk after chunk. Backwards take
    the same with the chunks reversed."""
    groups = microbatch_groups(stages, microbatches, group)
    return [(chunk, microbatch) for each in groups for chunk in range(chunks) for microbatch in each]


def warm_up(stages: int, chunks: int, microbatches: int, stage: int, group: int = 0) -> int:
    """Forwards before a stage's first backward, beside the one that goes with it."""
    ahead = stages - 1 - stage
    if chunks > 1:
        ahead = 2 * ahead + (chunks - 1) * len(microbatch_groups(stages, microbatches, group)[0])
    return min(ahead, chunks * microbatches)


def interleaved(layout: Layout, stage: int, group: int = 0) -> Order:
    """1F1B (chunks 1) or its interleaved form, without W: what megatron-core's schedules run."""
    table = passes(layout.stages, layout.chunks, layout.microbatches, group)
    forwards = [Operation(F, chunk, microbatch) for chunk, microbatch in table]
    backwards = [Operation(B, layout.chunks - 1 - chunk, microbatch) for chunk, microbatch in table]
    warm = warm_up(layout.stages, layout.chunks, layout.microbatches, stage, group)
    steady = [one for pair in zip(forwards[warm:], backwards, strict=False) for one in pair]
    return forwards[:warm] + steady + backwards[len(forwards) - warm :]


def depth_first(layout: Layout) -> Order:
    """Backward before forward, then the deepest chunk: what frees memory soonest. A hint alone."""
    microbatches, chunks = range(layout.microbatches), range(layout.chunks)
    backwards = [Operation(B, chunk, microbatch) for microbatch in microbatches for chunk in chunks]
    return backwards + [Operation(F, chunk, microbatch) for chunk in reversed(chunks) for microbatch in microbatches]


def breadth_first(layout: Layout) -> Order:
    """Backward before forward, then the shallowest chunk: one chunk's microbatches together. A hint alone."""
    microbatches, chunks = range(layout.microbatches), range(layout.chunks)
    backwards = [Operation(B, chunk, microbatch) for chunk in reversed(chunks) for microbatch in microbatches]
    return backwards + [Operation(F, chunk, microbatch) for chunk in chunks for microbatch in microbatches]


def zb_h1(layout: Layout, stage: int) -> Order:
    return zero_bubble(layout, stage, 1, stage)


def zb_h2(layout: Layout, stage: int) -> Order:
    return zero_bubble(layout, stage, 2, 2 * stage)


def zero_bubble(layout: Layout, stage: int, height: int, lag: int) -> Order:
    """`height` forwards ahead for each later stage, then F and B in turns, W of microbatch i after B of i + lag.

    ZB-H1 has height 1 and lag d on stage d, ZB-H2 twice both. With height 2 and the lag of `zb_2p_lag` it is ZB-2p,
    whose stages have no bubble of their own if each may begin its next step alone. Raises UsageError with more than one
    chunk, or without the split.
    """
    if layout.chunks > 1 or not layout.split:
        raise UsageError(f"zero-bubble schedules take one chunk a stage and B split from W, not {layout.chunks} chunks")
    warm = min(layout.microbatches, height * (layout.stages - 1 - stage))
    forwards = [Operation(F, 0, microbatch) for microbatch in range(layout.microbatches)]
    order = forwards[:warm]
    for microbatch in range(layout.microbatches):
        order += [*forwards[warm + microbatch : warm + microbatch + 1], Operation(B, 0, microbatch)]
    return with_wgrad(order, lag)


def zb_2p_lag(stage: int, forward: float, dgrad: float, wgrad: float, latency: float) -> int:
    """W that stage d keeps for the end, so that the last B reaches the first stage as early as the first F came from
    there: one for each wgrad time in d · (F + B + 2 · latency)."""
    return round(stage * (forward + dgrad + 2 * latency) / wgrad)


def interleaved_zb(layout: Layout, stage: int) -> Order:
    """The interleaved order with a place for W: behind the B that comes 2 · d later on stage d, as ZB-H2 has it. Raises
    UsageError without the split."""
    if not layout.split:
        raise UsageError("interleaved-zb needs B split from W")
    return with_wgrad(interleaved(layout, stage), 2 * stage)


def with_wgrad(order: Sequence[Operation], lag: int) -> Order:
    """An order without W, with each behind the B that comes `lag` later than its own, the last ones at the end."""
    pending: Order = []
    placed: Order = []
    for operation in order:
        placed.append(operation)
        if operation.kind is B:
            pending.append(operation._replace(kind=W))
            if len(pending) > lag:
                placed.append(pending.pop(0))
    return placed + pending


class _Writer:
    """Appends operations, each the next of its lane."""

    def __init__(self, layout: Layout) -> None:
        self.order: Order = []
        self.next = {(kind, chunk): 0 for kind in Kind for chunk in range(2)}
        self._microbatches = layout.microbatches
        self._waiting: list[int] = []

    def add(self, kind: Kind, chunk: int) -> None:
        microbatch = self.next[kind, chunk]
        self.next[kind, chunk] = microbatch + 1
        if microbatch < self._microbatches:
            self.order.append(Operation(kind, chunk, microbatch))

    def backward(self, chunk: int, *, later: bool = False) -> None:
        """B, and W at once or `later`."""
        self.add(B, chunk)
        if later:
            self._waiting.append(chunk)
        else:
            self.add(W, chunk)

    def waiting_wgrad(self) -> None:
        """The oldest W that waits, if any."""
        if self._waiting:
            self.add(W, self._waiting.pop(0))


def zbv(layout: Layout, stage: int) -> Order:
    """ZBV: V placement at the memory of 1F1B, without a bubble where F, B and W are equal."""
    _needs_v(layout, "ZBV")
    stages, writer = layout.stages, _Writer(layout)
    done = writer.next
    microbatches = max(2 * stages - 1, layout.microbatches)
    for _ in range(2 * (stages - stage) - 1):
        writer.add(F, 0)
    for _ in range(stage):
        writer.add(F, 1)
        writer.add(F, 0)
    for _ in range(stages - stage):
        writer.add(F, 1)
        writer.backward(1)
    while done[F, 1] < done[F, 0] or done[F, 0] < microbatches:
        if done[F, 0] < microbatches:
            writer.add(F, 0)
        writer.backward(0)
        writer.add(F, 1)
        writer.backward(1)
    for _ in range(stage):
        writer.add(B, 0)
        writer.add(B, 1)
    for _ in range(stages - stage):
        writer.backward(0)
    for chunk in (1, 0):
        while done[W, chunk] < done[B, chunk]:
            writer.add(W, chunk)
    return writer.order


def dualpipev(layout: Layout, stage: int) -> Order:
    """DualPipeV, its eight parts. A forward and a backward that it overlaps stand one behind the other.

    Raises UsageError with fewer microbatches than parts of the model."""
    _needs_v(layout, "DualPipeV")
    if layout.microbatches < layout.parts:
        raise UsageError(f"DualPipeV needs at least {layout.parts} microbatches here, not {layout.microbatches}")
    later_stages, writer = layout.stages - 1 - stage, _Writer(layout)
    for _ in range(2 * later_stages):
        writer.add(F, 0)
    for _ in range(stage + 1):
        writer.add(F, 0)
        writer.add(F, 1)
    for _ in range(later_stages):
        writer.backward(1, later=True)
        writer.waiting_wgrad()
        writer.add(F, 1)
    for _ in range(layout.microbatches - layout.parts + stage + 1):
        writer.add(F, 0)
        writer.backward(1)
        writer.add(F, 1)
        writer.backward(0)
    for _ in range(later_stages):
        writer.backward(1)
        writer.add(F, 1)
        writer.backward(0)
    _dualpipev_end(writer, stage, later_stages)
    return writer.order


def _dualpipev_end(writer: _Writer, stage: int, later_stages: int) -> None:
    """Its last three parts: backwards alone, from half way on with their W put off."""
    half = (stage + 1) // 2
    for index in range(stage + 1):
        writer.backward(1, later=index > half or (index == half and stage % 2 == 1))
        writer.backward(0, later=index >= half)
    for _ in range(later_stages):
        writer.waiting_wgrad()
        writer.backward(0, later=True)
    for _ in range(stage + 1):
        writer.waiting_wgrad()


def _needs_v(layout: Layout, name: str) -> None:
    if layout.placement is not Placement.V or not layout.split:
        raise UsageError(f"{name} needs V placement and B split from W")


STOCK = ("1f1b", "interleaved")
STATIC: Mapping[str, Callable[[Layout, int], Order]] = MappingProxyType(
    {
        "1f1b": interleaved,
        "interleaved": interleaved,
        "interleaved-zb": interleaved_zb,
        "zb-h1": zb_h1,
        "zb-h2": zb_h2,
        "zbv": zbv,
        "dualpipev": dualpipev,
    }
)
"""Orders of a stage that can be run as they are, or serve as hints."""
PREFERENCES: Mapping[str, Callable[[Layout], Order]] = MappingProxyType(
    {"depth-first": depth_first, "breadth-first": breadth_first}
)
"""Hints alone, the same for each stage."""
HINTS = (*STATIC, *PREFERENCES)


def all_stages(name: str, layout: Layout, group: int = 0) -> list[Order]:
    """An order for each stage, by a name in HINTS. Raises UsageError for what does not fit the layout."""
    if name not in HINTS:
        raise UsageError(f"no schedule {name}; there are {', '.join(HINTS)}")
    if name == "1f1b" and layout.chunks > 1:
        raise UsageError(f"1f1b takes one chunk a stage, not {layout.chunks}; interleaved takes several")
    if layout.placement is Placement.V and name not in {"zbv", "dualpipev", *PREFERENCES}:
        raise UsageError(f"{name} is a schedule of loop placement; with V placement there are zbv and dualpipev")
    if name.startswith("interleaved") and layout.chunks > 1:
        _check_groups(layout, group)
    if name in STOCK:
        return [interleaved(layout, stage, group) for stage in range(layout.stages)]
    if name in PREFERENCES:
        return [PREFERENCES[name](layout)] * layout.stages
    return [STATIC[name](layout, stage) for stage in range(layout.stages)]


def _check_groups(layout: Layout, group: int) -> None:
    """megatron-core's rule: full groups of at least as many microbatches as stages, but for a last one that is smaller
    and not smaller than that."""
    size = group or layout.stages
    rest = layout.microbatches % size
    if size < layout.stages or 0 < rest < layout.stages:
        raise UsageError(
            f"the interleaved schedule takes microbatches in groups of at least {layout.stages}, as many as stages; "
            f"{layout.microbatches} in groups of {size} leave {rest}"
        )
