"""What an optimizer of megatron-core's consists of."""

from __future__ import annotations

from typing import Any


def parts_of(optimizer: Any) -> list[Any]:
    """The optimizers that a chained one consists of (dense and expert parameters)."""
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))
