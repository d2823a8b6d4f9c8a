"""Files of the store, by what their names say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Part:
    """One Parquet file and what its name says."""

    path: Path
    table: str
    write: int
    first: int
    last: int

    @classmethod
    def of(cls, path: Path) -> Part | None:
        try:
            table, write, first, last = path.stem.split("-")
            return cls(path, table, int(write), int(first), int(last))
        except ValueError:
            return None
