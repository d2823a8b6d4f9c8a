"""Whether the dynamic order pays on this machine: its steps and stock's in turns, then the faster one. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median


@dataclass
class Trial:
    """Steps of both kinds in turns; `dynamic` says what the next one is. With `wanted` False there is no trial."""

    wanted: bool = True
    dynamic: bool = True
    warm_up_steps: int = 4
    steps: int = 20
    seconds: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    _ended: int = 0

    def ended(self, seconds: float) -> bool:
        """A step took so long. Whether it was the trial's last one: then `decide`."""
        if not self.wanted:
            return False
        self._ended += 1
        if self._ended > self.warm_up_steps:
            self.seconds[self.dynamic].append(seconds)
        self.dynamic = not self.dynamic
        return self._ended == self.warm_up_steps + self.steps

    @property
    def medians(self) -> tuple[float, float]:
        """Seconds of (dynamic, stock) steps on this rank."""
        return median(self.seconds[True]), median(self.seconds[False])

    def decide(self, dynamic_seconds: float, stock_seconds: float) -> None:
        """By the slowest rank's, so that all decide alike."""
        self.wanted = False
        self.dynamic = dynamic_seconds <= stock_seconds
