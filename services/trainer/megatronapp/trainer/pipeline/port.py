"""The port through which stages exchange tensors, whatever carries them.

Every message is posted under its name (core/trace/message_id.py), so that who watches or carries messages never has to
conclude from an order which one is meant. Only a transport that can't tell messages apart (torch.distributed: NCCL has
no tags) needs both ends of a pair to post in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from megatronapp.core.trace.message_id import MICROBATCH_BITS, Direction, MessageId
from megatronapp.trainer.worlds import World


class Message(NamedTuple):
    """One message as this rank sees it. With the rank itself, (step, peer, sends, id) names it in the attempt.

    The batches of an evaluation belong to the step before it and go on counting microbatches where it ended.
    """

    step: int
    peer: int
    """Rank of the other end, as torchrun counts."""
    sends: bool
    id: MessageId
    bytes: int


class Post(NamedTuple):
    """A message and the tensor that is sent, or received into. Of sends to one peer that wait, the one of the greatest
    `priority` goes first, where the transport carries messages in any order."""

    message: Message
    tensor: torch.Tensor
    priority: int = 0


class Handle(Protocol):
    """Of a message on its way. On a GPU `wait` lets the current stream wait, on a CPU the host."""

    def wait(self) -> Any: ...

    def is_completed(self) -> bool: ...


class Transport(Protocol):
    """What carries messages. `errors` are what it raises when a message fails."""

    errors: tuple[type[Exception], ...]
    ordered: bool
    """Both ends of a pair must post in the same order."""

    def begin(self) -> None:
        """A pass of the schedule begins, on all ranks alike."""

    def post(self, posts: Sequence[Post], *, batch: bool) -> list[Handle]:
        """Hand messages over: at most one for each way and direction; with `batch` as one operation, where the
        transport has such. Returns a handle for each post; those that end together share one."""

    def end(self) -> None:
        """The pass has ended. Raises one of `errors` when a message failed that only a stream waited for."""

    def close(self) -> None:
        """Training has ended well."""


class Observer(Protocol):
    """Told of every message, on the training thread. Observers come and go between passes."""

    def posting(self, messages: Sequence[Message]) -> None:
        """These are handed over now, as one exchange."""

    def posted(self, messages: Sequence[Message], handle: Handle) -> None:
        """They were, and end together with this handle. Keeping it keeps tensors alive."""

    def waiting(self, messages: Sequence[Message]) -> None:
        """The rank waits for them from here, for the first time."""

    def ended(self, messages: Sequence[Message]) -> None:
        """It has waited. Messages that nobody waits for end without this call."""

    def idling(self) -> None:
        """The rank has nothing to do until one of those that it has posted comes, whichever it is."""


class PipelineMessages:
    """One rank's messages to the stages before and after it, its peers in `group`, whom callers name by their rank in
    the world."""

    def __init__(self, transport: Transport, group: dist.ProcessGroup, world: World) -> None:
        self.transport = transport
        self.group = group
        self._world = world
        self.observers: list[Observer] = []
        self.step = 0
        self._microbatches_begun = 0

    # ---- posting

    def send(self, tensor: torch.Tensor, peer: int, message: MessageId, priority: int = 0) -> Handle:
        return self.exchange([self.outgoing(tensor, peer, message, priority)])[0]

    def receive(self, tensor: torch.Tensor, peer: int, message: MessageId) -> Handle:
        return self.exchange([self.incoming(tensor, peer, message)])[0]

    def outgoing(self, tensor: torch.Tensor, peer: int, message: MessageId, priority: int = 0) -> Post:
        return Post(Message(self.step, self._world.ranks[peer], True, message, tensor.nbytes), tensor, priority)

    def incoming(self, tensor: torch.Tensor, peer: int, message: MessageId) -> Post:
        return Post(Message(self.step, self._world.ranks[peer], False, message, tensor.nbytes), tensor)

    def exchange(self, posts: Sequence[Post], *, batch: bool = False) -> list[Handle]:
        """Post several at once, as `Transport.post` does."""
        return self._observed(posts, batch) if self.observers else self.transport.post(posts, batch=batch)

    @staticmethod
    def wait(handles: Sequence[Handle]) -> None:
        for handle in dict.fromkeys(handles):
            handle.wait()

    def _observed(self, posts: Sequence[Post], batch: bool) -> list[Handle]:
        observers = tuple(self.observers)
        messages = [post.message for post in posts]
        for observer in observers:
            observer.posting(messages)
        handles = self.transport.post(posts, batch=batch)
        together: dict[int, ObservedHandle] = {}
        for handle, message in zip(handles, messages, strict=True):
            together.setdefault(id(handle), ObservedHandle(handle, observers)).messages.append(message)
        for observed in together.values():
            for observer in observers:
                observer.posted(observed.messages, observed)
        return [together[id(handle)] for handle in handles]

    def idle(self) -> None:
        """Nothing can be run, and this has lasted."""
        for observer in self.observers:
            observer.idling()

    def chunk_of(self, message: Message) -> int:
        """The model chunk (virtual stage) of this rank that makes the tensor or takes it."""
        wraps = self.group.rank() == 0 and not downstream(message)
        return message.id.chunk + wraps

    # ---- steps and passes

    def begin_step(self, step: int) -> None:
        """Messages from here on belong to this training step."""
        self.step = step
        self._microbatches_begun = 0

    def begin_pass(self, microbatches: int) -> int:
        """A schedule begins, on all ranks alike. Returns the number of its first microbatch."""
        self.transport.begin()
        first = self._microbatches_begun
        if first + microbatches > 1 << MICROBATCH_BITS:
            first = 0  # a very long evaluation: names come again when nobody remembers their first use
        self._microbatches_begun = first + microbatches
        return first

    def end_pass(self) -> None:
        """Raises what went wrong with any message, also where only a stream waited: results must not be used then."""
        self.transport.end()

    def close(self) -> None:
        """Training has ended well: what was sent has been read."""
        self.transport.close()

    # ---- observers

    def observe(self, observer: Observer) -> None:
        """Tell it of every message from the next pass on; what begins is told to the first one first."""
        self.observers.append(observer)

    def forget(self, observer: Observer) -> None:
        self.observers.remove(observer)


class ObservedHandle:
    """A handle whose first wait is told."""

    def __init__(self, handle: Handle, observers: Sequence[Observer]) -> None:
        self.messages: list[Message] = []
        self._handle = handle
        self._observers = observers
        self.is_completed = handle.is_completed

    def wait(self) -> Any:
        observers, self._observers = self._observers, ()
        for observer in observers:
            observer.waiting(self.messages)
        result = self._handle.wait()
        for observer in reversed(observers):
            observer.ended(self.messages)
        return result


def downstream(message: Message) -> bool:
    """Whether the peer is the stage after this one: activations go there and gradients come from there."""
    return (message.id.direction is Direction.FORWARD) is message.sends
