"""What is conspicuous in values that are shown: numbers that are none, outlier channels, dead heads. Pure.

Only what somebody watches is looked at, on the host, after it was reduced: it costs the model nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from megatronapp.core.scope.operations import Elementwise, Every, Operation, Reduce, Slice, Stats, Take, When
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.results import Partial, Result

OUTLIER_RATIO = 20.0
"""Of a channel's largest magnitude over the median channel's. Outlier features of transformers are some twenty times
the others and always the same channels (Dettmers et al., "LLM.int8()", NeurIPS 2022)."""
DEAD_RATIO = 1e-3
"""Of a head's largest output over the median head's."""
MOST_NAMED = 8
_SURELY_NEAR = 2 / OUTLIER_RATIO
"""Of the largest magnitude: where most channels are above it, their median is, and none is an outlier."""
_NONFINITE_COMPONENT = 5
"""Of `reducers.statistics`."""


@dataclass(frozen=True, slots=True)
class Alert:
    """`ScopeAlert`'s kind and detail."""

    kind: str
    detail: str


def alerts(
    site: str, axes: Sequence[str], operations: Sequence[Operation], result: Result, *, finite: bool = False
) -> list[Alert]:
    """Of one shard's frame of a site with these axes. `finite`: all its values are known to be numbers."""
    if isinstance(result, Partial) and operations and isinstance(operations[-1], Stats):
        count = int(np.nansum(result.components[_NONFINITE_COMPONENT]))
        return [Alert("nonfinite", f"{count} values are NaN or infinite")] if count else []
    if not isinstance(result, Values):
        return []
    numbers = None if finite else np.isfinite(result.array)
    found = [] if numbers is None else _nonfinite(result, numbers)
    left = kept_axes(axes, operations)
    if not left or len(left) != result.array.ndim or not ("chan" in left or "head" in left):
        return found
    magnitudes = np.abs(result.array)
    if numbers is not None:
        magnitudes = np.where(numbers, magnitudes, 0.0)
    if left[-1] == "chan" and site not in ("attn.q", "attn.k", "attn.v", "attn.context"):
        found += _outliers(magnitudes.reshape(-1, magnitudes.shape[-1]).max(0))
    if "head" in left and site == "attn.context":
        found += _dead(np.moveaxis(magnitudes, left.index("head"), 0))
    return found


def _nonfinite(result: Values, numbers: npt.NDArray[np.bool_]) -> list[Alert]:
    wrong = 0 if numbers.all() else int((~result.absent & ~numbers).sum())
    return [Alert("nonfinite", f"{wrong} of {result.array.size} values are NaN or infinite")] if wrong else []


def kept_axes(axes: Sequence[str], operations: Sequence[Operation]) -> tuple[str, ...] | None:
    """The axes whose every entry is still there or was sliced; None after pools and statistics."""
    left = list(axes)
    for operation in operations:
        match operation:
            case Take(axis=axis, pick=pick):
                if not isinstance(pick, Slice):
                    left.remove(axis)
            case Reduce(axis=axis):
                left.remove(axis)
            case Elementwise() | Every() | When():
                pass
            case _:
                return None
    return tuple(left)


def _outliers(channels: npt.NDArray[np.float32]) -> list[Alert]:
    if 2 * np.count_nonzero(channels > channels.max(initial=0.0) * _SURELY_NEAR) > len(channels):
        return []
    middle = float(np.median(channels))
    far = np.flatnonzero(channels > OUTLIER_RATIO * middle) if middle > 0 else np.zeros(0, int)
    if not 0 < len(far) <= max(len(channels) // 20, 1):
        return []
    named = ", ".join(map(str, far[np.argsort(-channels[far])][:MOST_NAMED]))
    largest = float(channels.max()) / middle
    return [Alert("outlier_channel", f"channels {named} of this shard are up to {largest:.0f} times the median")]


def _dead(heads: npt.NDArray[np.float32]) -> list[Alert]:
    largest = heads.reshape(len(heads), -1).max(1)
    middle = float(np.median(largest))
    dead = np.flatnonzero(largest < DEAD_RATIO * middle)
    if not len(dead):
        return []
    named = ", ".join(map(str, dead[:MOST_NAMED]))
    return [Alert("dead_head", f"heads {named} of this shard write next to nothing")]
