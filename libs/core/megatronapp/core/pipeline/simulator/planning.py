"""Which schedule a pipeline should run: the stock ones against hints under caps, on the same draws."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline import caps, orders
from megatronapp.core.pipeline.arrays import PassTimes
from megatronapp.core.pipeline.lanes import WHOLE
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.simulator.run import Engine, Schedule, dynamic, strict
from megatronapp.core.pipeline.simulator.steps import Setting, Steps, simulate_steps, with_backward

WORTH = 0.005
"""A schedule must be faster than stock by more than this share of the step to be chosen."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule on a layout. cap: what a hint may hold; None: the order is run as it is."""

    layout: Layout
    order: str
    cap: int | None

    @property
    def name(self) -> str:
        kind = f"{self.order} as it is" if self.cap is None else f"hint {self.order}, cap {self.cap}"
        return f"{kind}, {'B and W split' if self.layout.split else 'not split'}"

    @property
    def stock(self) -> bool:
        return self.cap is None and not self.layout.split

    def schedule(self, pending: int) -> Schedule:
        stages = orders.all_stages(self.order, self.layout)
        if self.cap is None:
            made = strict(self.name, self.layout, stages, by_need=not self.stock)
            return replace(made, pending=pending)
        return dynamic(self.name, self.layout, stages, [self.cap] * self.layout.stages, pending=pending)


@dataclass(frozen=True, slots=True)
class Scored:
    candidate: Candidate
    steps: Steps

    @property
    def step_ns(self) -> float:
        return float(self.steps.step_ns.mean())

    @property
    def peak(self) -> float:
        return max(self.steps.peaks)


@dataclass(frozen=True, slots=True)
class Plan:
    """All that was tried, fastest first; `chosen` is among them, and so is `stock`, the fastest of megatron-core's."""

    scored: list[Scored]
    chosen: Scored
    stock: Scored

    @property
    def gain(self) -> float:
        """Stock's step time ÷ that of the chosen."""
        return self.stock.step_ns / self.chosen.step_ns


def stock_order(layout: Layout) -> str:
    return "1f1b" if layout.chunks == 1 else "interleaved"


def candidates(layout: Layout, times: PassTimes, message_ns: float, limit: int) -> Iterator[Candidate]:
    """What is tried for one number of chunks; caps between what full pace needs and the limit."""
    stock = stock_order(layout)
    yield Candidate(replace(layout, split=False), stock, None)
    peak = caps.stock_cap(layout)
    for split in (True, False):
        of = replace(layout, split=split)
        least = caps.least_cap(of, times, message_ns)
        tried = {cap for cap in (least, peak, (least + limit) // 2, limit) if layout.chunks <= cap <= limit}
        placed = ("interleaved-zb", *(("zb-h1", "zb-h2") if layout.chunks == 1 else ())) if split else ()
        hints = [stock, *orders.PREFERENCES, *placed]
        for hint in hints:
            yield from (Candidate(of, hint, cap) for cap in sorted(tried))
        yield from (Candidate(of, name, None) for name in placed)


def make_plan(
    layouts: Sequence[Layout], times: Sequence[PassTimes], setting: Setting, *,
    cap_limit: int | None = None, pending: int = WHOLE, split_overhead: float = 0.0, engine: Engine | None = None,
) -> Plan:  # fmt: skip
    """Simulate all candidates of all layouts (of different chunks) and choose.

    The split makes backwards longer by `split_overhead` of their time. What holds more than the limit, by default
    stock's peak, is left out, but for stock itself. Raises UsageError when nothing fits.
    """
    fitting, stocks = [], []
    message_ns = setting.links.latency_ns + setting.links.transfer_ns
    for layout, own in zip(layouts, times, strict=True):
        limit = caps.stock_cap(layout) if cap_limit is None else min(cap_limit, layout.chunks * layout.microbatches)
        for candidate in candidates(layout, own, message_ns, limit):
            of_candidate = with_backward(setting, 1 + split_overhead * candidate.layout.split)
            steps = simulate_steps(candidate.layout, candidate.schedule(pending), own, of_candidate, engine)
            scored = Scored(candidate, steps)
            fitting += [scored] if scored.peak <= limit else []
            stocks += [scored] if candidate.stock else []
    if not fitting:
        least = min(layout.chunks for layout in layouts)
        raise UsageError(f"nothing fits into {cap_limit} activations; a pipeline of this layout holds at least {least}")
    stock, best = min(stocks, key=_order), min(fitting, key=_order)
    worth = best.step_ns < stock.step_ns * (1 - WORTH) or stock not in fitting
    tried = sorted([*fitting, *(each for each in stocks if each not in fitting)], key=_order)
    return Plan(tried, best if worth else stock, stock)


def _order(scored: Scored) -> tuple[float, float]:
    return scored.step_ns, scored.peak
