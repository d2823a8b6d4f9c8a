"""What pays on this machine: steps that choose while they run, their hint as it is, and stock's, in turns; then the
fastest. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

DYNAMIC, PLANNED, STOCK = "dynamic", "planned", "stock"
"""planned: the hint's order as it is, which nothing holds up but the messages that it needs."""
WARM_UP_STEPS, STEPS = 2, 10
"""Of each kind."""


@dataclass
class Trial:
    """Steps of all `kinds` in turns; `kind` is the next one's. Of one kind there is no trial."""

    kinds: Sequence[str] = (DYNAMIC,)
    warm_up_steps: int = WARM_UP_STEPS
    steps: int = STEPS
    kind: str = field(init=False)
    _seconds: dict[str, list[float]] = field(init=False)
    _ended: int = 0

    def __post_init__(self) -> None:
        self.kind = self.kinds[0]
        self._seconds = {kind: [] for kind in self.kinds}

    def ended(self, seconds: float) -> bool:
        """A step took so long. Whether it was the trial's last one: then `decide`."""
        if len(self.kinds) == 1:
            return False
        turn, number = divmod(self._ended, len(self.kinds))
        if turn >= self.warm_up_steps:
            self._seconds[self.kinds[number]].append(seconds)
        self._ended += 1
        self.kind = self.kinds[self._ended % len(self.kinds)]
        return self._ended == (self.warm_up_steps + self.steps) * len(self.kinds)

    @property
    def medians(self) -> list[float]:
        """Seconds of a step on this rank, by kind."""
        return [median(self._seconds[kind]) for kind in self.kinds]

    def decide(self, seconds: Sequence[float]) -> None:
        """By the slowest rank's medians, so that all decide alike; of equal ones for the first kind."""
        self.kind = self.kinds[min(range(len(self.kinds)), key=seconds.__getitem__)]
        self.kinds = (self.kind,)
