"""p2p: one span for each message between pipeline stages, from its posting to the end of the wait for it.

A message's direction decides its name, also where the stage before and the stage after are the same rank; both ends
count the messages of a directed pair and name, so that a message carries the same number on both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.pipeline_parallel import p2p_communication

from megatronapp.trainer import native_p2p
from megatronapp.trainer.plugins.scan.frontier import Pending, finished_of
from megatronapp.trainer.plugins.scan.hooks.collectives import size_of
from megatronapp.trainer.plugins.scan.hooks.probe import Patches, Probe
from megatronapp.trainer.plugins.scan.operations import Operation

SEND_STREAM, RECEIVE_STREAM = 2, 3

# In the order in which megatron-core posts them: (handle's key, tensor's keyword, peer's keyword, name).
MESSAGES = (
    ("send_prev", "tensor_send_prev", "prev_pipeline_rank", Operation.BACKWARD_SEND),
    ("recv_prev", "tensor_recv_prev", "prev_pipeline_rank", Operation.FORWARD_RECV),
    ("send_next", "tensor_send_next", "next_pipeline_rank", Operation.FORWARD_SEND),
    ("recv_next", "tensor_recv_next", "next_pipeline_rank", Operation.BACKWARD_RECV),
)
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
_SENDS = frozenset({Operation.FORWARD_SEND, Operation.BACKWARD_SEND})


@dataclass(slots=True)
class Message:
    operation: Operation
    communicator: int
    peer: int
    sequence: int
    bytes: int
    microbatch: int
    chunk: int
    entry: Pending
    issued: Any


class P2PHooks:
    """Also a TimerListener: an exchange takes the rank's time from its timer's start, when the tensors are there."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self._exchanging = False
        self._posted: list[Message] = []
        self._patches = Patches()
        self._sequences: Counter[tuple[int, int]] = Counter()

    def install(self) -> None:
        for place, name in (
            (p2p_communication, "_batched_p2p_ops"),
            (p2p_communication, "_p2p_ops"),
            (native_p2p.PipelineMessages, "__call__"),
        ):
            self._patches.set(place, name, self._wrap(getattr(place, name)))

    def remove(self) -> None:
        self._patches.restore()

    def start(self, name: str) -> None:
        if self.probe.on and name in FIRST_OF_TIMER:
            self._exchanging = True
            self.probe.recorder.begin(FIRST_OF_TIMER[name])

    def stop(self, name: str) -> None:
        if name in FIRST_OF_TIMER:
            self.exchange_ends()

    def exchange_ends(self) -> Any:
        """The mark at which the open exchange began, which is open no more; None without one."""
        exchanging, self._exchanging = self._exchanging, False
        return self.probe.recorder.cancel() if exchanging else None

    def step_end(self) -> None:
        """A schedule does not wait for some of its sends: they end here at the latest."""
        if self.probe.on:
            for message in self._posted:
                if message.entry.end is None:
                    self.probe.recorder.begin(message.operation)
                    self.ended(message)
        self._posted.clear()

    def ended(self, message: Message) -> None:
        """End the open span, as this message's."""
        recorder = self.probe.recorder
        recorder.context(message.microbatch, message.chunk)
        message.entry.end = recorder.end_operation(
            message.communicator,
            message.peer,
            message.sequence,
            message.bytes,
            SEND_STREAM if message.operation in _SENDS else RECEIVE_STREAM,
            message.issued,
        )
        recorder.context(-1, -1)

    def _wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def p2p_ops(*args: Any, **kwargs: Any) -> Any:
            messages = self._post(kwargs)
            self._posted += messages.values()
            handles = function(*args, **kwargs)
            if isinstance(handles, dict):
                return {key: Handle(self, handle, [messages[key]]) for key, handle in handles.items()}
            if len(handles) == len(messages):
                pairs = zip(handles, messages.values(), strict=True)
                return [Handle(self, handle, [message]) for handle, message in pairs]
            # NCCL sends a batch as one: all its messages end with its one handle.
            return [Handle(self, handle, list(messages.values())) for handle in handles]

        return p2p_ops

    def _post(self, kwargs: dict[str, Any]) -> dict[str, Message]:
        index = self.probe.communicators.index(kwargs["group"])
        issued = self._exchange_began()
        return {
            key: self._message(operation, index, kwargs[peer], kwargs[tensor], issued)
            for key, tensor, peer, operation in MESSAGES
            if kwargs[tensor] is not None
        }

    def _exchange_began(self) -> Any:
        recorder = self.probe.recorder
        if not self._exchanging:
            return recorder.mark() if self.probe.on else None
        name, _ = recorder.innermost()
        mark = recorder.cancel()
        recorder.begin(name, mark)
        return mark

    def _message(
        self, operation: Operation, communicator: int, peer: int, tensor: torch.Tensor, issued: Any
    ) -> Message:
        probe = self.probe
        self._sequences[operation, peer] += 1
        microbatch, chunk = -1, -1
        if operation in _SENDS:
            microbatch, chunk = probe.last_forward if operation == Operation.FORWARD_SEND else probe.last_backward
        return Message(
            operation=operation,
            communicator=communicator,
            peer=peer,
            sequence=self._sequences[operation, peer],
            bytes=size_of(tensor),
            microbatch=microbatch,
            chunk=chunk,
            entry=probe.frontiers.track(communicator, peer, operation in _SENDS).enter(operation),
            issued=issued,
        )


class Handle:
    """A request whose first wait ends the spans of its messages."""

    def __init__(self, hooks: P2PHooks, handle: Any, messages: list[Message]) -> None:
        self._hooks = hooks
        self._probe = hooks.probe
        self._handle = handle
        self._messages = messages
        for message in messages:
            message.entry.finished = finished_of(self)

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        messages, self._messages = self._messages, []
        recorder, on = self._probe.recorder, self._probe.on
        if messages and on:
            recorder.begin(messages[0].operation, self._hooks.exchange_ends())
        result = self._handle.wait(*args, **kwargs)
        for position, message in enumerate(messages):
            if not on:
                message.entry.end = recorder.mark()
                continue
            if position:
                recorder.begin(message.operation)
            self._hooks.ended(message)
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._handle, name)
