"""What a rank that stands still is in: its state as the kernel has it, its stacks, told by py-spy where that is
installed and may look, else by the rank's own faulthandler, and what its flight recorder says. Nothing here waits: what
was asked for is there later.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from megatronapp.core.errors import DataError
from megatronapp.core.trace.limits import MAX_STACK
from megatronapp.trainer.agent.bounded_answer import BoundedAnswer
from megatronapp.trainer.agent.flight_recorder import FlightRecorder
from megatronapp.trainer.agent.layout import STACKS_NAME
from megatronapp.trainer.agent.ras import NcclRas
from megatronapp.trainer.agent.stack_text import in_order, shown
from megatronapp.v1 import trace_pb2

STILL_SECONDS = 3.0
"""A rank that has not moved for so long is looked at: before anybody is blamed, and seldom in a job that runs."""
AGAIN_SECONDS = 30.0
"""And again after so long: who hears of it may have come later."""
ANSWER_SECONDS = 10.0
READ_BYTES = 4 * MAX_STACK
STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "disk sleep",
    "T": "stopped",
    "t": "traced",
    "Z": "zombie",
}
SILENT_STATES = ("stopped", "traced", "zombie")
"""In which a process can't answer."""


class StackSource:
    """Where a rank's faulthandler writes, as its hello says."""

    def __init__(self, pid: int, document: Any) -> None:
        """Raises DataError for what a rank can't mean, OSError where its memory can't be opened."""
        match document:
            case {"signal": int(number), "fd": int(fd)} if signal.SIGRTMIN <= number <= signal.SIGRTMAX and fd >= 0:
                self._signal = number
            case _:
                raise DataError("stacks must name a real-time signal and a descriptor")
        path = Path(f"/proc/{pid}/fd/{fd}")
        if STACKS_NAME not in str(path.readlink()):
            raise DataError("the descriptor for stacks is another file")
        self._process = os.pidfd_open(pid)
        self._status = Path(f"/proc/{pid}/status")
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            os.close(self._process)
            raise

    def ask(self) -> bool:
        """Whether the rank was asked: one that listens no more would be ended by the signal."""
        caught = int(_field(self._status, "SigCgt") or "0", 16)
        if not caught >> (self._signal - 1) & 1:
            return False
        with contextlib.suppress(OSError):
            os.ftruncate(self._file, 0)
            signal.pidfd_send_signal(self._process, self._signal)
            return True
        return False

    def answer(self) -> str:
        with contextlib.suppress(OSError):
            return os.pread(self._file, READ_BYTES, 0).decode(errors="replace")
        return ""

    def close(self) -> None:
        os.close(self._file)
        os.close(self._process)


class StackTaker:
    """Asks for the stacks of one rank's process, one time after the other."""

    def __init__(
        self,
        pid: int,
        source: StackSource | None,
        recorder: FlightRecorder | None = None,
        ras: NcclRas | None = None,
    ) -> None:
        self._pid = pid
        self._ras = ras
        self._source = source
        self._recorder = recorder
        self._newest: trace_pb2.Stack | None = None
        self._spy: BoundedAnswer | None = None
        self._asked = False
        self._seen = ""
        self._until = 0.0

    @property
    def asking(self) -> bool:
        return self._of_stack or any(each is not None and each.asking for each in (self._recorder, self._ras))

    @property
    def _of_stack(self) -> bool:
        return self._asked or self._spy is not None

    def ask(self) -> trace_pb2.Stack | None:
        """Begin; what can be told at once."""
        state = process_state(self._pid)
        self._until = time.monotonic() + ANSWER_SECONDS
        if self._ras is not None:
            self._ras.ask()
        if state in SILENT_STATES:
            return self._stack("", f"a {state} process can't tell")
        if self._recorder is not None:
            self._recorder.ask()
        if spy := shutil.which("py-spy"):
            command = [spy, "dump", "--pid", str(self._pid), "--native"]
            with contextlib.suppress(OSError):
                self._spy = BoundedAnswer(command, READ_BYTES, self._until)
                return None
        return self._ask_rank()

    def poll(self) -> trace_pb2.Stack | None:
        """What has been told since; None while nothing has. The stack comes first, and again with what the flight
        recorder says, and NCCL's RAS."""
        if self._of_stack:
            return self._poll_stack()
        if self._newest is None:
            return None
        recorder = self._recorder.poll() if self._recorder is not None else ""
        ras = self._ras.poll() if self._ras is not None else ""
        if not (recorder or ras):
            return None
        with_it = trace_pb2.Stack()
        with_it.CopyFrom(self._newest)
        with_it.recorder, with_it.ras = recorder or with_it.recorder, ras or with_it.ras
        self._newest = with_it
        return with_it

    def _poll_stack(self) -> trace_pb2.Stack | None:
        if self._spy is not None:
            return self._poll_spy(self._spy)
        if not self._asked or self._source is None:
            return None
        answer, before = self._source.answer(), self._seen
        self._seen = answer
        late = time.monotonic() > self._until
        if (answer and answer == before) or late:  # written whole: nothing has been added since the last look
            self._asked = False
            return self._stack(in_order(answer), "faulthandler" if answer else "the process has not answered")
        return None

    def close(self) -> None:
        if self._spy is not None:
            self._spy.close()
            self._spy = None
        if self._source is not None:
            self._source.close()
        for witness in (self._recorder, self._ras):
            if witness is not None:
                witness.close()

    def _ask_rank(self) -> trace_pb2.Stack | None:
        self._seen = ""
        self._asked = self._source is not None and self._source.ask()
        return None if self._asked else self._stack("", "the process takes no signal for it")

    def _poll_spy(self, spy: BoundedAnswer) -> trace_pb2.Stack | None:
        if (text := spy.poll()) is None:
            return None
        self._spy = None
        return self._stack(text, "py-spy") if text else self._ask_rank()

    def _stack(self, text: str, source: str) -> trace_pb2.Stack:
        state = process_state(self._pid)
        self._newest = trace_pb2.Stack(clock_ns=time.monotonic_ns(), state=state, text=shown(text), source=source)
        return self._newest


class Standing:
    """Since when a rank stands, and when it is time to look at it."""

    def __init__(self) -> None:
        self._where: Any = None
        self._since = self._looked_at = 0.0

    @property
    def since(self) -> float:
        """On the clock of `due`'s seconds."""
        return self._since

    def due(self, where: Any, now_seconds: float) -> bool:
        """`where`: equal as long as nothing moves."""
        if where != self._where:
            self._where, self._since, self._looked_at = where, now_seconds, 0.0
        before = self._looked_at or self._since
        wait = AGAIN_SECONDS if self._looked_at else STILL_SECONDS
        if now_seconds - before < wait:
            return False
        self._looked_at = now_seconds
        return True


def process_state(pid: int) -> str:
    """Empty where it is not known."""
    return STATES.get((_field(Path(f"/proc/{pid}/status"), "State") or " ")[0], "")


def _field(path: Path, name: str) -> str:
    with contextlib.suppress(OSError), path.open(encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith(f"{name}:"):
                return line.partition(":")[2].strip()
    return ""
