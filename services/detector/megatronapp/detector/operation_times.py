"""How long a job's collectives last, waiting included, as the summaries of its steps tell: by kind of communicator and
operation. A step may be minutes of computing in which nothing moves; what its ranks wait for in a collective is far
less, and tells sooner that one of them does not come."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from megatronapp.core.trace.values import SpanKind
from megatronapp.detector.patience import KEPT_STEPS, KNOWN_RANK_STEPS, STEP_SECONDS
from megatronapp.detector.steps import StepTable

FACTOR = 2.0
"""Of the longest that has been seen: a step that takes twice as long makes the others wait for one step more."""
MOST_KEYS = 256
"""A job has some ten."""
Key = tuple[str, str]
"""Kind of the communicator, name of the operation."""


@dataclass(slots=True)
class _Lasted:
    rank_steps: int = 0
    """Of ranks that took part."""
    longest: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT_STEPS))
    """Of each of the newest steps."""


class OperationTimes:
    def __init__(self) -> None:
        self._lasted: dict[Key, _Lasted] = {}

    def note(self, table: StepTable) -> None:
        """Take a step, if it did nothing but train."""
        rows = table.rows
        kept = (rows.communicator >= 0) & (rows.count > 0) & (table.kinds[rows.operation] == SpanKind.COLLECTIVE)
        if table.phases or not kept.any():
            return
        kinds = list(dict.fromkeys(group.kind for group in table.communicators))
        number = np.array([kinds.index(group.kind) for group in table.communicators])
        code = number[rows.communicator[kept]] * len(table.operations) + rows.operation[kept]
        seconds, rank = rows.duration_max[kept], rows.rank[kept]
        for each in np.flatnonzero(np.bincount(code)).tolist():
            kind, operation = divmod(each, len(table.operations))
            mine = code == each
            ranks = int(np.count_nonzero(np.bincount(rank[mine])))
            self._add((kinds[kind], table.operations[operation]), ranks, float(seconds[mine].max()))

    def patience(self, communicator: str, operation: str) -> float:
        """Seconds that a member may be waited for; inf where too little is known of the operation."""
        lasted = self._lasted.get((communicator.partition(":")[0], operation))
        if lasted is None or lasted.rank_steps < KNOWN_RANK_STEPS:
            return math.inf
        return FACTOR * max(lasted.longest) + STEP_SECONDS

    def _add(self, key: Key, ranks: int, seconds: float) -> None:
        if key not in self._lasted and len(self._lasted) >= MOST_KEYS:
            return
        lasted = self._lasted.setdefault(key, _Lasted())
        lasted.rank_steps += ranks
        lasted.longest.append(seconds)
