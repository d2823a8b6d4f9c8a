"""What a place for findings must be able to do: keep rows. What is kept, and for how long, is decided in `store`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from megatronapp.core.trace.limits import MAX_TIME_NS

MAX_FINDING_BYTES = 1 << 20
"""A finding on all of 100,000 ranks takes half of it."""


@dataclass(frozen=True, slots=True)
class Row:
    """What is known of a stored finding without reading it."""

    id: str
    run: str
    job: str
    open: bool
    updated_unix_ns: int
    """By the detector's clock: a later word replaces an earlier one."""
    stored_unix_ns: int
    """When it was written last, by the writer's own clock: its age counts from here, whatever the finding says."""
    bytes: int

    @classmethod
    def of(cls, id: str, *fields: object) -> Row:  # noqa: A002  the column's name
        """A row as a file or database holds it. One that can't be read has the age of 1970, and so goes first."""
        match fields:
            case (str(run), str(job), int(opened), int(updated), int(stored), int(size)) if (
                0 <= size <= MAX_FINDING_BYTES and 0 <= updated <= MAX_TIME_NS and 0 <= stored <= MAX_TIME_NS
            ):
                return cls(id, run, job, bool(opened), updated, stored, size)
            case _:
                return cls(id, "", "", open=False, updated_unix_ns=0, stored_unix_ns=0, bytes=0)


class Backend(Protocol):
    """Rows and their bodies by id. All methods raise UnavailableError when the place does not answer now."""

    async def index(self) -> list[Row]:
        """All rows, in any order."""

    async def read(self, ids: Sequence[str]) -> Mapping[str, bytes]:
        """The bodies of those ids that are there."""

    async def write(self, row: Row, body: bytes, gone: Sequence[str]) -> None:
        """Add or replace one row and delete others, all or nothing."""

    async def delete(self, ids: Sequence[str]) -> None:
        """Delete rows, with what was annotated to them; so does `write` of those that are gone."""

    async def annotate(self, id: str, body: bytes, most: int) -> bool:  # noqa: A002  as above
        """Add to what was annotated to a row; beyond `most` the oldest go. False: there is no such row."""

    async def annotations(self, ids: Sequence[str]) -> Mapping[str, Sequence[bytes]]:
        """What was annotated to those rows that have any, the oldest first."""

    async def close(self) -> None: ...
