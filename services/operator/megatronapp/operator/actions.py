"""What can be done to the cluster. Doing one twice is the same as doing it once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megatronapp.core.trainingjob import Reason
from megatronapp.operator.snapshots import SlowMark


@dataclass(frozen=True)
class Create:
    """Make an object of the job's, unless it is there."""

    body: dict[str, Any]


@dataclass(frozen=True)
class StopJob:
    """Let a Job's pods save and end; it never starts again. Its failed pods stay, and with them their logs."""

    name: str
    reason: Reason


@dataclass(frozen=True)
class StartJob:
    """Let a Job that was made suspended start."""

    name: str


@dataclass(frozen=True)
class Delete:
    """Delete a Job or the Service, and what belongs to it."""

    kind: str
    name: str


@dataclass(frozen=True)
class MarkNode:
    """Say that a node is slow: condition SlowGPU and the platform's own taint."""

    node: str
    mark: SlowMark
    message: str


@dataclass(frozen=True)
class TripBreaker:
    """Act on no node until a person has looked."""

    message: str


@dataclass(frozen=True)
class RecordEvent:
    """An Event, for people."""

    warning: bool
    reason: str
    message: str


Action = Create | StopJob | StartJob | Delete | MarkNode | TripBreaker | RecordEvent
