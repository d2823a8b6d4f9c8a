"""One file a record: a line of JSON that says whose it is and why it was set aside, then the record's bytes.

A file is named after its job's and its record's digest, so that a journal replayed at each start sets the same record
aside once, and that one job can take no more than its share of the room.
Handing a record back moves its file into `released/`, where the service finds it; a service that fails on it again
sets it aside again. Files are written under another name first: a reader sees whole ones only.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

from prometheus_client import Counter

from megatronapp.core.errors import DataError, NotFoundError
from megatronapp.core.job_series import JobSeries
from megatronapp.core.logging import get_logger
from megatronapp.core.metrics import job_labels

log = get_logger(__name__)

SUFFIX = ".record"
RELEASED = "released"
MAX_RECORDS = 1_000
MAX_BYTES = 256 << 20
JOB_SHARE = 0.1
"""Of both, that one job may take."""
MAX_REASON = 500
"""Characters kept of what went wrong."""
MAX_JOB_NAME = 63 + 1 + 253
"""Characters of `<namespace>/<name>`; what is longer, as a record that can't be true may say, names no job."""
RECOUNT_SECONDS = 10.0
"""A person may have handed records back meanwhile; a flood of bad records must not read the folder at each one."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of a record that was set aside."""

    id: str
    run: str
    job: str
    attempt: int
    rank: int
    reason: str
    set_aside: str
    """ISO time."""
    record: bytes


@dataclass(frozen=True, slots=True)
class Released:
    """A record that a person handed back. `done` takes its file away; until then it is handed back at each look."""

    entry: Entry
    path: Path

    @property
    def record(self) -> bytes:
        return self.entry.record

    def done(self) -> None:
        self.path.unlink(missing_ok=True)


class Quarantine:
    """The folder of one service. Full, it counts and logs records, and keeps what it has."""

    def __init__(
        self,
        folder: Path,
        counter: Counter,
        series: JobSeries | None = None,
        *,
        max_records: int = MAX_RECORDS,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        """`counter` has the labels of a job; `series` lets them end."""
        self._folder = folder
        self._counter = counter
        self._series = series
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._used: dict[str, _Used] = {}
        self._counted_at = -RECOUNT_SECONDS

    def put(self, record: bytes, *, run: str, job: str, attempt: int, rank: int, reason: str) -> None:
        """Set a record aside. Never raises: a disk that takes nothing must not stop the service either."""
        self._count(job if len(job) <= MAX_JOB_NAME else "")
        owner = sha256(job.encode()).hexdigest()[:8]
        identity = f"{owner}-{sha256(record).hexdigest()[:16]}"
        kept = Entry(identity, run, job, attempt, rank, reason[:MAX_REASON], _now(), record)
        path = self._folder / f"{identity}{SUFFIX}"
        about = {"job": job, "run": run, "attempt": attempt, "rank": rank, "reason": kept.reason}
        try:
            if not path.exists() and not self._take_room(owner, len(record)):
                log.error("record_lost", **about, why=f"{self._folder} is full; see megatronapp quarantine list")
                return
            _write(path, kept)
        except OSError as error:
            log.error("record_lost", **about, why=str(error))
            return
        log.error("record_quarantined", **about, file=str(path))

    def take_released(self) -> list[Released]:
        """What was handed back and is not `done`, oldest first. An unreadable file is skipped and logged."""
        found = []
        for path in _by_age(self._folder / RELEASED):
            try:
                found.append(Released(_read(path), path))
            except (OSError, DataError) as error:
                log.error("released_record_unreadable", file=str(path), error=str(error))
        return found

    def _count(self, job: str) -> None:
        if self._series is not None:
            self._series.touch(job)
        self._counter.labels(**job_labels(job)).inc()

    def _take_room(self, owner: str, size: int) -> bool:
        if time.monotonic() - self._counted_at >= RECOUNT_SECONDS:
            self._used, self._counted_at = _used(self._folder), time.monotonic()
        own = self._used.setdefault(owner, _Used())
        everybody = _Used(sum(u.records for u in self._used.values()), sum(u.bytes for u in self._used.values()))
        if not everybody.fits(size, self._max_records, self._max_bytes):
            return False
        if not own.fits(size, max(1, int(JOB_SHARE * self._max_records)), JOB_SHARE * self._max_bytes):
            return False
        own.records += 1
        own.bytes += size
        return True


@dataclass(slots=True)
class _Used:
    records: int = 0
    bytes: int = 0

    def fits(self, size: int, max_records: int, max_bytes: float) -> bool:
        return self.records < max_records and self.bytes + size <= max_bytes


def _used(folder: Path) -> dict[str, _Used]:
    """By the owner in the files' names."""
    found: dict[str, _Used] = {}
    for path in _files(folder):
        used = found.setdefault(path.name.partition("-")[0], _Used())
        used.records += 1
        used.bytes += path.stat().st_size
    return found


def user_folder(service: str) -> Path:
    """Where a service without a data folder of its own sets records aside when nobody says otherwise."""
    try:
        home = Path.home()
    except RuntimeError:  # a container's user may have none
        return Path(tempfile.gettempdir(), "megatronapp", service, "quarantine")
    return home / ".local/share/megatronapp" / service / "quarantine"


def entries(folder: Path) -> list[Entry]:
    """All records set aside, oldest first. Raises NotFoundError without such a folder, DataError for a bad file."""
    if not folder.is_dir():
        raise NotFoundError(f"{folder} is not there: nothing was set aside, or the service keeps it elsewhere")
    return sorted((_read(path) for path in _files(folder)), key=lambda found: found.set_aside)


def entry(folder: Path, identity: str) -> Entry:
    """One record by its id or the beginning of it. Raises NotFoundError, DataError."""
    return _read(_path_of(folder, identity))


def release(folder: Path, identity: str) -> Entry:
    """Hand a record back to the service. Raises NotFoundError, DataError."""
    path = _path_of(folder, identity)
    found = _read(path)
    (folder / RELEASED).mkdir(exist_ok=True)
    os.utime(path)  # released records are taken up in this order
    path.rename(folder / RELEASED / path.name)
    return found


def _path_of(folder: Path, identity: str) -> Path:
    paths = [path for path in _files(folder) if path.name.startswith(identity)] if identity else []
    if len(paths) != 1:
        raise NotFoundError(f"{len(paths)} records in {folder} begin with {identity!r}; name one as `list` shows it")
    return paths[0]


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.glob(f"*{SUFFIX}") if path.is_file())


def _by_age(folder: Path) -> list[Path]:
    """Files, the one that was handed back first first."""
    ages = {}
    for path in _files(folder):
        with contextlib.suppress(FileNotFoundError):
            ages[path] = path.stat().st_mtime_ns
    return sorted(ages, key=lambda path: ages[path])


def _write(path: Path, kept: Entry) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    head = {name: value for name, value in asdict(kept).items() if name != "record"}
    draft = path.with_suffix(".part")
    draft.write_bytes(json.dumps(head).encode() + b"\n" + kept.record)
    draft.replace(path)


def _read(path: Path) -> Entry:
    head, _, record = path.read_bytes().partition(b"\n")
    try:
        return Entry(**json.loads(head), record=record)
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} is no quarantined record: {error}") from error


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")
