"""What a program says that is started to look at a rank: read once it has ended, so much of it and no more, and never
after its time is up. Nothing here waits for it.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Sequence


class BoundedAnswer:
    """Of a program that runs from now on until it ends, or is asked after `until` (of time.monotonic)."""

    def __init__(self, command: Sequence[str], max_bytes: int, until: float) -> None:
        """Raises OSError where it can't be started."""
        self._max_bytes = max_bytes
        self._until = until
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the process that writes it)
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.DEVNULL
            )
        except OSError:
            self._output.close()
            raise

    def poll(self) -> str | None:
        """What it has said, once: empty where it failed, or is late. None while it may still answer."""
        code = self._process.poll()
        if code is None and time.monotonic() < self._until:
            return None
        self._output.seek(0)
        text = self._output.read(self._max_bytes).decode(errors="replace") if code == 0 else ""
        self.close()
        return text

    def close(self) -> None:
        """End it where it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._output.close()
