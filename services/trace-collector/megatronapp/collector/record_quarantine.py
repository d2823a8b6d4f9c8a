"""What can't be taken in is set aside, as the record that the journal holds, and everything behind it goes on."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

from megatronapp.collector.envelope import Record
from megatronapp.collector.jobs import AttemptKey
from megatronapp.collector.received import parse_record
from megatronapp.core.errors import DataError, MegatronAppError
from megatronapp.core.logging import get_logger
from megatronapp.core.quarantine import Quarantine, Released
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)

_ROWS = ("batch", "summary")


@dataclass(frozen=True, slots=True)
class AppliedRelease:
    """A record that was handed back and has been applied behind a position of the journal. Its file goes when store and
    bus have it."""

    released: Released
    position: int

    @property
    def key(self) -> AttemptKey:
        return self.released.entry.run, self.released.entry.attempt


class RecordQuarantine:
    def __init__(self, quarantine: Quarantine) -> None:
        self._quarantine = quarantine
        self._again: list[AppliedRelease] = []

    @contextmanager
    def unless_applied(self, record: bytes | Record) -> Iterator[None]:
        """Whatever is raised within sets the record aside and goes no further."""
        try:
            yield
        except Exception as error:
            if not isinstance(error, MegatronAppError):
                log.exception("record_failed")
            self.put(record if isinstance(record, bytes) else b"".join(record), error)

    def put(self, record: bytes, error: Exception) -> None:
        reason = str(error) if isinstance(error, MegatronAppError) else f"{type(error).__name__}: {error}"
        who = _identity(record)
        self._quarantine.put(record, run=who.run, job=who.job, attempt=who.attempt, rank=who.rank, reason=reason)

    def put_rows(
        self, failed: Mapping[AttemptKey, Exception], records: Iterator[tuple[int, bytes]], *, before: int
    ) -> None:
        """Of the journal's records up to a position, those with rows of attempts whose rows could not be stored."""
        for (run, attempt), error in failed.items():
            log.error("attempt_not_stored", run=run, attempt=attempt, error=f"{type(error).__name__}: {error}")
        for _, record in takewhile(lambda each: each[0] < before, records):
            if (key := _rows_of(record, failed)) is not None:
                self.put(record, failed[key])

    def released(self) -> list[Released]:
        """What a person has handed back and has not been applied yet. Blocks: call it from a thread."""
        waiting = {again.released.path for again in self.again()}
        return [released for released in self._quarantine.take_released() if released.path not in waiting]

    def applied(self, released: Released, position: int) -> None:
        """A record that was handed back is in memory now."""
        self._again.append(AppliedRelease(released, position))
        entry = released.entry
        log.info("record_taken_again", id=entry.id, run=entry.run, attempt=entry.attempt, rank=entry.rank)

    def again(self) -> list[AppliedRelease]:
        """Those that are applied and wait for store and bus."""
        return list(self._again)

    def stored(
        self, again: Sequence[AppliedRelease], failed: Mapping[AttemptKey, Exception], oldest: int | None
    ) -> None:
        """A write of the store has taken these, but for the attempts that failed; `oldest` is the position of what
        waits for the bus."""
        for each in again:
            if error := failed.get(each.key):
                self.put(each.released.record, error)
            elif oldest is not None and each.position >= oldest:
                continue
            self._again.remove(each)
            each.released.done()


def _identity(record: bytes) -> trace_pb2.Identity:
    """Whose record it is, as far as it can be read."""
    try:
        return parse_record(record).identity
    except DataError:
        return trace_pb2.Identity()


def _rows_of(record: bytes, wanted: Container[AttemptKey]) -> AttemptKey | None:
    """The attempt, when the record has rows of one of those."""
    try:
        message = parse_record(record)
    except DataError:
        return None
    key = (message.identity.run, message.identity.attempt)
    return key if key in wanted and message.message.WhichOneof("body") in _ROWS else None
