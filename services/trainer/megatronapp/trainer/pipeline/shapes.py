"""Shapes that differ from microbatch to microbatch (--variable-seq-lengths).

That of an activation goes ahead of it, under its name and a part of its own; observers are not told. A gradient has the
shape of the output that it belongs to, which the stage that receives it has sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from megatronapp.core.trace.message_id import MessageId
from megatronapp.trainer.pipeline.port import Handle, PipelineMessages, Post

SHAPE = 15
"""The part under which it goes."""
DIMENSIONS = 3
"""[sequence, microbatch, hidden]."""


class ShapeMessages:
    """Of one rank."""

    def __init__(self, messages: PipelineMessages) -> None:
        self._messages = messages

    def outgoing(self, shape: Sequence[int], peer: int, name: MessageId, priority: int = 0) -> Post:
        tensor = torch.tensor(list(shape), dtype=torch.int64, device=self._device)
        return self._messages.outgoing(tensor, peer, name._replace(part=SHAPE), priority)

    def incoming(self, peer: int, name: MessageId) -> Post:
        tensor = torch.empty(DIMENSIONS, dtype=torch.int64, device=self._device)
        return self._messages.incoming(tensor, peer, name._replace(part=SHAPE))

    def post(self, posts: Sequence[Post], *, batch: bool = False) -> list[Handle]:
        return self._messages.transport.post(posts, batch=batch)

    @property
    def _device(self) -> torch.device | int:
        """A transport that takes any order takes any memory, and the host needs the shape."""
        return torch.cuda.current_device() if self._messages.transport.ordered else torch.device("cpu")


def received(post: Post, handle: Handle) -> tuple[int, ...]:
    """What `post` has received, once it is there."""
    handle.wait()
    return tuple(post.tensor.tolist())
