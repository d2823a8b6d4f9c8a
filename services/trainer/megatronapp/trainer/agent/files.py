"""The trace of a rank as a file (core.trace.file), for analysis without a collector."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from megatronapp.core.errors import UsageError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace import file as trace_file
from megatronapp.trainer.agent.outbox import Outgoing
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)


class TraceFile:
    """A sink that appends messages to `<folder>/<job>/attempt-<n>/rank-<r>.pb`; an older file of that name is replaced.

    Every message is handed to the operating system at once, so that a killed process leaves a readable file. A full
    disk ends the file, is said once and counted.
    """

    def __init__(self, folder: Path, identity: trace_pb2.Identity, *, append: bool = False) -> None:
        """`append`: what an earlier agent wrote of the same process stays. Raises UsageError."""
        path = trace_file.path_for(folder, identity.job, identity.attempt, identity.rank)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: IO[bytes] | None = path.open("ab" if append else "wb")
        except OSError as error:
            raise UsageError(f"--trace-dir: {path} can't be written: {error.strerror}") from error
        self.path = path
        self.dropped = 0

    def put(self, message: Outgoing) -> None:
        if self._file is None:
            self.dropped += message.events
            return
        try:
            trace_file.write_serialized(self._file, message.data)
            self._file.flush()
        except OSError as error:
            self.dropped += message.events
            log.error("trace_file_ended", path=str(self.path), error=error.strerror)
            self._end()

    def close(self, timeout_seconds: float) -> None:
        self._end()

    def _end(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as error:
            log.error("trace_file_ended", path=str(self.path), error=error.strerror)
