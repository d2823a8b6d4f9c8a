"""The handle that stands for an asynchronous operation's own."""

from __future__ import annotations

import torch.distributed as dist

from megatronapp.trainer.plugins.scan.hooks.collectives import TracedWork


def test_a_traced_handle_is_an_instance_of_what_it_stands_for() -> None:
    """FSDP2 waits for a handle only where isinstance says that it is torch's."""
    assert isinstance(TracedWork(dist.Work()), dist.Work)
    assert not isinstance(TracedWork(object()), dist.Work)
