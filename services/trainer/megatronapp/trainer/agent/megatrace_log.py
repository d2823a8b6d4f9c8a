"""Megatrace's variables and its log, for who has scripts and tools for them: each call of NCCL by the host's clock,
written to `rank_<r>.log` when a rank has called nothing for a while, or has died.

    [save_count 1] [1730000000.000001234] [Rank 3] Fun AllReduce Data 4096 stream 0x2 opCount 57 groupHash 83..

`stream` is the communicator's or pair's number here, since NCCL tells its plug-ins of no stream. As in the original the
newest 10,000 calls are kept.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from megatronapp.core.errors import UsageError
from megatronapp.core.logging import get_logger
from megatronapp.trainer.agent.operations import Enqueued, Lane

log = get_logger(__name__)

ENABLE, LOG_PATH, SILENCE = (f"NCCL_MEGATRACE_{name}" for name in ("ENABLE", "LOG_PATH", "SENSTIME"))
SILENCE_SECONDS = 3.0
KEPT_CALLS = 10_000
NS = 10**9
_DURATION = re.compile(r"(\d{1,9})\s*(ms|s|m|)")
_SECONDS = {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0}


@dataclass(frozen=True, slots=True)
class MegatraceSettings:
    folder: Path
    silence_seconds: float
    remark: str = ""
    """What the user must know of how a variable was understood."""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> MegatraceSettings | None:
        """None where Megatrace is not enabled. Raises UsageError for a time that is none."""
        if environment.get(ENABLE, "0").strip().lower() in ("", "0", "false", "off"):
            return None
        text = environment.get(SILENCE, "").strip()
        match = _DURATION.fullmatch(text.lower())
        if text and not match:
            raise UsageError(f"{SILENCE}={text}: give a time with its unit, such as 300s or 3000ms")
        seconds = int(match[1]) * _SECONDS[match[2]] if match else SILENCE_SECONDS
        bare = bool(match) and not match[2] if match else False
        remark = f"{SILENCE}={text} is {text} milliseconds; write {text}s for seconds" if bare else ""
        return cls(Path(environment.get(LOG_PATH) or ".").absolute(), seconds, remark)


class MegatraceLog:
    """One rank's. For the agent's thread."""

    def __init__(self, settings: MegatraceSettings, rank: int) -> None:
        self._settings = settings
        self._rank = rank
        self._calls: deque[tuple[Enqueued, int]] = deque(maxlen=KEPT_CALLS)
        """With the hash of its communicator."""
        self._called_at = 0.0
        self._saved = True
        self._saves = 0
        self._unix_ns = time.time_ns() - time.monotonic_ns()

    def note(self, operations: Iterable[Enqueued], lanes: Mapping[int, Lane], now_seconds: float) -> None:
        for operation in operations:
            lane = lanes.get(operation.lane)
            self._calls.append((operation, lane.communicator if lane else 0))
            self._called_at, self._saved = now_seconds, False

    def tick(self, now_seconds: float) -> None:
        """Write where nothing was called for long enough since the last time."""
        if not self._saved and now_seconds - self._called_at >= self._settings.silence_seconds:
            self.save()

    def save(self) -> None:
        if self._saved:
            return
        self._saved = True
        self._saves += 1
        lines = [self._line(operation, communicator) for operation, communicator in self._calls]
        try:
            self._settings.folder.mkdir(parents=True, exist_ok=True)
            (self._settings.folder / f"rank_{self._rank}.log").write_text("\n".join(lines) + "\n")
        except OSError as error:
            log.warning("no_megatrace_log", rank=self._rank, folder=str(self._settings.folder), reason=error.strerror)

    def _line(self, operation: Enqueued, communicator: int) -> str:
        seconds, ns = divmod(max(operation.at_ns + self._unix_ns, 0), NS)
        name = re.sub(r"\W", "_", operation.operation, flags=re.ASCII) or "_"
        return (
            f"[save_count {self._saves}] [{seconds}.{ns:09d}] [Rank {self._rank}] Fun {name} Data {operation.count} "
            f"stream {operation.lane:#x} opCount {operation.number} groupHash {communicator:x}"
        )
