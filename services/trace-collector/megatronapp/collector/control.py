"""Run-time trace control: from the bus to the ranks that are connected, and to those that connect later."""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol

from google.protobuf.message import DecodeError

from megatronapp.core.bus import Bus, Topic
from megatronapp.core.errors import DataError
from megatronapp.core.logging import get_logger
from megatronapp.core.trace.validate import check_control
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)


class Listener(Protocol):
    def control(self, control: trace_pb2.TraceControl) -> None:
        """Send it to the rank."""


class Controls:
    """The last TraceControl of each run, and who is to be told of the next. `last` is run → serialized TraceControl,
    shared with who makes it outlive the process."""

    def __init__(self, bus: Bus, last: dict[str, bytes]) -> None:
        self._bus = bus
        self._last = last
        self._listeners: dict[str, set[Listener]] = defaultdict(set)

    def join(self, run: str, listener: Listener) -> None:
        self._listeners[run].add(listener)
        if (control := _read(run, self._last.get(run))) is not None:
            listener.control(control)

    def leave(self, run: str, listener: Listener) -> None:
        self._listeners[run].discard(listener)
        if not self._listeners[run]:
            del self._listeners[run]

    async def run(self) -> None:
        """Hand on what comes from the bus, until cancelled; of what came before the start the last of each run."""
        async for messages in self._bus.follow(Topic.TRACE_CONTROL):
            for run, value in {message.key: message.value for message in messages}.items():
                self._hand_on(run, value)

    def _hand_on(self, run: str, value: bytes) -> None:
        control = _read(run, value)
        if control is None:
            return
        self._last[run] = value
        listeners = list(self._listeners.get(run, ()))
        log.info("trace_control", run=run, ranks=len(listeners), enabled=control.enabled)
        for listener in listeners:
            listener.control(control)


def _read(run: str, value: bytes | None) -> trace_pb2.TraceControl | None:
    """None where there is none, or none that a rank can follow."""
    if value is None:
        return None
    try:
        control = trace_pb2.TraceControl.FromString(value)
        check_control(control)
    except (DecodeError, DataError) as error:
        log.warning("trace_control_unreadable", run=run, error=str(error))
        return None
    return control
