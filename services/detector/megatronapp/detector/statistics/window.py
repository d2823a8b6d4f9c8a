"""Window: the newest values of many items."""

from __future__ import annotations

import numpy as np

from megatronapp.detector.steps import Floats

SPARE = 4
"""A window's memory has room for a part of so many more: values are moved only when that has been run through."""


class Window:
    """`rows` is items × width, the newest value first; what was never measured is `fill`. The values of one step lie
    together, as steps come and are summed up for all items at once."""

    def __init__(self, width: int, fill: float) -> None:
        self.width, self._fill = width, fill
        self._memory: Floats = np.full((width + max(1, width // SPARE), 0), fill)
        self._first = len(self._memory) - width

    @property
    def rows(self) -> Floats:
        """A view: assigning to it changes the window."""
        return self._newest_first.T

    @property
    def _newest_first(self) -> Floats:
        return self._memory[self._first : self._first + self.width]

    def push(self, newest: Floats) -> None:
        """One more value for every item; the oldest ones go."""
        if self._first == 0:
            home = len(self._memory) - self.width
            self._memory[home:] = self._newest_first
            self._first = home
        self._first -= 1
        self._memory[self._first] = newest

    def push_some(self, items: np.ndarray, newest: Floats) -> None:
        """One more value for some items; the others keep what they have."""
        if len(items) == self._memory.shape[1]:
            self.push(newest)
            return
        steps = self._newest_first
        for older, newer in zip(steps[:0:-1], steps[-2::-1], strict=True):
            older[items] = newer[items]
        steps[0, items] = newest

    def grow(self, more: int) -> None:
        """Room for further items."""
        fresh = np.full((len(self._memory), more), self._fill)
        self._memory = np.concatenate([self._memory, fresh], axis=1)
