"""What the numbers in a rank's rows mean: its table of span names, as the rank tells it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from megatronapp.core.errors import DataError
from megatronapp.core.trace import limits

Flags = npt.NDArray[np.bool_]
MAX_NAMES = 1024


@dataclass(frozen=True)
class SpanNames:
    names: tuple[str, ...]
    kinds: npt.NDArray[np.int64]
    """values.SpanKind of each."""
    on_host: Flags
    """Measured by the host's clock also on a GPU."""
    blocking: Flags
    """Taken out of the compute and phase rows around them, so that these count self time."""
    summarized: Flags

    @cached_property
    def key(self) -> Hashable:
        """Equal for tables that say the same."""
        return self.names, *(column.tobytes() for column in (self.kinds, self.on_host, self.blocking, self.summarized))

    @classmethod
    def parse(cls, document: Any) -> SpanNames:
        """Raises DataError."""
        if not isinstance(document, Mapping):
            raise DataError("the table of names must be an object")
        names = _list(document, "names", str)
        if not 0 < len(names) <= MAX_NAMES or any(len(name) > limits.MAX_NAME for name in names):
            raise DataError(f"{len(names)} names; from 1 to {MAX_NAMES} of {limits.MAX_NAME} characters are accepted")
        kinds = _list(document, "kinds", int)
        flags = [_list(document, key, bool) for key in ("on_host", "blocking", "summarized")]
        if any(len(column) != len(names) for column in (kinds, *flags)) or not all(0 <= kind < 32 for kind in kinds):
            raise DataError("each name needs a kind, on_host, blocking and summarized")
        return cls(tuple(names), np.array(kinds, np.int64), *(np.array(column, np.bool_) for column in flags))


def _list(document: Mapping[str, Any], key: str, kind: type[Any]) -> list[Any]:
    content = document.get(key)
    if not isinstance(content, list) or not all(type(each) is kind for each in content):
        raise DataError(f"{key} must be a list of {kind.__name__}")
    return content
