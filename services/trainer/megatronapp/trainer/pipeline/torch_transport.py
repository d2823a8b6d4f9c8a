"""Messages over torch.distributed, posted by megatron-core's own functions and so bit for bit as it would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from megatron.core.pipeline_parallel import p2p_communication

from megatronapp.trainer.pipeline.port import Handle, Message, Post, downstream

KEYS = {(False, True): "send_prev", (False, False): "recv_prev", (True, True): "send_next", (True, False): "recv_next"}
"""(to or from the next stage, sent) -> megatron-core's word, in the order in which it batches them."""


class TorchTransport:
    """Each pair's messages are matched in the order in which both ends post them."""

    errors: tuple[type[Exception], ...] = ()
    ordered = True

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        ranks = dist.get_process_group_ranks(group)
        place = group.rank()
        self._previous, self._next = ranks[place - 1], ranks[(place + 1) % len(ranks)]

    def begin(self) -> None:
        pass

    def end(self) -> None:
        pass

    def close(self) -> None:
        pass

    def post(self, posts: Sequence[Post], *, batch: bool) -> list[Handle]:
        tensors = {key_of(post.message): post.tensor for post in posts}
        options: dict[str, Any] = {
            "group": self._group,
            "prev_pipeline_rank": self._previous,
            "next_pipeline_rank": self._next,
            **{f"tensor_{key}": tensors.get(key) for key in KEYS.values()},
        }
        handles: dict[str, Handle]
        if batch:
            works = p2p_communication._batched_p2p_ops(**options)
            posted = [key for key in KEYS.values() if key in tensors]
            # NCCL carries a batch as one operation, of one work.
            handles = dict(zip(posted, works * len(posted) if len(works) == 1 else works, strict=True))
        else:
            handles = p2p_communication._p2p_ops(**options)
        return [handles[key_of(post.message)] for post in posts]


def key_of(message: Message) -> str:
    return KEYS[downstream(message), message.sends]
