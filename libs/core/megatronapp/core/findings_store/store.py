"""The store itself: checks what goes in and out, and keeps to its limits, over any backend.

One writer of findings, the detector, and any number of readers; annotations are written by gateways. The writer keeps
the index of rows in memory; `expire` reads it anew, so that what others did to the place is seen within a minute.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from megatronapp.core.errors import DataError
from megatronapp.core.findings import Finding, State
from megatronapp.core.findings_store.annotations import (
    MAX_ANNOTATIONS,
    Annotation,
    decode_annotation,
    encode_annotation,
)
from megatronapp.core.findings_store.base import Backend, Row
from megatronapp.core.findings_store.codec import decode, encode
from megatronapp.core.findings_store.limits import Limits, beyond_room, beyond_share, expired
from megatronapp.core.logging import get_logger

log = get_logger(__name__)

READ_COUNT = 32
"""Findings that are read and decoded before others have their turn."""
MAX_KNOWN_BAD = 10_000


class FindingsStoreMetrics:
    def __init__(self, registry: CollectorRegistry | None, *, sizes: bool = True) -> None:
        """sizes: whether it is told how much is stored, which the writer alone always knows."""
        of_writer = registry if sizes else None
        self.findings = Gauge("megatronapp_findings_stored", "Findings in the store.", registry=of_writer)
        self.bytes = Gauge(
            "megatronapp_findings_stored_bytes", "Size of the findings in the store.", registry=of_writer
        )
        self.dropped = Counter(
            "megatronapp_findings_dropped",
            "Findings that left the store, or could not enter; reason: age, size, unreadable.",
            ["reason"],
            registry=registry,
        )
        for reason in ("age", "size", "unreadable"):
            self.dropped.labels(reason)  # from 0 on, so that the first is an increase


class FindingsStore:
    """Findings by id, each in its newest state. All methods raise UnavailableError when the place does not answer."""

    def __init__(
        self,
        backend: Backend,
        limits: Limits | None = None,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        """`limits` None: those by default, for one who only reads. `clock` tells Unix time in ns."""
        self._backend = backend
        self._limits = limits or Limits()
        self._clock = clock
        self._metrics = FindingsStoreMetrics(registry, sizes=limits is not None)
        self._writing = asyncio.Lock()
        self._rows: dict[str, Row] | None = None
        """What the writer knows is there; None: it must look."""
        self._known_bad: set[str] = set()

    async def put(self, finding: Finding) -> bool:
        """Keep a finding unless a later word is kept already, making room for it; returns whether it is kept.

        Raises DataError for one that can't be true, or that bears the id of another job's.
        """
        try:
            body = encode(finding)
        except DataError:
            self._metrics.dropped.labels("unreadable").inc()
            raise
        async with self._writing:
            rows = await self._known_rows()
            row = _row(finding, self._clock(), len(body))
            known = rows.get(row.id)
            if known is not None and known.run and (known.run, known.job) != (row.run, row.job):
                raise DataError(f"finding {row.id} is of job {known.job}, run {known.run}")
            if known is not None and row.updated_unix_ns < known.updated_unix_ns:
                return False
            return await self._write(rows, row, body)

    async def get(self, finding_id: str) -> Finding | None:
        """None for one that is not there or can't be read."""
        bodies = await self._backend.read([finding_id])
        return self._decoded(finding_id, bodies[finding_id]) if finding_id in bodies else None

    async def find(self, *, run: str | None = None, state: State | None = None) -> list[Finding]:
        """All findings, or those of one run or in one state, the one written first first. What can't be read is
        logged, counted and left out."""
        rows = await self._backend.index()
        chosen = [
            row
            for row in sorted(rows, key=lambda row: row.stored_unix_ns)
            if (run is None or row.run == run) and (state is None or row.open is (state is State.OPEN))
        ]
        found: list[Finding] = []
        for first in range(0, len(chosen), READ_COUNT):
            found += await self._read([row.id for row in chosen[first : first + READ_COUNT]])
        return found

    async def changes(self, known: Mapping[str, int]) -> tuple[list[Finding], set[str]]:
        """For one who keeps findings, by id and updated_unix_ns: those that are new or changed, and the ids that are
        no longer there."""
        rows = await self._backend.index()
        newer = [row.id for row in rows if known.get(row.id) != row.updated_unix_ns and row.id not in self._known_bad]
        found: list[Finding] = []
        for first in range(0, len(newer), READ_COUNT):
            found += await self._read(newer[first : first + READ_COUNT])
        return found, known.keys() - {row.id for row in rows}

    async def annotate(self, annotation: Annotation) -> bool:
        """Keep what somebody says of a finding, the newest MAX_ANNOTATIONS; False where the finding is not there."""
        return await self._backend.annotate(annotation.finding, encode_annotation(annotation), MAX_ANNOTATIONS)

    async def annotations(self, ids: Sequence[str]) -> list[Annotation]:
        """Of these findings, the oldest of each first. What can't be read is logged and left out."""
        found: list[Annotation] = []
        for id_, bodies in (await self._backend.annotations(ids)).items():
            for body in bodies:
                try:
                    found.append(decode_annotation(body))
                except DataError as error:
                    log.error("stored_annotation_unreadable", finding=id_[:128], error=str(error)[:500])
        return found

    async def expire(self) -> None:
        """Delete what is too old, or beyond the limits. For the writer to call every now and then."""
        async with self._writing:
            self._rows = None
            rows = await self._known_rows()
            old = expired(rows.values(), self._limits, self._clock())
            gone = {row.id for row in old}
            left = [row for row in rows.values() if row.id not in gone]
            await self._drop(rows, old, beyond_room(left, self._limits))

    async def close(self) -> None:
        await self._backend.close()

    async def _read(self, ids: Sequence[str]) -> list[Finding]:
        bodies = await self._backend.read(ids)
        found = [self._decoded(id_, bodies[id_]) for id_ in ids if id_ in bodies]
        await asyncio.sleep(0)
        return [finding for finding in found if finding is not None]

    def _decoded(self, finding_id: str, body: bytes) -> Finding | None:
        try:
            finding = decode(body)
            if finding.id != finding_id:
                raise DataError(f"it says it is {finding.id!r}")
        except DataError as error:
            if finding_id not in self._known_bad and len(self._known_bad) < MAX_KNOWN_BAD:
                self._known_bad.add(finding_id)
                self._metrics.dropped.labels("unreadable").inc()
                log.error("stored_finding_unreadable", id=finding_id[:128], error=str(error)[:500])
            return None
        return finding

    async def _known_rows(self) -> dict[str, Row]:
        if self._rows is None:
            self._rows = {row.id: row for row in await self._backend.index()}
        return self._rows

    async def _write(self, rows: dict[str, Row], row: Row, body: bytes) -> bool:
        old = expired((other for other in rows.values() if other.id != row.id), self._limits, row.stored_unix_ns)
        left = {**rows, row.id: row}
        for other in old:
            del left[other.id]
        surplus = beyond_share(left.values(), row.job, self._limits)
        for other in surplus:
            del left[other.id]
        surplus += beyond_room(left.values(), self._limits)
        if row in surplus:
            await self._drop(rows, old, surplus)
            return False
        self._rows = None
        await self._backend.write(row, body, [other.id for other in (*old, *surplus)])
        self._rows = rows
        self._count(rows, old, surplus)
        rows[row.id] = row
        self._show(rows.values())
        return True

    async def _drop(self, rows: dict[str, Row], old: Sequence[Row], surplus: Sequence[Row]) -> None:
        self._rows = None
        await self._backend.delete([row.id for row in (*old, *surplus)])
        self._rows = rows
        self._count(rows, old, surplus)
        self._show(rows.values())

    def _count(self, rows: dict[str, Row], old: Sequence[Row], surplus: Sequence[Row]) -> None:
        for row in (*old, *surplus):
            rows.pop(row.id, None)
            self._known_bad.discard(row.id)
        for reason, gone in (("age", old), ("size", surplus)):
            self._metrics.dropped.labels(reason).inc(len(gone))
        if surplus:
            log.warning(
                "findings_dropped_for_size", findings=len(surplus), jobs=sorted({row.job for row in surplus})[:3]
            )

    def _show(self, rows: Collection[Row]) -> None:
        self._metrics.findings.set(len(rows))
        self._metrics.bytes.set(sum(row.bytes for row in rows))


def _row(finding: Finding, now_unix_ns: int, size: int) -> Row:
    opened = finding.state is State.OPEN
    return Row(finding.id, finding.run, finding.job, opened, finding.updated_unix_ns, now_unix_ns, size)
