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
- Where a fault may make most items slow at once their sums do not tell how usual such sums are. There the error of each
  baseline is counted in, and what an item that lies high does by itself (wandering.py).
- The items together tell how usual it is that one of them differs: in its sums over steps (widening.py), in its offset
  from the others (offsets.py), and in single steps: for how much one counts at most, and how large sums of them are by
  chance, follows from the tails that the job shows (tails.py).
- An alarm ends when a CUSUM the other way says that the effect is over (recovery), not when evidence fades: evidence
  is of the past.

All items are rows of arrays; a step costs a few numpy calls, whatever the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatronapp.detector.statistics import effects, offsets, scale, sequential, tails
from megatronapp.detector.statistics.noise import Noise
from megatronapp.detector.statistics.wandering import Wandering
from megatronapp.detector.statistics.widening import MANY, Widening
from megatronapp.detector.statistics.window import Window
from megatronapp.detector.steps import Floats, Ints

WARM_UP = 20
"""Clean steps after which an item's own history counts: its scale is then known to a quarter (scale.upper_bound)."""
CLEAN = 64
"""Clean steps that make the history: to a seventh."""
REFRESH = 8
"""Steps after which what is learnt from it is brought up to date: an eighth of it has changed."""
RECENT = 64
"""Steps kept for the evidence's series."""
LASTING = 16
"""Newest values whose median is what an item's offset is: to a third of a step's deviation."""
NEWEST = 5
"""Steps that show whether an effect goes on."""
SUSPICIOUS = 0.4
"""Share of the alarm threshold above which a step no longer enters the history: a single one of any size reaches
0.43 of the threshold of a job of 1,024 ranks where three make an alarm (sequential.clip)."""


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
        self._suspicion: Floats = np.zeros(0)
        self.baseline: Floats = np.zeros(0)
        """What the item's history says, 0 while it is too short."""
        self.sigma: Floats = np.zeros(0)
        self.ready: npt.NDArray[np.bool_] = np.zeros(0, bool)
        self.allowed: Floats = np.zeros(0)
        """Offset from its peers that is none."""
        self._normal: Floats = np.zeros(0)
        """The largest value at which an alarm is over: the baseline, or the allowance."""
        self._extraordinary: npt.NDArray[np.bool_] = np.zeros(0, bool)
        """New ones whose offset is none that healthy items have."""
        self._new: npt.NDArray[np.bool_] = np.zeros(0, bool)
        """Items that were never alarmed, or forgotten."""
        self._share: Floats = np.zeros(0)
        """Of the steps that show an alarm's effect."""
        self._recovery: Floats = np.zeros(0)
        self._values = Window(RECENT, np.nan)
        self._change = Window(int(sequential.WINDOWS[-1]), 0.0)
        self._offset = Window(int(sequential.WINDOWS[-1]), 0.0)
        self._clean = Window(CLEAN, np.nan)
        self._cleaned: Ints = np.zeros(0, np.int64)
        self._kinds: Ints = np.zeros(0, np.int64)
        windows = sequential.WINDOWS
        self._many = False
        """Whether so many items have been known at once that one step tells of them."""
        widening = Widening(windows, log_threshold, certain=noise.wanders)
        self._widening = Widening.none(windows) if noise.together else widening
        self._tails: Floats = np.ones(len(windows))
        """By how much sums over each window are larger than normal ones, for the tails of single steps."""
        self._steps: list[int] = []
        self._resumed: dict[int, float] = {}
        self._until_refresh = WARM_UP
        self._clip = noise.clip
        self._wandering = Wandering()

    def __len__(self) -> int:
        return len(self.alarmed)

    def observe(self, step: int, items: Ints, values: Floats, kinds: Ints | None = None) -> None:
        """One step's values; nan or an absent item: not measured. Steps must rise.

        kinds: a number for each item; those of one kind vary alike. None: all items do.
        """
        if len(items):
            self._grow(int(items.max()) + 1)
        if kinds is not None:
            self._kinds[items] = kinds
        x = np.full(len(self), np.nan)
        x[items] = values
        self._steps = [*self._steps[-(RECENT - 1) :], step]
        self._values.push(x)
        self._resume(step, x)
        if self.noise.changes:
            change = np.where(self.ready, (x - self.baseline) / self.sigma, 0.0)
            self._change.push(self._winsorised(change))
        if np.isfinite(self.noise.allowance):
            self._compare(x)
        self._judge(x)
        self._learn(x)

    def resume(self, item: int, effect: float) -> None:
        """The item is known to lie so much above 0, from before this monitor began: it is alarmed as soon as it is
        measured, and until it has recovered."""
        self._resumed[item] = effect

    def suppress(self) -> None:
        """Another signal explains what the items show: drop all alarms, and do not hold these steps against them."""
        for item in np.flatnonzero(self.alarmed):
            self._clear(int(item))
        self._change.rows[:], self._offset.rows[:] = 0.0, 0.0

    def acquit(self, item: int) -> None:
        """Something else explains why the item is alarmed: only steps from now on can alarm it."""
        self._clear(item)

    def forget(self, items: Ints) -> None:
        """What was usual of them is so no longer, through no doing of theirs: they begin a new history."""
        for item in items:
            self._clear(int(item))
        self.ready[items], self._cleaned[items], self._clean.rows[items] = False, 0, np.nan
        self.baseline[items] = 0.0

    def fading(self, item: int) -> bool:
        """Whether the newest steps hardly show what the item is alarmed for: as sure as may be, or most of them where
        all should. An offset that is hardly larger than what is allowed takes long to be over for certain."""
        if self._recovery[item] <= -sequential.FADING:
            return True
        if self._share[item] < 1:
            return False
        newest = self.excess(item)[: min(NEWEST, self.steps_since(item))]
        known = newest[np.isfinite(newest)]
        return bool(len(known) and np.median(known) < effects.SHOWN * self.effect[item])

    def excess(self, items: int | Ints) -> Floats:
        """Newest first: what each item's values lay above its baseline, up to RECENT steps; nan: not measured."""
        excess: Floats = self._values.rows[items] - self.baseline[items, ..., None]
        return excess

    def excess_beside(self, item: int, others: Ints) -> Floats:
        """The same of others, by the item's measure: one that has no history is compared with 0, and so are they."""
        baseline = self.baseline[others, None] if self.ready[item] else 0.0
        excess: Floats = self._values.rows[others] - baseline
        return excess

    def typical(self, item: int, steps: int) -> float:
        """What the item's newest steps lie above its baseline."""
        return effects.typical(self.excess(item)[:steps], self.noise.smallest)

    def steps_since(self, item: int) -> int:
        """Steps since the onset, up to RECENT."""
        return max(1, sum(1 for step in self._steps if step >= self.since[item]))

    def series(self, item: int) -> Series:
        """The item's recent values, oldest first, for people."""
        values = self._values.rows[item, : len(self._steps)][::-1]
        known = np.isfinite(values)
        steps = tuple(s for s, k in zip(self._steps, known, strict=True) if k)
        return Series(steps, tuple(float(v) for v in values[known]), float(self.baseline[item]))

    def uncertainty(self, item: int) -> float:
        """Standard deviation of the effect's estimate, from the steps since the onset."""
        return float(1.25 * self.sigma[item] / np.sqrt(self.steps_since(item)))

    def slow_steps(self, item: int) -> int:
        """Steps since the onset in which the item was measured, and slow; up to RECENT."""
        effect = max(float(self.effect[item]), self.noise.smallest)
        return effects.shown(self.excess(item)[: self.steps_since(item)], effect)

    def _compare(self, x: Floats) -> None:
        """With the items' peers: what they lie above what healthy ones may for good."""
        if self.noise.peers:
            usual = np.flatnonzero(np.isfinite(x) & ~self.alarmed)
            newest = self._values.rows[usual, :LASTING]
            uncertainty = offsets.uncertainty(newest)
            allowed = offsets.allowance(scale.location(newest), self.noise.allowance, uncertainty)
            self.allowed[:] = np.median(allowed) if len(usual) else self.noise.allowance
            self.allowed[usual] = allowed
            self._compare_new(usual)
            if not self.ready.all():
                self.sigma[~self.ready] = max(self.noise.floor, offsets.early_scale(newest, self.noise.prior))
            if not self.ready.any() and len(usual) >= MANY:
                self._learn_young_tails(usual[self._unsuspected[usual]])
        self._offset.push(self._bounded((x - self.allowed) / self.sigma))

    def _compare_new(self, usual: npt.NDArray[np.intp]) -> None:
        """What is constant of an item is drawn once, and needs no test for each step: in its first steps, of all of
        them."""
        steps = len(self._steps)
        self._extraordinary[:] = False
        if (share := offsets.LOOKS.get(steps)) is not None:
            values = self._values.rows[usual, :steps]
            known = np.count_nonzero(np.isfinite(values), axis=1) >= max(offsets.NEW_STEPS, steps // 2)
            items = usual[known]
            self._extraordinary[items] = offsets.extraordinary(values[known], share) & self._new[items]

    def _winsorised(self, change: Floats) -> Floats:
        if self.noise.together:
            return self._wandering.bounded(change, self._change.rows[:, 0], self._clip, self._samples)
        return self._bounded(change, self._widening.least)

    def _bounded(self, z: Floats, widening: float = 1.0) -> Floats:
        clip = self._clip * widening
        bounded: Floats = np.clip(z, -clip, clip)
        bounded[np.isnan(bounded)] = 0.0
        return bounded

    def _judge(self, x: Floats) -> None:
        none = np.zeros(len(self))
        change, suspicion = self._evidence_of_change(np.isfinite(x)) if self.noise.changes else (none, none)
        offset = self._evidence_of_offset() if np.isfinite(self.noise.allowance) else none
        self._suspicion = np.maximum(suspicion, offset)
        by_change = (change >= offset) & ~(self._extraordinary & (change < self.log_threshold))
        self.log_evidence = np.where(self.alarmed, np.maximum(self.log_evidence, change), np.maximum(change, offset))
        self.log_evidence[self._extraordinary] = np.maximum(self.log_evidence[self._extraordinary], self.log_threshold)
        alarmed_before = self.alarmed.copy()
        rising = ~self.alarmed & np.isfinite(x) & (self.log_evidence >= self.log_threshold)
        for item in np.flatnonzero(rising):
            self._raise(int(item), by_change=bool(by_change[item]))
        self._follow(x, alarmed_before & np.isfinite(x))

    def _evidence_of_offset(self) -> Floats:
        return sequential.evidence(sequential.sums(self._offset.rows) / self._tails)

    def _evidence_of_change(self, measured: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """And what it would be if how usual sums are were known for certain. Many items tell that in the same step, few
        by earlier ones."""
        sums, known = self._sums_of_change(), measured & self.ready & ~self.alarmed
        many = bool(np.count_nonzero(known) >= MANY)
        self._many = self._many or many
        if many and not self.noise.together:
            of_known = sums if known.all() else sums.T[:, known].T
            self._widening.observe(of_known / np.sqrt(sequential.WINDOWS))
        usual = np.maximum(self._widening.factors, self._tails)
        if self.noise.together:
            usual = usual * self._wandering.factors(self._samples)
        evidence = sequential.evidence(sums / usual)
        return evidence, evidence if self._many else sequential.evidence(sums / self._widening.spread)

    def _sums_of_change(self) -> Floats:
        """Of few items what is winsorised changes with how well they are known."""
        rows = self._change.rows
        if self.noise.together:
            return self._wandering.sums(rows)
        return sequential.sums(rows if self._many else self._bounded(rows, self._widening.least))

    @property
    def _samples(self) -> Ints:
        """In each item's history."""
        return np.minimum(self._cleaned, CLEAN)

    def _resume(self, step: int, x: Floats) -> None:
        for item in [item for item in self._resumed if item < len(x) and np.isfinite(x[item])]:
            self.alarmed[item], self.effect[item], self.since[item] = True, self._resumed.pop(item), step
            self._share[item], self._normal[item], self._recovery[item] = 1.0, 0.0, 0.0
            self.log_evidence[item] = self.log_threshold

    def _raise(self, item: int, *, by_change: bool) -> None:
        """Alarm if the effect is worth it. What an item has shown that was always slow is no baseline."""
        steps = min(sequential.onset((self._change if by_change else self._offset).rows[item]), len(self._steps))
        if self._extraordinary[item] and not by_change:
            steps = len(self._steps)  # all of them have told it
        baseline = self.baseline[item] if by_change else 0.0
        excess = self._values.rows[item, :steps] - baseline
        effect = effects.typical(excess, self.noise.smallest)
        if not effect >= self.noise.smallest:
            return
        if not by_change:
            self.ready[item], self._cleaned[item], self._clean.rows[item] = False, 0, np.nan
        self.baseline[item], self.effect[item], self.alarmed[item] = baseline, effect, True
        self._share[item] = effects.share(excess, effect)
        self._normal[item] = baseline if by_change else self.allowed[item]
        self.since[item], self._recovery[item] = self._steps[-steps], 0.0

    def _follow(self, x: Floats, alarmed: npt.NDArray[np.bool_]) -> None:
        """Alarmed items: bring the effect up to date, and clear those that have recovered."""
        items = np.flatnonzero(alarmed)
        if not len(items):
            return
        sigma = self.sigma[items]
        residual = (x - self._normal)[items] / sigma
        share = self._share[items]
        size = ((self.baseline - self._normal)[items] + self.effect[items] / share) / sigma
        self._recovery[items] = sequential.recovery(self._recovery[items], residual, size, share)
        for item in items:
            if self._recovery[item] <= -sequential.RECOVERED:
                self._clear(int(item))
            elif self._recovery[item] == 0.0:
                excess = self.excess(int(item))[: self.steps_since(int(item))]
                self.effect[item] = effects.typical(excess, self.noise.smallest)
                self._share[item] = effects.share(excess, float(self.effect[item]))

    def _clear(self, item: int) -> None:
        self.alarmed[item], self.log_evidence[item], self._suspicion[item] = False, 0.0, 0.0
        self._new[item] = False
        self._change.rows[item], self._offset.rows[item] = 0.0, 0.0

    @property
    def _unsuspected(self) -> npt.NDArray[np.bool_]:
        return ~self.alarmed & (np.maximum(self.log_evidence, self._suspicion) < SUSPICIOUS * self.log_threshold)

    def _learn(self, x: Floats) -> None:
        unsuspected = np.isfinite(x) & self._unsuspected
        if self.noise.changes and not self.noise.together and not self._many:
            known = np.isfinite(x) & self.ready & ~self.alarmed
            sums = self._sums_of_change() / np.sqrt(sequential.WINDOWS)
            self._widening.learn(sums[known & unsuspected], suspected=bool(np.any(known & ~unsuspected)))
        items = np.flatnonzero(unsuspected)
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
        samples = self._samples[ready]
        if self.noise.together:
            self._wandering = Wandering.of(residuals[:, ::-1], samples, factor)
        upper = scale.upper_bound(scale.pooled_by_kind(own, samples, self._kinds[ready]), samples)
        sigma = np.maximum(self.noise.floor, factor * upper)
        thawed = ~self.alarmed[ready]
        index = np.flatnonzero(ready)[thawed]
        self.baseline[index], self.sigma[index] = center[thawed], sigma[thawed]
        self.sigma[~ready] = np.median(sigma)
        self.ready = ready
        known = self.ready & self._unsuspected & np.isfinite(self._values.rows[:, 0])
        residuals = (self._values.rows[known] - self.baseline[known, None]) / self.sigma[known, None]
        self._learn_tails(residuals)

    def _learn_young_tails(self, items: npt.NDArray[np.intp]) -> None:
        """While there is no history: from what each item's few steps differ from their median."""
        newest = self._values.rows[items, :LASTING]
        self._learn_tails((newest - scale.location(newest)[:, None]) / self.sigma[items, None])

    def _learn_tails(self, residuals: Floats) -> None:
        """residuals (items × steps): in standard deviations, nan: not measured."""
        self._clip = min(self.noise.clip, tails.clip(residuals, self.log_threshold))
        if len(residuals) >= MANY and not self.noise.together:
            self._tails = tails.factors(residuals, self._clip, self.log_threshold)

    def _grow(self, size: int) -> None:
        more = size - len(self)
        if more <= 0:
            return
        self.alarmed = np.concatenate([self.alarmed, np.zeros(more, bool)])
        self.ready = np.concatenate([self.ready, np.zeros(more, bool)])
        self._extraordinary = np.concatenate([self._extraordinary, np.zeros(more, bool)])
        self._new = np.concatenate([self._new, np.ones(more, bool)])
        self.since = np.concatenate([self.since, np.zeros(more, np.int64)])
        self._cleaned = np.concatenate([self._cleaned, np.zeros(more, np.int64)])
        self._kinds = np.concatenate([self._kinds, np.zeros(more, np.int64)])
        for name in ("effect", "log_evidence", "_suspicion", "baseline", "_recovery", "_normal", "_share"):
            setattr(self, name, np.concatenate([getattr(self, name), np.zeros(more)]))
        self.sigma = np.concatenate([self.sigma, np.full(more, self.noise.prior)])
        self.allowed = np.concatenate([self.allowed, np.full(more, self.noise.allowance)])
        for window in (self._values, self._change, self._offset, self._clean):
            window.grow(more)
