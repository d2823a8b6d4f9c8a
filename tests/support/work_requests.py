"""A network port that sends by RDMA, and the rows that Megatrace's NCCL writes of it (megatrace_nccl.patch)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from megatronapp.core.trace.work_requests import HEADER

WINDOW = 50
"""Megatrace's TELEMETRY_WINDOWSIZE: an operation's sends have rows from this one on."""
DEPTH = 8
"""NCCL_STEPS: so many sends are under way at most."""
CHUNK = 1 << 19
LINE = 40e9
"""Bytes a second."""
NOW_NS = 1_790_000_000_000_000_000


@dataclass(frozen=True)
class SendingPort:
    card: str
    place: int
    """Of the rank that sends here, in its communicator."""
    peer: int
    communicator: int = 77
    speed: float = LINE
    every_seconds: float = 0.0
    """In which there is a chunk to send; 0: always."""

    def files(self, folder: Path) -> list[Path]:
        return [folder / f"host_{self.card}_Port0_{letter}.log" for letter in "AB"]

    def slower(self, times: float) -> SendingPort:
        return replace(self, speed=self.speed / times)

    def rows(self, operation: int, begins_ns: int, sends: int = 200, until: int | None = None) -> Iterator[str]:
        """Of one operation. until: sends behind this one do not end."""
        ends, posted = list[int](), list[int]()
        for i in range(sends + DEPTH):
            ready = begins_ns + int(i * self.every_seconds * 1e9)
            posted.append(max(ready, ends[i - DEPTH]) if i >= DEPTH else ready)
            ends.append(max(posted[i], ends[i - 1] if i else 0) + int(CHUNK / self.speed * 1e9))
        for i in range(WINDOW - 1, min(sends, until or sends)):
            outstanding = sum(posted[j] <= ends[i] for j in range(i + 1, min(i + 1 + DEPTH, sends)))
            window = (WINDOW - 1) * CHUNK * 0.93 * 8 / (ends[i] - ends[i + 1 - WINDOW])
            at = time.strftime("%Y%m%d%H%M%S", time.localtime(ends[i] // 10**9))
            yield (
                f"{at},{self.communicator},{self.place},{self.peer},0,2,{operation},10.0.0.1,10.0.1.1,{int(window)},"
                f"{outstanding},{outstanding * CHUNK},{ends[i]}"
            )


def write(path: Path, rows: list[str]) -> None:
    path.write_text("\n".join([HEADER, *rows, ""]))


class OpenPort:
    """Whose two files a process has open, and writes as Megatrace's NCCL does: row by row."""

    def __init__(self, folder: Path, port: SendingPort) -> None:
        self.port = port
        self._files = [path.open("w") for path in port.files(folder)]
        self._at_ns, self._operation = NOW_NS, 0
        for file in range(len(self._files)):
            self.write(HEADER + "\n", file)

    def write(self, text: str, file: int = 0) -> None:
        self._files[file].write(text)
        self._files[file].flush()

    def send(self, sends: int = 200, *, file: int = 0, until: int | None = None, at_ns: int | None = None) -> None:
        """An operation, a second after the one before or at a time."""
        self._operation, self._at_ns = self._operation + 1, at_ns or self._at_ns + 10**9
        self.write("".join(f"{row}\n" for row in self.port.rows(self._operation, self._at_ns, sends, until)), file)

    def begin_again(self, file: int) -> None:
        self._files[file].seek(0)
        self._files[file].truncate()
        self.write(HEADER + "\n", file)

    def close(self) -> None:
        for file in self._files:
            file.close()
