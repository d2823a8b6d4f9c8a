"""Messages that wait for the collector's acknowledgement: bounded, and the oldest detail goes first. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from megatronapp.trainer.agent.outbox import Outgoing


class ResendBuffer:
    """Keeps what is not acknowledged, by `seq`; not thread-safe.

    Above `capacity_bytes` it forgets the oldest TraceBatch, when there is none the oldest heartbeat, and only then the
    oldest summary. What is forgotten is counted in `dropped`, in events (spans of a batch; 1 for others).
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._entries: dict[int, Outgoing] = {}
        self._oldest: dict[str, deque[int]] = {body: deque() for body in ("batch", "heartbeat", "summary")}
        self._unsent: deque[int] = deque()
        self.bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, message: Outgoing) -> None:
        self._entries[message.seq] = message
        self._oldest[message.body].append(message.seq)
        self._unsent.append(message.seq)
        self.bytes += len(message.data)
        while self.bytes > self._capacity and self._drop():
            pass

    def next_unsent(self, most_bytes: int = 0) -> list[Outgoing]:
        """The first messages that were not handed out on this connection, of `most_bytes` together, but at least one
        where there is one; they stay until acknowledged."""
        found: list[Outgoing] = []
        left_bytes = most_bytes
        while self._unsent:
            message = self._entries.get(self._unsent[0])
            if found and message is not None and len(message.data) > left_bytes:
                break
            self._unsent.popleft()
            if message is not None:
                found.append(message)
                left_bytes -= len(message.data)
        return found

    def reconnected(self) -> None:
        """All that is not acknowledged is to be sent again, in order."""
        self._unsent = deque(self._entries)

    def acknowledge(self, seq: int) -> None:
        """Forget everything up to and including `seq`."""
        for known in list(self._up_to(seq)):
            self.bytes -= len(self._entries.pop(known).data)
        for queue in self._oldest.values():
            while queue and queue[0] <= seq:
                queue.popleft()

    def leave_out_after(self, seq: int) -> bool:
        """Drop the first message behind `seq`, which the collector will never take; whether there was one."""
        refused = next((known for known in self._entries if known > seq), None)
        return self._leave_out(refused)

    def leave_out_largest(self) -> bool:
        """Drop the largest message; whether there was one."""
        return self._leave_out(max(self._entries, key=lambda known: len(self._entries[known].data), default=None))

    def _leave_out(self, seq: int | None) -> bool:
        if seq is None:
            return False
        entry = self._entries.pop(seq)
        self.bytes -= len(entry.data)
        self.dropped += entry.events
        return True

    def sent_unacknowledged(self) -> bool:
        """Whether something that was handed out has not been acknowledged."""
        return len(self._entries) > len(self._unsent)

    def _up_to(self, seq: int) -> Iterator[int]:
        for known in self._entries:
            if known > seq:
                return
            yield known

    def _drop(self) -> bool:
        for queue in self._oldest.values():
            while queue:
                seq = queue.popleft()
                if seq in self._entries:
                    return self._leave_out(seq)
        return False
