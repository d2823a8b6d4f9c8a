"""Clock alignment from the ends of symmetric collectives. Pure and streaming.

Members of a symmetric collective (all-reduce, all-gather, reduce-scatter, barrier) end together, up to its own end
asymmetry; their starts carry the wait itself and are never used. For each step, least squares over all its collectives
gives every clock's deviation from its peers (robust, after Huber 1964); a Kalman filter of offset and drift per clock
smooths that over steps. Free-running clocks differ by 5-10 us/s, up to 30 us/s (Geng et al., Huygens, NSDI 2018).

Half of the class of anchors whose ends agree best never enters the fit. Their residuals, with the fit and without,
decide whether the fit is used at all, and are the published uncertainty. Times are in ns; a correction is added to a
clock's raw job time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megatronapp.core.trace.limits import MAX_TIME_NS

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

PRIOR_OFFSET_NS = 10e6
PRIOR_DRIFT = 10e-6
MAX_DRIFT = 30e-6
FLOOR_NS = 500.0
"""Resolution of a GPU's events."""
HUBER = 1.5
GATE = 4.0
STEP_AFTER = 3
"""Innovations beyond the gate, one after another on one side, that mean that the clock itself has stepped."""
MIN_HELD_OUT = 16
KEEP_RESIDUALS = 1024
LEARN_SCALES = 16
"""Fits after which it is known which class of anchors agrees best."""
SWEEPS = 40
SETTLED_NS = 10.0


@dataclass(frozen=True, slots=True)
class Anchors:
    """Ends of one step's matched collectives, a row per member."""

    group: Ints
    """Which collective, from 0; rows of one group stand together."""
    kind: Ints
    """Class of the collective; all members agree."""
    sequence: Ints
    clock: Ints
    end_ns: Ints
    """Raw job time."""


@dataclass(frozen=True, slots=True)
class Residuals:
    """How far a held-out collective's member ends from the others, in ns, over the last ones seen."""

    median_ns: float
    p90_ns: float
    raw_median_ns: float
    raw_p90_ns: float
    count: int

    def in_use(self, *, fitted: bool) -> tuple[float, float]:
        """Median and p90 of what is applied: the fit, or the raw clocks."""
        return (self.median_ns, self.p90_ns) if fitted else (self.raw_median_ns, self.raw_p90_ns)


class _Line(NamedTuple):
    """One clock's filter: the correction at a time, and how it goes on."""

    offset_ns: float
    drift: float
    time_ns: int
    drift_error: float


class _HeldOut:
    """The last KEEP_RESIDUALS residuals of anchors left out of the fit: the clock, with the fit, without."""

    def __init__(self) -> None:
        self.count = 0
        self._clock = np.zeros(KEEP_RESIDUALS, np.int64)
        self._residual = np.zeros((2, KEEP_RESIDUALS))

    def add(self, clock: Ints, with_fit: Floats, without: Floats) -> None:
        places = np.arange(self.count, self.count + len(clock))[-KEEP_RESIDUALS:] % KEEP_RESIDUALS
        self._clock[places] = clock[-KEEP_RESIDUALS:]
        self._residual[:, places] = with_fit[-KEEP_RESIDUALS:], without[-KEEP_RESIDUALS:]
        self.count += len(clock)

    def summary(self, clock: int | None = None) -> Residuals | None:
        """Of all clocks, or of one; None when there is nothing."""
        kept = min(self.count, KEEP_RESIDUALS)
        values = self._residual[:, :kept]
        if clock is not None:
            values = values[:, self._clock[:kept] == clock]
        if not values.shape[1]:
            return None
        (median, raw_median), (p90, raw_p90) = np.quantile(values, (0.5, 0.9), axis=1).tolist()
        return Residuals(median, p90, raw_median, raw_p90, values.shape[1])


class Alignment:
    """Filters of all clocks of a job. `grow` first; then `observe` each step.

    `asymmetry_ns` of a class of collectives: by how much their ends may differ in a way that repeats itself. No class
    counts as better than that, however well its ends agree when the clocks are fitted to them.
    """

    def __init__(self, asymmetry_ns: Callable[[int], float] = lambda _: FLOOR_NS) -> None:
        self.anchors = 0
        self._asymmetry_ns = asymmetry_ns
        self._offset = np.zeros(0)
        self._drift = np.zeros(0)
        self._time = np.zeros(0, np.int64)
        self._covariance = np.zeros((0, 2, 2))
        self._noise = np.zeros(0)
        self._strikes = np.zeros(0, np.int64)
        self._updates = np.zeros(0, np.int64)
        self._scale: dict[int, float] = {}
        self._validation: int | None = None
        self._fits = 0
        self._spread: dict[int, list[float]] = {}
        """How far the ends of each class lay apart in the first fits, as the clocks were predicted."""
        self._held_out = _HeldOut()
        self._summary: Residuals | None = None
        self._lines: list[_Line] = []

    @property
    def clocks(self) -> int:
        return len(self._offset)

    @property
    def fitted(self) -> bool:
        """Whether corrections are in use: only while the fit beats the raw clocks on anchors it has not seen."""
        seen = self._summary
        return seen is not None and seen.median_ns < seen.raw_median_ns and seen.p90_ns <= seen.raw_p90_ns

    def grow(self, clocks: int) -> None:
        """Make room for clocks; what has been learnt stays."""
        more = clocks - self.clocks
        if more <= 0:
            return
        prior = np.diag([PRIOR_OFFSET_NS**2, PRIOR_DRIFT**2])
        self._offset = np.append(self._offset, np.zeros(more))
        self._drift = np.append(self._drift, np.zeros(more))
        self._time = np.append(self._time, np.zeros(more, np.int64))
        self._covariance = np.concatenate([self._covariance, np.repeat(prior[None], more, axis=0)])
        self._noise = np.append(self._noise, np.full(more, FLOOR_NS**2))
        self._strikes = np.append(self._strikes, np.zeros(more, np.int64))
        self._updates = np.append(self._updates, np.zeros(more, np.int64))
        self._lines = self._current_lines()

    def observe(self, anchors: Anchors) -> None:
        """Take one step's anchors."""
        anchors = _between_clocks(anchors)
        if not len(anchors.group):
            return
        held = self._hold_out(anchors)
        self.anchors += int(anchors.group[-1]) + 1
        now = int(np.median(anchors.end_ns))
        if not held.all():
            self._fit(_take(anchors, ~held), now)
            self._fits += 1
        if held.any():
            self._judge(_take(anchors, held))
        self._lines = self._current_lines()

    def correction(self, clock: int, at_ns: int) -> float:
        """To be added to the clock's raw job time; 0 while the fit is not in use."""
        return self.fit_at(clock, at_ns) if self.fitted else 0.0

    def latest_correction(self, clock: int) -> float:
        return self.correction(clock, self._lines[clock].time_ns)

    def latest_ns(self, clock: int) -> int:
        """Raw job time of the clock's last update, 0 before the first."""
        return self._lines[clock].time_ns

    def fit_at(self, clock: int, at_ns: int) -> float:
        """The filter's own estimate, in use or not."""
        line = self._lines[clock]
        return line.offset_ns + line.drift * (at_ns - line.time_ns)

    def drift_ppm(self, clock: int) -> float:
        return self._lines[clock].drift * 1e6 if self.fitted else 0.0

    def error_ns(self, clock: int, at_ns: int) -> int:
        """Uncertainty of a converted time, -1 when nothing tells."""
        seen = self._summary
        if seen is None:
            return -1
        if not self.fitted:
            return _whole(seen.raw_p90_ns)
        line = self._lines[clock]
        return _whole(seen.p90_ns + line.drift_error * abs(at_ns - line.time_ns))

    def residuals(self, clock: int | None = None) -> Residuals | None:
        """Of all clocks, or of one; None while too few collectives were held out."""
        if clock is None:
            return self._summary
        return self._held_out.summary(clock) if self._summary else None

    def _current_lines(self) -> list[_Line]:
        """All filters as plain numbers, since they are asked about for each message."""
        drift_error = np.sqrt(self._covariance[:, 1, 1])
        rows = (self._offset.tolist(), self._drift.tolist(), self._time.tolist(), drift_error.tolist())
        return [_Line(*row) for row in zip(*rows, strict=True)]

    def _hold_out(self, anchors: Anchors) -> Bools:
        """Half of the class whose ends agree best, since a residual can be no better than the anchors that show it;
        while that is not known, a quarter of everything. A multiplicative hash, so that no period of the schedule
        decides who is held out."""
        mixed = (anchors.sequence * 2654435761) >> 16
        if self._validation is None and self._fits >= LEARN_SCALES:
            often = max(map(len, self._spread.values())) / 2
            known = {kind: float(np.median(seen)) for kind, seen in self._spread.items() if len(seen) >= often}
            self._validation = min(known, key=lambda kind: (known[kind], kind))
            self._held_out = _HeldOut()  # until enough of them are held out, the summary before goes on
        if self._validation is None:
            quarter: Bools = mixed % 4 == 0
            return quarter
        half: Bools = (anchors.kind == self._validation) & (mixed % 2 == 0)
        return half

    def _fit(self, anchors: Anchors, now: int) -> None:
        clock, group = anchors.clock, anchors.group
        ahead = anchors.end_ns - self._time[clock]
        started = self._updates[clock] > 0
        predicted = self._offset[clock] + np.where(started, self._drift[clock] * ahead, 0.0)
        ends = (anchors.end_ns - now) + predicted
        kinds, of_kind = np.unique(anchors.kind, return_inverse=True)
        if self._validation is None:
            apart = _from_others(ends, group)
            for kind in kinds.tolist():
                spread = float(np.median(apart[anchors.kind == kind]))
                self._spread.setdefault(kind, []).append(max(spread, self._asymmetry_ns(kind)))
        scale = np.array([self._scale.get(int(kind), 1e5) for kind in kinds])[of_kind]
        deviation, weight, residual = _consensus(ends, group, clock, scale, self.clocks)
        for kind in kinds:
            mine = np.abs(residual[anchors.kind == kind])
            fresh = max(self._asymmetry_ns(int(kind)), 1.4826 * float(np.median(mine)))
            self._scale[int(kind)] = 0.8 * self._scale.get(int(kind), fresh) + 0.2 * fresh
        seen = np.flatnonzero(weight > 0)
        self._update(seen, deviation[seen], 1.0 / weight[seen], now)

    def _update(self, clocks: Ints, innovation: Floats, variance: Floats, now: int) -> None:
        first = self._updates[clocks] == 0
        elapsed = np.where(first, 0.0, (now - self._time[clocks]).astype(np.float64))
        offset = self._offset[clocks] + self._drift[clocks] * elapsed
        covariance = _predict(self._covariance[clocks], elapsed, self._noise[clocks])
        spread = np.sqrt(covariance[:, 0, 0] + variance)
        score = innovation / spread
        stepped = self._strike(clocks, score)
        covariance[stepped, 0, 0] += innovation[stepped] ** 2
        beyond = (np.abs(score) > GATE) & ~stepped
        variance = np.where(beyond, (innovation / GATE) ** 2, variance)
        gain = covariance[:, :, 0] / (covariance[:, 0, 0] + variance)[:, None]
        self._offset[clocks] = offset + gain[:, 0] * innovation
        self._drift[clocks] = np.clip(self._drift[clocks] + gain[:, 1] * innovation, -MAX_DRIFT, MAX_DRIFT)
        self._covariance[clocks] = covariance - gain[:, :, None] * covariance[:, None, 0, :]
        # Process noise is learnt: it grows while innovations are larger than they should be, and shrinks slowly.
        grown = np.where(np.abs(score) > 1.0, 1.3, 0.95)
        self._noise[clocks] = np.clip(self._noise[clocks] * grown, 1.0, (1e5) ** 2)
        self._time[clocks] = now
        self._updates[clocks] += 1

    def _strike(self, clocks: Ints, score: Floats) -> Bools:
        """Whose clock has stepped: innovations beyond the gate on one side, STEP_AFTER times in a row."""
        side = np.where(np.abs(score) > GATE, np.sign(score), 0).astype(np.int64)
        before = self._strikes[clocks]
        now = np.where((side != 0) & (np.sign(before) == side), before + side, side)
        stepped: Bools = np.abs(now) >= STEP_AFTER
        self._strikes[clocks] = np.where(stepped, 0, now)
        return stepped

    def _judge(self, anchors: Anchors) -> None:
        base = int(anchors.end_ns[0])
        raw = (anchors.end_ns - base).astype(np.float64)
        correction = self._offset[anchors.clock] + self._drift[anchors.clock] * (
            anchors.end_ns - self._time[anchors.clock]
        )
        with_fit = _from_others(raw + correction, anchors.group)
        without = _from_others(raw, anchors.group)
        known = self._updates[anchors.clock] > 0
        self._held_out.add(anchors.clock[known], with_fit[known], without[known])
        if self._held_out.count >= MIN_HELD_OUT:
            self._summary = self._held_out.summary()


def _whole(error_ns: float) -> int:
    """-1 where it is no number, or larger than any time: nothing tells."""
    return round(error_ns) if error_ns <= MAX_TIME_NS else -1


def _between_clocks(anchors: Anchors) -> Anchors:
    """Only collectives whose members read more than one clock."""
    if not len(anchors.group):
        return anchors
    groups = int(anchors.group.max()) + 1
    low = np.full(groups, np.iinfo(np.int64).max)
    high = np.full(groups, -1)
    np.minimum.at(low, anchors.group, anchors.clock)
    np.maximum.at(high, anchors.group, anchors.clock)
    return _take(anchors, (low < high)[anchors.group])


def _take(anchors: Anchors, mask: Bools) -> Anchors:
    group = anchors.group[mask]
    renumbered = np.cumsum(np.r_[False, group[1:] != group[:-1]]) if len(group) else group
    return Anchors(renumbered, anchors.kind[mask], anchors.sequence[mask], anchors.clock[mask], anchors.end_ns[mask])


def _consensus(ends: Floats, group: Ints, clock: Ints, scale: Floats, clocks: int) -> tuple[Floats, Floats, Floats]:
    """Corrections x per clock and true ends m per collective that minimise sum w (end + x - m)^2, by alternating
    exact minimisation; w is Huber's over the class's scale.

    Returns x, each clock's total weight (0: not seen), and each row's residual.
    """
    correction = np.zeros(clocks)
    weight = np.ones(len(ends))
    residual = ends
    middle = _group_median(ends, group)
    for _ in range(SWEEPS):
        before = correction
        residual = ends + correction[clock] - middle[group]
        weight = np.minimum(1.0, HUBER * scale / np.maximum(np.abs(residual), 1e-9)) / scale**2
        total = np.bincount(clock, weight, minlength=clocks)
        moved = np.bincount(clock, weight * (middle[group] - ends), minlength=clocks)
        correction = np.divide(moved, total, out=np.zeros(clocks), where=total > 0)
        middle = np.bincount(group, weight * (ends + correction[clock])) / np.bincount(group, weight)
        if np.abs(correction - before).max() < SETTLED_NS:
            break
    seen = np.bincount(clock, minlength=clocks) > 0
    # The level is free: keep it where it was, so that job time does not wander.
    correction[seen] -= correction[seen].mean()
    return correction, np.bincount(clock, weight, minlength=clocks).astype(np.float64), residual


def _group_median(values: Floats, group: Ints) -> Floats:
    order = np.lexsort((values, group))
    first = np.flatnonzero(np.r_[True, np.diff(group[order]) > 0])
    size = np.diff(np.r_[first, len(values)])
    ordered = values[order]
    median: Floats = (ordered[first + (size - 1) // 2] + ordered[first + size // 2]) / 2
    return median


def _from_others(values: Floats, group: Ints) -> Floats:
    """|value - mean of the group's other members|."""
    size = np.bincount(group)[group]
    total = np.bincount(group, values)[group]
    distance: Floats = np.abs(values - (total - values) / (size - 1))
    return distance


def _predict(covariance: npt.NDArray[np.float64], elapsed: Floats, noise: Floats) -> npt.NDArray[np.float64]:
    """Covariance after `elapsed` ns: offset walks with `noise` per update, drift by 1 % of its prior."""
    move = np.zeros((len(elapsed), 2, 2))
    move[:, 0, 0] = move[:, 1, 1] = 1.0
    move[:, 0, 1] = elapsed
    grown: npt.NDArray[np.float64] = move @ covariance @ move.transpose(0, 2, 1)
    grown[:, 0, 0] += noise
    grown[:, 1, 1] += (0.01 * PRIOR_DRIFT) ** 2
    return grown
