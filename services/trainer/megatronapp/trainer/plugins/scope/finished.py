"""A result on the host, for all taps that show it."""

from __future__ import annotations

import numpy as np

from megatronapp.core.scope.frame import Frame
from megatronapp.core.scope.quantize import Values, exact
from megatronapp.core.scope.results import Result, to_frame


class Finished:
    """Of one place in one pass. What is worked out of it is so once, however many taps show it."""

    def __init__(self, result: Result) -> None:
        self.result = result
        self.finite = isinstance(result, Values) and bool(np.isfinite(result.array).all())
        """These are values, all of them numbers."""
        self.head = b""
        """What comes before the payload in the frame of a tap that has shown it; the next one's differs in its numbers
        alone."""
        self._frame: Frame | None = None

    @property
    def frame(self) -> Frame:
        """Without an address; of values that are numbers it holds a view. Raises DataError."""
        if self._frame is None:
            result = self.result
            self._frame = exact(result, finite=self.finite) if isinstance(result, Values) else to_frame(result, "f32")
        return self._frame
