"""Less is recorded where records are overwritten before they are read, and all again after a while. Pure."""

from __future__ import annotations

from collections.abc import Sequence

STEPS, MOST_STEPS = 64, 8192
"""Until more is asked for again; twice as many after each time that it was too much, up to the second."""


class Sampling:
    """levels: from the least to what was asked for. The least is never left: from it a hang is known."""

    def __init__(self, levels: Sequence[int]) -> None:
        self._levels = tuple(levels)
        self._index = len(self._levels) - 1
        self._lost = 0
        self._steps, self._pause = 0, STEPS

    @property
    def level(self) -> int:
        return self._levels[self._index]

    def step(self, lost: int) -> bool:
        """A step begins, and so many records were lost until now; whether the level was lowered for that."""
        grown, self._lost = lost > self._lost, lost
        if grown and self._index:
            self._index -= 1
            self._steps, self._pause = self._pause, min(2 * self._pause, MOST_STEPS)
            return True
        if self._index < len(self._levels) - 1:
            self._steps = self._pause if grown else self._steps - 1
            self._index += self._steps <= 0
            self._steps = self._steps or self._pause
        return False
