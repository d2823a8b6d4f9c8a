"""How much a store keeps, and what goes first. Pure.

The resolved go before the open, and the oldest of each first. One job may take a tenth of the room, so that a job whose
findings come by the thousand pushes out its own and nobody else's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from megatronapp.core.findings_store.base import Row

JOB_SHARE = 0.1
"""Of the room, that one job may take."""
MIN_FINDINGS = 10
MIN_BYTES = 16 << 20
"""A tenth of it holds the largest finding (base.MAX_FINDING_BYTES)."""


@dataclass(frozen=True, slots=True)
class Limits:
    retention_seconds: float = 30 * 86_400.0
    """A finding goes so long after it was last written."""
    max_findings: int = 5_000
    max_bytes: int = 64 << 20


def expired(rows: Iterable[Row], limits: Limits, now_unix_ns: int) -> list[Row]:
    oldest_ns = now_unix_ns - int(limits.retention_seconds * 1e9)
    return [row for row in rows if row.stored_unix_ns < oldest_ns]


def beyond_share(rows: Iterable[Row], job: str, limits: Limits) -> list[Row]:
    """What one job has beyond its share."""
    own = [row for row in rows if row.job == job]
    return _surplus(own, max(1, int(JOB_SHARE * limits.max_findings)), int(JOB_SHARE * limits.max_bytes))


def beyond_room(rows: Iterable[Row], limits: Limits) -> list[Row]:
    """What all have beyond the room."""
    return _surplus(list(rows), limits.max_findings, limits.max_bytes)


def _surplus(rows: list[Row], max_count: int, max_bytes: int) -> list[Row]:
    """Those that must go so that the rest fits, the first to go first."""
    count, size = len(rows), sum(row.bytes for row in rows)
    gone: list[Row] = []
    if count <= max_count and size <= max_bytes:
        return gone
    for row in sorted(rows, key=lambda row: (row.open, row.stored_unix_ns)):
        if count <= max_count and size <= max_bytes:
            break
        gone.append(row)
        count, size = count - 1, size - row.bytes
    return gone
