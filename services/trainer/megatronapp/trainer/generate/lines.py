"""Requests and controls as JSON, one a line, from a stream; events as JSON, one a line, to another."""

from __future__ import annotations

import os
import threading
from queue import Empty, SimpleQueue
from typing import TextIO

from megatronapp.core.errors import UsageError
from megatronapp.core.generation import Command, Event, Finished
from megatronapp.core.generation_json import command_from_json, to_json
from megatronapp.core.generation_port import PortClosedError


class LinePort:
    """The Port of a program that reads `source`, a file descriptor, to its end. What is no request is refused, with an
    empty id."""

    def __init__(self, source: int, target: TextIO) -> None:
        self._target = target
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self.asked = 0
        threading.Thread(target=self._read, args=(source,), daemon=True).start()

    def _read(self, source: int) -> None:
        """By plain reads: a file object's lock could not be had while this thread waits and the process ends."""
        rest = b""
        while block := os.read(source, 1 << 16):
            *lines, rest = (rest + block).split(b"\n")
            for line in lines:
                self._lines.put(line)
        self._lines.put(rest)
        self._lines.put(None)

    def next_command(self, timeout_seconds: float) -> Command | None:
        while True:
            try:
                line = self._lines.get(timeout=timeout_seconds) if timeout_seconds else self._lines.get_nowait()
            except Empty:
                return None
            if line is None:
                self._lines.put(None)
                raise PortClosedError
            if not line.strip():
                continue
            self.asked += 1
            try:
                return command_from_json(line)
            except UsageError as error:
                self.emit(Finished(request="", reason="refused", message=str(error)))

    def emit(self, event: Event) -> None:
        self._target.write(f"{to_json(event)}\n")
        self._target.flush()
