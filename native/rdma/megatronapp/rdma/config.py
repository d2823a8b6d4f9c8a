"""How an engine behaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

LaneName = Literal["shm", "cuda_ipc", "ucx", "tcp"]
LANES: tuple[LaneName, ...] = ("shm", "cuda_ipc", "ucx", "tcp")

MIN_CHUNK_BYTES = 4096
MAX_OPEN_ROUNDS = 1024
"""Rounds count modulo 4096."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Times in seconds. Raises ValueError for what makes no sense."""

    lanes: tuple[LaneName, ...] = LANES
    """Which lanes may be used; the fastest of them that both ranks have is taken."""
    require: tuple[LaneName, ...] = ()
    """Lanes without which `connect` raises LaneUnavailableError, in place of taking a slower one."""
    address: str | None = None
    """Where this rank listens, and what it tells the others. None: the interface towards MASTER_ADDR, else loopback."""
    connect_timeout_seconds: float = 120.0
    deadline_seconds: float = 600.0
    """A message that is not through by then ends the connection with its peer."""
    spin_seconds: float = 50e-6
    """How long a thread looks for work before it sleeps."""
    heartbeat_seconds: float = 1.0
    dead_after_seconds: float = 10.0
    """Silence after which a peer is lost. A process that ends is known at once."""
    chunk_bytes: int | None = None
    """The largest piece that is copied at a time; None: what is fastest."""
    receive_pool_bytes: int = 512 << 20
    """GPU memory that is kept to receive into, of all peers together. Messages that are under way at once may take more
    for as long."""
    open_rounds: int = 4
    """Of the newest rounds so many may be used; tags of older ones are refused."""
    in_flight_bytes: int | None = None
    """Of matched sends to one peer so many bytes are moved at once, at least one message; the others wait, and of them
    the one of the highest priority is next. None: all are given to the lanes at once."""
    checksum: bool = False
    """CRC-32C over each piece of host memory, on both ends."""

    def __post_init__(self) -> None:
        for lane in (*self.lanes, *self.require):
            if lane not in LANES:
                raise ValueError(f"no lane {lane!r}: there are {', '.join(LANES)}")
        if missing := set(self.require) - set(self.lanes):
            raise ValueError(f"required but not allowed: {', '.join(sorted(missing))}")
        if self.chunk_bytes is not None and self.chunk_bytes < MIN_CHUNK_BYTES:
            raise ValueError(f"chunk_bytes {self.chunk_bytes} is too small: the least is {MIN_CHUNK_BYTES}")
        if not self.lanes:
            raise ValueError(f"no lane is allowed: there are {', '.join(LANES)}")
        self._check_numbers()

    def _check_numbers(self) -> None:
        if self.dead_after_seconds < 2 * self.heartbeat_seconds:
            raise ValueError("dead_after_seconds must be two heartbeats or more, or living peers are given up")
        for name in ("connect_timeout_seconds", "deadline_seconds", "heartbeat_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive")
        if not 1 <= self.open_rounds <= MAX_OPEN_ROUNDS:
            raise ValueError(f"open_rounds {self.open_rounds} must be from 1 to {MAX_OPEN_ROUNDS}")
        if self.in_flight_bytes is not None and self.in_flight_bytes <= 0:
            raise ValueError("in_flight_bytes must be positive, or None for no limit")
        for name in ("spin_seconds", "receive_pool_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
