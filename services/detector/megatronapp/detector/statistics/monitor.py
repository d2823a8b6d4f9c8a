"""Monitor: watches one signal of many items (ranks, links) and says which have become slower, since when.

Each item goes through a cycle:

    learning ──WARM_UP clean steps──▶ ready ──evidence ≥ threshold──▶ alarmed ──recovery──▶ ready
        └──────────────── offset from its peers beyond the allowance ──────▲

- A value becomes a *residual* in two ways: against the item's own history (`change`, needs a baseline), and against
  0, what its healthy peers show, less an allowance (`offset`, from the first step on). Both run through the same
  sequential test (sequential.py), and the larger evidence counts.
- History is robust (median and MAD over CLEAN steps), pooled over items, widened by the serial correlation, and taken
  at an upper bound: a scale that was learnt from few steps must not make alarms cheap. Steps that look suspicious are
  not learnt, and an alarmed item learns nothing, so that a fault never becomes the new normal.
- Where there are many items they also tell how usual it is that one of them differs: in its sums over steps
  (widening.py), and in its offset from the others (`_allowance`).
- An alarm ends when a CUSUM the other way says that the effect is over (recovery), not when evidence fades: evidence
  is of the past.

All items are rows of arrays; a step costs a few numpy calls, whatever the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatronapp.detector.statistics import scale, sequential
from megatronapp.detector.statistics.widening import MANY, Widening, spread_of
from megatronapp.detector.statistics.window import Window
from megatronapp.detector.steps import Floats, Ints

WARM_UP = 20
"""Clean steps after which an item's own history counts."""
CLEAN = 64
"""Clean steps that make the history."""
REFRESH = 8
RECENT = 64
"""Steps kept for the evidence's series."""
SHOWN = 0.5
"""A step is slow when it lies nearer to the effect than to none."""
LASTING = 16
"""Newest values whose median is what an item's offset is."""
SPREADS = 100
"""Jobs of healthy items alone, in one of which the largest offset would reach the allowance."""
SUSPICIOUS = 0.4
"""Share of the alarm threshold above which a step no longer enters the history."""


@dataclass(frozen=True, slots=True)
class Noise:
    """What is known of a signal before the job has shown its own noise."""

    floor: float
    """Standard deviation of a step, never taken to be smaller."""
    prior: float
    """The same while the history is too short to tell."""
    clip: float
    """Residuals count for at most so many standard deviations: how heavy the tails are."""
    allowance: float
    """A constant offset that healthy items may have; inf: only a change is judged."""
    smallest: float
    """Effects below are never worth a finding, however certain."""
    changes: bool = True
    """False: only the offset is judged, never a change against the item's own history."""
    peers: bool = False
    """Values are offsets from peers that do the same work: in a large job their spread says what is usual."""
    together: bool = False
    """A fault may make most items slow at once, as a switch does its links: that most are slow does not excuse them."""
    bursts: bool = False
    """Nothing in most steps and much in some: the upper tail is the scale."""


@dataclass(frozen=True, slots=True)
class Series:
    steps: tuple[int, ...]
    values: tuple[float, ...]
    expected: float


class Monitor:
    """State is a few kilobytes an item. Items are numbered from 0; numbers may appear at any time.

    log_threshold: log of the number of steps between two false alarms of one item.
    """

    def __init__(self, noise: Noise, log_threshold: float) -> None:
        self.noise = noise
        self.log_threshold = log_threshold
        self.alarmed: npt.NDArray[np.bool_] = np.zeros(0, bool)
        self.effect: Floats = np.zeros(0)
        """Mean excess since the onset, while alarmed."""
        self.since: Ints = np.zeros(0, np.int64)
        self.log_evidence: Floats = np.zeros(0)
        self.baseline: Floats = np.zeros(0)
        """What the item's history says, 0 while it is too short."""
        self.sigma: Floats = np.zeros(0)
        self.ready: npt.NDArray[np.bool_] = np.zeros(0, bool)
        self._recovery: Floats = np.zeros(0)
        self._values = Window(RECENT, np.nan)
        self._change = Window(int(sequential.WINDOWS[-1]), 0.0)
        self._offset = Window(int(sequential.WINDOWS[-1]), 0.0)
        self._clean = Window(CLEAN, np.nan)
        self._cleaned: Ints = np.zeros(0, np.int64)
        self._widening = Widening(len(sequential.WINDOWS))
        self._steps: list[int] = []
        self._until_refresh = WARM_UP

    def __len__(self) -> int:
        return len(self.alarmed)

    def observe(self, step: int, items: Ints, values: Floats) -> None:
        """One step's values; nan or an absent item: not measured. Steps must rise."""
        if len(items):
            self._grow(int(items.max()) + 1)
        x = np.full(len(self), np.nan)
        x[items] = values
        self._steps = [*self._steps[-(RECENT - 1) :], step]
        self._values.push(x)
        if self.noise.changes:
            change = np.where(self.ready, (x - self.baseline) / self.sigma, 0.0)
            self._change.push(self._bounded(change))
        if np.isfinite(self.noise.allowance):
            self._offset.push(self._bounded((x - self._allowance(x)) / self.sigma))
        self._judge(x)
        self._learn(x)

    def suppress(self) -> None:
        """Another signal explains what the items show: drop all alarms, and do not hold these steps against them."""
        for item in np.flatnonzero(self.alarmed):
            self._clear(int(item))
        self._change.rows[:], self._offset.rows[:] = 0.0, 0.0

    def fading(self, item: int) -> bool:
        """Whether the newest steps hardly show what the item is alarmed for."""
        return bool(self._recovery[item] <= -sequential.FADING)

    def excess(self, item: int) -> Floats:
        """Newest first: what the item's values lay above its baseline, up to RECENT steps; nan: not measured."""
        excess: Floats = self._values.rows[item] - self.baseline[item]
        return excess

    def series(self, item: int) -> Series:
        """The item's recent values, oldest first, for people."""
        values = self._values.rows[item, : len(self._steps)][::-1]
        known = np.isfinite(values)
        steps = tuple(s for s, k in zip(self._steps, known, strict=True) if k)
        return Series(steps, tuple(float(v) for v in values[known]), float(self.baseline[item]))

    def uncertainty(self, item: int) -> float:
        """Standard deviation of the effect's estimate, from the steps since the onset."""
        steps = max(1, sum(1 for s in self._steps if s >= self.since[item]))
        return float(1.25 * self.sigma[item] / np.sqrt(steps))

    def slow_steps(self, item: int) -> int:
        """Steps since the onset in which the item was measured, and slow; up to RECENT."""
        steps = sum(1 for s in self._steps if s >= self.since[item])
        least = SHOWN * max(float(self.effect[item]), self.noise.smallest)
        return int(np.count_nonzero(self.excess(item)[:steps] >= least))

    def _allowance(self, x: Floats) -> float:
        """A constant offset that healthy items may have: of many items, what their own spread makes likely in one of
        SPREADS such jobs; of few, what is known of the signal."""
        if not self.noise.peers:
            return self.noise.allowance
        lasting = scale.location(self._values.rows[np.isfinite(x) & ~self.alarmed, :LASTING])
        if len(lasting) < MANY:
            return self.noise.allowance
        spread = float(spread_of(lasting[:, None])[0])
        return spread * float(np.sqrt(2 * np.log(SPREADS * len(lasting))))

    def _bounded(self, z: Floats) -> Floats:
        clip = self.noise.clip
        return np.nan_to_num(np.clip(z, -clip, clip), nan=0.0, posinf=0.0, neginf=0.0)

    def _judge(self, x: Floats) -> None:
        none = np.zeros(len(self))
        change = self._evidence_of_change(np.isfinite(x)) if self.noise.changes else none
        offset = sequential.evidence(sequential.sums(self._offset.rows)) if np.isfinite(self.noise.allowance) else none
        by_change = change >= offset
        self.log_evidence = np.where(self.alarmed, np.maximum(self.log_evidence, change), np.maximum(change, offset))
        alarmed_before = self.alarmed.copy()
        rising = ~self.alarmed & np.isfinite(x) & (self.log_evidence >= self.log_threshold)
        for item in np.flatnonzero(rising):
            self._raise(int(item), by_change=bool(by_change[item]))
        self._follow(x, alarmed_before & np.isfinite(x))

    def _evidence_of_change(self, measured: npt.NDArray[np.bool_]) -> Floats:
        sums = sequential.sums(self._change.rows)
        if not self.noise.together:
            self._widening.observe((sums / np.sqrt(sequential.WINDOWS))[measured & self.ready & ~self.alarmed])
        return sequential.evidence(sums / self._widening.factors)

    def _raise(self, item: int, *, by_change: bool) -> None:
        """Alarm if the effect is worth it. What an item has shown that was always slow is no baseline."""
        steps = min(sequential.onset((self._change if by_change else self._offset).rows[item]), len(self._steps))
        baseline = self.baseline[item] if by_change else 0.0
        effect = float(np.nanmedian(self._values.rows[item, :steps] - baseline))
        if not effect >= self.noise.smallest:
            return
        if not by_change:
            self.ready[item], self._cleaned[item], self._clean.rows[item] = False, 0, np.nan
        self.baseline[item], self.effect[item], self.alarmed[item] = baseline, effect, True
        self.since[item], self._recovery[item] = self._steps[-steps], 0.0

    def _follow(self, x: Floats, watched: npt.NDArray[np.bool_]) -> None:
        """Alarmed items: bring the effect up to date, and clear those that have recovered."""
        items = np.flatnonzero(watched)
        if not len(items):
            return
        sigma = self.sigma[items]
        residual = (x - self.baseline)[items] / sigma
        self._recovery[items] = sequential.recovery(self._recovery[items], residual, self.effect[items] / sigma)
        for item in items:
            if self._recovery[item] <= -sequential.RECOVERED:
                self._clear(int(item))
            elif self._recovery[item] == 0.0:
                since = sum(1 for s in self._steps if s >= self.since[item])
                self.effect[item] = float(np.nanmedian(self.excess(int(item))[:since]))

    def _clear(self, item: int) -> None:
        self.alarmed[item], self.log_evidence[item] = False, 0.0
        self._change.rows[item], self._offset.rows[item] = 0.0, 0.0

    def _learn(self, x: Floats) -> None:
        clean = np.isfinite(x) & ~self.alarmed & (self.log_evidence < SUSPICIOUS * self.log_threshold)
        items = np.flatnonzero(clean)
        self._clean.push_some(items, x[items])
        self._cleaned[items] += 1
        self._until_refresh -= 1
        if self.noise.changes and (self._until_refresh <= 0 or np.any(self._cleaned[items] == WARM_UP)):
            self._refresh()

    def _refresh(self) -> None:
        self._until_refresh = REFRESH
        ready = self._cleaned >= WARM_UP
        if not ready.any():
            return
        clean = self._clean.rows[ready]
        center = scale.location(clean)
        residuals = clean - center[:, None]
        own = scale.scale(clean, center)
        if self.noise.bursts:
            own = np.fmax(own, scale.tail(clean, center))
        factor = scale.correlation_factor(residuals[:, ::-1])
        samples = np.minimum(self._cleaned[ready], CLEAN)
        upper = scale.upper_bound(scale.pooled(own, samples), samples)
        sigma = np.maximum(self.noise.floor, factor * upper)
        thawed = ~self.alarmed[ready]
        index = np.flatnonzero(ready)[thawed]
        self.baseline[index], self.sigma[index] = center[thawed], sigma[thawed]
        self.sigma[~ready] = np.median(sigma)
        self.ready = ready

    def _grow(self, size: int) -> None:
        more = size - len(self)
        if more <= 0:
            return
        self.alarmed = np.concatenate([self.alarmed, np.zeros(more, bool)])
        self.ready = np.concatenate([self.ready, np.zeros(more, bool)])
        self.since = np.concatenate([self.since, np.zeros(more, np.int64)])
        self._cleaned = np.concatenate([self._cleaned, np.zeros(more, np.int64)])
        for name in ("effect", "log_evidence", "baseline", "_recovery"):
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(more)]))
        self.sigma = np.concatenate([self.sigma, np.full(more, self.noise.prior)])
        for window in (self._values, self._change, self._offset, self._clean):
            window.grow(more)
