"""p2p: one span for each message between pipeline stages, from its posting to the end of the wait for it.

Messages come from the trainer's port (trainer/pipeline), under their names. `sequence` counts the messages of a
directed pair and operation besides, for readers that know no names.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megatronapp.core.trace.message_id import Direction
from megatronapp.trainer.pipeline.port import Handle, Message, PipelineMessages
from megatronapp.trainer.plugins.scan.frontier import Pending
from megatronapp.trainer.plugins.scan.hooks.probe import Probe
from megatronapp.trainer.plugins.scan.operations import Operation

SEND_STREAM, RECEIVE_STREAM = 2, 3

OPERATIONS = {
    (Direction.FORWARD, True): Operation.FORWARD_SEND,
    (Direction.FORWARD, False): Operation.FORWARD_RECV,
    (Direction.BACKWARD, True): Operation.BACKWARD_SEND,
    (Direction.BACKWARD, False): Operation.BACKWARD_RECV,
}
# What a timer of megatron-core around one exchange begins with, for the time until the messages are known.
FIRST_OF_TIMER = {
    "forward-recv": Operation.FORWARD_RECV,
    "backward-recv": Operation.BACKWARD_RECV,
    "forward-send": Operation.FORWARD_SEND,
    "backward-send": Operation.BACKWARD_SEND,
    "forward-send-backward-recv": Operation.FORWARD_SEND,
    "backward-send-forward-recv": Operation.BACKWARD_SEND,
    "forward-send-forward-recv": Operation.FORWARD_SEND,
    "backward-send-backward-recv": Operation.BACKWARD_SEND,
    "forward-backward-send-forward-backward-recv": Operation.FORWARD_SEND,
}


@dataclass(slots=True)
class Posted:
    """A message that nobody has waited for yet."""

    message: Message
    operation: Operation
    communicator: int
    sequence: int
    ticket: Pending
    issued: Any
    handle: weakref.ref[Any] | None = None
    through: bool = False

    def happened(self) -> bool:
        """Without keeping the handle and its tensors alive; once it is gone nobody can wait for the message."""
        if self.handle is None:
            return False
        handle = self.handle()
        return handle is None or bool(handle.is_completed())


class P2PHooks:
    """An Observer of the port, and a TimerListener: an exchange takes the rank's time from its timer's start, when the
    tensors are there."""

    def __init__(self, probe: Probe, pipeline: PipelineMessages | None) -> None:
        self.probe = probe
        self._pipeline = pipeline
        self._exchanging = False
        self._posted: dict[Message, Posted] = {}
        self._sequences: Counter[tuple[int, int]] = Counter()

    def install(self) -> None:
        if self._pipeline is not None:
            self._pipeline.observe(self)

    def remove(self) -> None:
        if self._pipeline is not None:
            self._pipeline.forget(self)

    # ---- the timers

    def start(self, name: str) -> None:
        if self.probe.on and name in FIRST_OF_TIMER:
            self._exchanging = True
            self.probe.recorder.begin(FIRST_OF_TIMER[name])

    def stop(self, name: str) -> None:
        if name in FIRST_OF_TIMER:
            self._exchange_ends()

    def _exchange_ends(self) -> Any:
        """The mark at which the open exchange began, which is open no more; None without one."""
        exchanging, self._exchanging = self._exchanging, False
        return self.probe.recorder.cancel() if exchanging else None

    def _exchange_began(self) -> Any:
        recorder = self.probe.recorder
        if not self._exchanging:
            return recorder.mark() if self.probe.on else None
        name, _ = recorder.innermost()
        mark = recorder.cancel()
        recorder.begin(name, mark)
        return mark

    # ---- the port

    def posting(self, messages: Sequence[Message]) -> None:
        self._note_arrivals()
        issued = self._exchange_began()
        for message in messages:
            self._posted[message] = self._enqueue(message, issued)

    def posted(self, messages: Sequence[Message], handle: Handle) -> None:
        for message in messages:
            self._posted[message].handle = weakref.ref(handle)

    def waiting(self, messages: Sequence[Message]) -> None:
        if self.probe.on and (first := self._posted.get(messages[0])):
            self.probe.recorder.begin(first.operation, self._exchange_ends())

    def ended(self, messages: Sequence[Message]) -> None:
        for position, message in enumerate(messages):
            posted = self._posted.pop(message, None)
            if posted is None:
                continue
            if not self.probe.on:
                posted.ticket.end = self.probe.recorder.mark()
                continue
            if position:
                self.probe.recorder.begin(posted.operation)
            self._end(posted)

    def idling(self) -> None:
        self._note_arrivals()

    def step_end(self) -> None:
        """A schedule does not wait for some of its sends: they end here at the latest."""
        if self.probe.on:
            for posted in self._posted.values():
                if posted.issued is None:  # of an evaluation, which is not traced
                    posted.ticket.end = self.probe.recorder.mark()
                    continue
                self.probe.recorder.begin(posted.operation)
                self._end(posted)
        self._posted.clear()

    def _note_arrivals(self) -> None:
        """Messages that are through before anybody waits for them."""
        for posted in self._posted.values():
            if not posted.through and posted.happened():
                posted.through = True
                posted.ticket.complete()

    def _enqueue(self, message: Message, issued: Any) -> Posted:
        assert self._pipeline is not None  # noqa: S101  (it told of the message)
        operation = OPERATIONS[message.id.direction, message.sends]
        communicator = self.probe.communicators.index(self._pipeline.group)
        track = self.probe.frontiers.track(communicator, message.peer, message.sends)
        self._sequences[operation, message.peer] += 1
        return Posted(
            message=message,
            operation=operation,
            communicator=communicator,
            sequence=self._sequences[operation, message.peer],
            ticket=track.enter(operation, message.step, message.id.pack()),
            issued=issued,
        )

    def _end(self, posted: Posted) -> None:
        """End the open span, as this message's."""
        assert self._pipeline is not None  # noqa: S101
        recorder, message = self.probe.recorder, posted.message
        if message.sends:
            recorder.context(message.id.microbatch, self._pipeline.chunk_of(message))
        mark = recorder.end_operation(
            posted.communicator,
            message.peer,
            posted.sequence,
            message.bytes,
            SEND_STREAM if message.sends else RECEIVE_STREAM,
            posted.issued,
            message.id.pack(),
        )
        recorder.context(-1, -1)
        posted.ticket.end = mark
