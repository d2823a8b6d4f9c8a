"""The order of a stage's passes as a step's summary tells it: of each pass its kind and chunk, two bytes together.

Which microbatch it is follows, since a chunk's microbatches keep their order.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt

from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.orders import Order
from megatronapp.core.pipeline.placement import Layout

CODE = np.dtype("<u2")


def packed(kinds: npt.NDArray[np.int64], chunks: npt.NDArray[np.int64]) -> bytes:
    """Of passes in their order; kinds are those of Kind."""
    return (chunks * len(Kind) + kinds).astype(CODE).tobytes()


def unpacked(codes: bytes, layout: Layout) -> Order | None:
    """None where it is not one of the layout: each operation of a stage once, after what it needs of the same stage."""
    if len(codes) != layout.operations * CODE.itemsize:
        return None
    ran: Counter[tuple[int, int]] = Counter()
    order: Order = []
    for code in np.frombuffer(codes, CODE).tolist():
        chunk, kind = divmod(code, len(Kind))
        possible = layout.microbatches if kind == Kind.FORWARD else ran[kind - 1, chunk]
        if chunk >= layout.chunks or kind >= len(layout.kinds) or ran[kind, chunk] >= possible:
            return None
        order.append(Operation(Kind(kind), chunk, ran[kind, chunk]))
        ran[kind, chunk] += 1
    return order
