"""A stand-in of NCCL beside ranks that train over gloo: it reports their all-reduces to the plug-in, and no hook of
ours sees them."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

import torch.distributed as dist

from megatronapp import nccl
from megatronapp.trainer.patches import Patches
from megatronapp.trainer.plugins.megatrace import plugin
from megatronapp.trainer.plugins.scan.hooks.collectives import CollectiveHooks, rebind
from tests.unit.nccl.stand_in import Communicator, Nccl

stands = threading.Event()
"""Set: what all ranks begin from now on does not end."""


def believe_in_nccl() -> None:
    """This rank believes that gloo is NCCL 2.28."""
    plugin._nccl_version = lambda: (2, 28, 9)
    CollectiveHooks.install = lambda self: report_all_reduces()  # type: ignore[method-assign]


def report_all_reduces() -> None:
    """NCCL tells its plug-in of each when it is called, begins and ends; of what is coalesced as one."""
    coalescing = dist._coalescing_manager
    rebind(Patches(), {dist.all_reduce: reported(dist.all_reduce), coalescing: reported_together(coalescing)})


_inside: list[int] = []
"""Elements of what is coalesced now."""


def reported(all_reduce: Callable[..., Any]) -> Callable[..., Any]:
    def called(tensor: Any, *args: Any, group: Any = None, **kwargs: Any) -> Any:
        if _inside:
            _inside.append(tensor.numel())
            return all_reduce(tensor, *args, group=group, **kwargs)
        with running(group, tensor.numel()):
            return all_reduce(tensor, *args, group=group, **kwargs)

    return called


def reported_together(coalescing: Callable[..., Any]) -> Callable[..., Any]:
    @contextmanager
    def called(group: Any = None, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with ExitStack() as ending, coalescing(group, *args, **kwargs) as manager:
            _inside.append(0)
            try:
                yield manager
            finally:
                elements = sum(_inside)
                _inside.clear()
            ending.enter_context(running(group, elements))  # it is sent as the context ends

    return called


@contextmanager
def running(group: Any, elements: int) -> Iterator[None]:
    members: Any = group or dist.group.WORLD
    own = joined(members)
    event = own.enqueue(b"AllReduce", elements, channels=1)
    channel = own.channel(event, 0, 5)
    if stands.is_set() and members.size() == dist.get_world_size():
        threading.Event().wait()
    yield
    own.end_channel(channel, 9)


@cache
def joined(group: Any) -> Communicator:
    hash_ = zlib.crc32(f"{group.group_name}:{dist.get_process_group_ranks(group)}".encode())
    return Nccl(nccl.LIBRARY, 5).communicator(hash_, ranks=group.size(), rank=dist.get_rank(group))
