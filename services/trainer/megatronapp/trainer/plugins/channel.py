"""What plug-ins and this rank's agent say to each other.

The segment and the socket belong to scan, which connects the channel when it is created, before any other plug-in. A
plug-in that wants to write frames asks for their ring's size in `prepare`; scan is on then, whatever its own flags say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from megatronapp.core.trace.values import Phase

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Line(Protocol):
    """The rank's end of the way to its agent."""

    def write_frame(self, descriptor: Buffer, payload: Buffer) -> None:
        """See Recorder.write_frame."""

    def say(self, key: str, value: Any) -> None:
        """A JSON value under a key of its own; lost where no agent is there."""

    def received(self) -> list[tuple[str, Any]]:
        """What the agent has said since the last call, never waiting."""

    def enabled(self) -> bool:
        """Whether the trace control in force lets steps be traced."""

    def mark_step(self, phase: Phase) -> None:
        """The step now running, or the next one, is no ordinary one: its summary says so."""


@dataclass(slots=True)
class AgentChannel:
    """For the training thread alone."""

    frame_bytes: int = 0
    """Of the ring of frames, a power of two; 0: nobody writes frames."""
    operations_fd: int = -1
    """Of the segment with operations of NCCL; -1: none."""
    line: Line | None = None
    introduce: Callable[[], tuple[str, Any]] | None = None
    """What a plug-in has to say in the hello of each connection: a key and its value."""
