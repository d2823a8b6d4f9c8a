"""What a full store costs the event loop that it works on."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from megatronapp.core.findings_store import FindingsStore, Limits, MemoryBackend, Row

DAY_NS = 86_400 * 10**9
NOW_NS = 1_790_000_000 * 10**9


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class CountedRow(Row):
    """Tells how often two rows are compared."""

    comparisons = 0

    def __eq__(self, other: object) -> bool:
        CountedRow.comparisons += 1
        return isinstance(other, Row) and self.id == other.id

    __hash__ = Row.__hash__


class FullPlace(MemoryBackend):
    """As many rows as fit by default, every second one of them too old."""

    deleted: tuple[str, ...] = ()

    async def index(self) -> list[Row]:
        ages = (40 * DAY_NS if number % 2 else DAY_NS for number in range(Limits().max_findings))
        return [
            CountedRow(
                str(number), "run", "team/gpt", open=True, updated_unix_ns=5, stored_unix_ns=NOW_NS - age, bytes=9
            )
            for number, age in enumerate(ages)
        ]

    async def delete(self, ids: Sequence[str]) -> None:
        self.deleted = tuple(ids)


async def test_expiring_looks_at_each_row_once_and_compares_none_with_all() -> None:
    place = FullPlace()
    store = FindingsStore(place, Limits(), clock=lambda: NOW_NS)

    await store.expire()

    assert place.deleted == tuple(str(number) for number in range(1, Limits().max_findings, 2))
    assert CountedRow.comparisons <= Limits().max_findings
