"""What the kernel tells of a rank's process, whatever the process itself is doing."""

from __future__ import annotations

import os

_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_MAX_BYTES = 4096
_PAGE = os.sysconf("SC_PAGESIZE")


class RankProcess:
    def __init__(self, pid: int, thread: int) -> None:
        """`thread`: the id of the training thread."""
        self._process = f"/proc/{pid}"
        self._thread = f"{self._process}/task/{thread}"

    def thread_times(self) -> tuple[int, int]:
        """(CPU time, run-queue wait) of the training thread in ns since it began; 0 where unknown."""
        try:
            cpu, wait, _ = _content(f"{self._thread}/schedstat").split()
            return int(cpu), int(wait)
        except (OSError, ValueError):
            return self._cpu_ns(), 0

    def resident_bytes(self) -> int:
        """0 where unknown."""
        try:
            return int(_content(f"{self._process}/statm").split()[1]) * _PAGE
        except (OSError, ValueError, IndexError):
            return 0

    def _cpu_ns(self) -> int:
        """From a kernel that keeps no statistics of scheduling."""
        try:
            after_name = _content(f"{self._thread}/stat").rpartition(b")")[2].split()
            return (int(after_name[11]) + int(after_name[12])) * _TICK_NS
        except (OSError, ValueError, IndexError):
            return 0


def _content(path: str) -> bytes:
    """Of a small file of the kernel's, without what Python adds to files."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _MAX_BYTES)
    finally:
        os.close(fd)
