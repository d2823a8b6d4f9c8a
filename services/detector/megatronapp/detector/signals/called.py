"""How a member of a communicator has called an operation: what all of them have to agree on."""

from __future__ import annotations

from typing import NamedTuple


class Called(NamedTuple):
    """One operation as a member called it; empty or None: not known, or not the same on all members."""

    operation: str
    elements: int | None = None
    type: str = ""
    root: int | None = None

    def agrees(self, other: Called) -> bool:
        return self.operation == other.operation and all(
            own in (None, "") or theirs in (None, "") or own == theirs
            for own, theirs in zip(self[1:], other[1:], strict=True)
        )

    def in_words(self) -> str:
        size = f" of {self.elements} {self.type}".rstrip() if self.elements is not None else ""
        return f"{self.operation}{size}" + (f" from rank {self.root}" if self.root not in (None, -1) else "")
