"""Window: the newest values of many items."""

from __future__ import annotations

import numpy as np

from megatronapp.detector.steps import Floats

SPARE = 2
"""Windows that fit into the memory: values are moved only when it has been run through."""


class Window:
    """`rows` is items × width, the newest value first; what was never measured is `fill`."""

    def __init__(self, width: int, fill: float) -> None:
        self.width, self._fill = width, fill
        self._memory: Floats = np.full((0, SPARE * width), fill)
        self._first = self._memory.shape[1] - width

    @property
    def rows(self) -> Floats:
        """A view: assigning to it changes the window."""
        return self._memory[:, self._first : self._first + self.width]

    def push(self, newest: Floats) -> None:
        """One more value for every item; the oldest ones go."""
        if self._first == 0:
            home = self._memory.shape[1] - self.width
            self._memory[:, home:] = self.rows
            self._first = home
        self._first -= 1
        self._memory[:, self._first] = newest

    def push_some(self, items: np.ndarray, newest: Floats) -> None:
        """One more value for some items; the others keep what they have."""
        if len(items) == len(self._memory):
            self.push(newest)
            return
        rows = self.rows
        rows[items, 1:] = rows[items, :-1]
        rows[items, 0] = newest

    def grow(self, more: int) -> None:
        """Room for further items."""
        fresh = np.full((more, self._memory.shape[1]), self._fill)
        self._memory = np.concatenate([self._memory, fresh])
