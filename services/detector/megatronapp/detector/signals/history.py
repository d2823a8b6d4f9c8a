"""History: what a rank's values are against its own first ones, which makes ranks with different work comparable."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from megatronapp.detector.signals.compute import Passes
from megatronapp.detector.steps import Floats, Ints

ANCHOR_STEPS = 5
"""Their median is known to 0.56 of a step's deviation (1.25 / √5), and two outliers do not move it."""


class Anchors:
    """The median of each rank's first ANCHOR_STEPS values of one signal."""

    def __init__(self) -> None:
        self._first: Floats = np.zeros((0, ANCHOR_STEPS))
        self._seen: Ints = np.zeros(0, np.int64)
        self._anchors: Floats = np.zeros(0)

    def of(self, ranks: Ints, values: Floats, learning: npt.NDArray[np.bool_] | None = None) -> Floats:
        """The ranks' anchors, nan until known. Takes in values (nan: not measured) of ranks that are still learning,
        by default all."""
        self._grow(int(ranks.max(initial=-1)) + 1)
        young = np.isfinite(values) & (self._seen[ranks] < ANCHOR_STEPS)
        if learning is not None:
            young &= learning
        learners = ranks[young]
        self._first[learners, self._seen[learners]] = values[young]
        self._seen[learners] += 1
        if len(known := learners[self._seen[learners] == ANCHOR_STEPS]):
            self._anchors[known] = np.median(self._first[known], axis=1)
        anchors: Floats = self._anchors[ranks]
        return anchors

    def subtract(self, ranks: Ints, values: Floats) -> Floats:
        """values less their anchors."""
        less: Floats = values - self.of(ranks, values)
        return less

    def _grow(self, size: int) -> None:
        more = size - len(self._seen)
        if more > 0:
            self._first = np.concatenate([self._first, np.full((more, ANCHOR_STEPS), np.nan)])
            self._seen = np.concatenate([self._seen, np.zeros(more, np.int64)])
            self._anchors = np.concatenate([self._anchors, np.full(more, np.nan)])


class Standing:
    """Where each rank usually stands beside its peers, kept for the time when nobody is left to compare it with.

    Its own past takes over then, from there: else how two hosts have always differed would look like news as soon as
    the device of one of them is slow.
    """

    def __init__(self) -> None:
        self._usual: Floats = np.zeros(0)

    def beside(self, ranks: Ints, beside: Floats, own: Floats, baseline: Floats) -> Floats:
        """beside: less the median peer's, nan: none is left; own: less the rank's own past; baseline: what is usual of
        each rank beside peers, by rank, as far as known."""
        if (more := int(ranks.max(initial=-1)) + 1 - len(self._usual)) > 0:
            self._usual = np.concatenate([self._usual, np.zeros(more)])
        compared = np.isfinite(beside)
        learnt = ranks[compared & (ranks < len(baseline))]
        self._usual[learnt] = baseline[learnt]
        return np.where(compared, beside, own + self._usual[ranks])


class PassHistory:
    """How much longer each rank's passes take than its first ones did.

    Operation by operation, as a device may be known in its backward passes while it waits for its host in all of its
    forward passes.
    """

    def __init__(self) -> None:
        self._anchors: dict[tuple[str, int], Anchors] = {}

    def since_start(self, ranks: Ints, passes: Passes, healthy: npt.NDArray[np.bool_]) -> Floats:
        """log(time of the passes ÷ time of the first ones), over the keys that are known now and then; nan where none
        is. Slow ranks learn nothing: what is measured first while a rank is slow is no measure of it."""
        first = np.full_like(passes.seconds, np.nan)
        for column, key in enumerate(passes.keys):
            anchors = self._anchors.setdefault(key, Anchors())
            first[:, column] = anchors.of(ranks, passes.seconds[:, column], healthy)
        both = np.isfinite(first) & np.isfinite(passes.seconds)
        now = np.where(both, passes.seconds, 0.0).sum(axis=1)
        then = np.where(both, first, 0.0).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(both.any(axis=1), np.log(now / then), np.nan)
