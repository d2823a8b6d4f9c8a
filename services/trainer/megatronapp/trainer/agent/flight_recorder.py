"""PyTorch's flight recorder of a rank that stands still: it is asked by its pipe, and writes a file, which a process of
its own reads. Nothing here waits: what was asked for is there later, or never where PyTorch can't write it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

from megatronapp.core.errors import DataError
from megatronapp.core.trace.limits import MAX_RECORDER
from megatronapp.trainer.agent.bounded_answer import BoundedAnswer

ANSWER_SECONDS = 20.0
"""PyTorch looks at its pipe once a second, and takes some more to tell of thousands of operations."""
MAX_PATH = 4096
_UTF8_BYTES = 4


class FlightRecorder:
    """Where a rank's recorder listens and writes, as its hello says; seen as the rank sees it, also from a sidecar."""

    def __init__(self, pid: int, document: Any) -> None:
        """Raises DataError for what a rank can't mean."""
        match document:
            case {"pipe": str(pipe), "dump": str(dump)} if _plausible(pipe) and _plausible(dump):
                root = f"/proc/{pid}/root"
                self._pipe, self._dump = Path(root + pipe), Path(root + dump)
            case _:
                raise DataError("a flight recorder must name its pipe and its dump by absolute paths")
        self._before = self._seen = (0, 0)
        self._until = 0.0
        self._waiting = False
        self._reader: BoundedAnswer | None = None

    @property
    def asking(self) -> bool:
        return self._waiting or self._reader is not None

    def ask(self) -> None:
        """Begin, where the rank's recorder listens."""
        if self.asking:
            return
        self._before = self._seen = self._state()
        self._until = time.monotonic() + ANSWER_SECONDS
        self._waiting = self._write()

    def poll(self) -> str:
        """What the recorder has told, once; empty while it has not."""
        if self._reader is not None:
            return self._poll_reader(self._reader)
        if not self._waiting:
            return ""
        before, self._seen = self._seen, self._state()
        if self._seen == before != self._before and self._seen[1]:  # written whole: nothing was added since
            self._waiting = False
            self._read()
        elif time.monotonic() > self._until:
            self._waiting = False
        return ""

    def close(self) -> None:
        self._waiting = False
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _state(self) -> tuple[int, int]:
        """When the dump was written, and its size; zeros where there is none."""
        with contextlib.suppress(OSError):
            about = self._dump.lstat()
            if stat.S_ISREG(about.st_mode):
                return about.st_mtime_ns, about.st_size
        return 0, 0

    def _write(self) -> bool:
        """Whether a pipe was written to, and no other file."""
        with contextlib.suppress(OSError):
            if not stat.S_ISFIFO(self._pipe.lstat().st_mode):
                return False
            pipe = os.open(self._pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                return stat.S_ISFIFO(os.fstat(pipe).st_mode) and os.write(pipe, b"1") == 1
            finally:
                os.close(pipe)
        return False

    def _read(self) -> None:
        command = [sys.executable, "-m", "megatronapp.trainer.agent.recorder_text", str(self._dump)]
        with contextlib.suppress(OSError):
            self._reader = BoundedAnswer(command, _UTF8_BYTES * MAX_RECORDER, self._until)

    def _poll_reader(self, reader: BoundedAnswer) -> str:
        if (text := reader.poll()) is None:
            return ""
        self._reader = None
        return text[:MAX_RECORDER]


def _plausible(path: str) -> bool:
    return len(path) <= MAX_PATH and "\0" not in path and Path(path).is_absolute() and ".." not in Path(path).parts
