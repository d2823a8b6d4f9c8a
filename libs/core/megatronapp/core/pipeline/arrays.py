"""Types of the arrays that describe a whole pipeline."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
PassTimes = Floats
"""(kinds F, B, W; stages, chunks) in ns: one microbatch's times; B is dgrad alone."""
