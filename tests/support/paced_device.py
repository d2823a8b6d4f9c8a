"""A device beside a host, on a clock of their own: operations run one after the other and last as the test says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from megatronapp.trainer.pipeline.pace import Durations, GivenOrder, Pace


@dataclass
class Device:
    launch_seconds: float = 0.0
    """What the host needs from an operation's choice to its first kernel."""
    now: float = 0.0
    free_at: float = 0.0
    idle: float = 0.0
    """Of all that was launched so far: how long the device had nothing to do before it."""
    durations: Durations = field(default_factory=Durations)

    def pace(self) -> Pace:
        return Pace(self.mark, self.durations, clock=lambda: self.now, sleep=self.sleep)

    def given_order(self, most_launched: int) -> GivenOrder:
        return GivenOrder(self.mark, most_launched)

    def mark(self) -> Place:
        return Place(self, max(self.now, self.free_at))

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def launch(self, seconds: float) -> None:
        self.now += self.launch_seconds
        self.idle += max(0.0, self.now - self.free_at)
        self.free_at = max(self.now, self.free_at) + seconds

    def wait_for(self, at: float) -> None:
        """What is launched from here on begins no sooner."""
        self.idle += max(0.0, at - self.free_at)
        self.free_at = max(self.free_at, at)


@dataclass
class Place:
    """In the stream's work: as torch.cuda.Event."""

    device: Device
    at: float

    def query(self) -> bool:
        return self.device.now >= self.at

    def synchronize(self) -> None:
        self.device.now = max(self.device.now, self.at)

    def elapsed_time(self, end_event: Self, /) -> float:
        return (end_event.at - self.at) * 1e3
