"""What NCCL tells, and nobody else: ranks over gloo whose all-reduces a stand-in of NCCL reports to the plug-in, and no
hook of ours sees. The members find each other by NCCL's hash, and the rank that stopped is named in the words of the
group that they are."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from megatronapp.core.findings import Cause
from megatronapp.trainer.patches import Patches
from megatronapp.trainer.plugins.faults import FaultsPlugin
from megatronapp.trainer.plugins.megatrace import MegatracePlugin, plugin
from megatronapp.trainer.plugins.scan import ScanPlugin
from megatronapp.trainer.plugins.scan.hooks.collectives import CollectiveHooks, rebind
from tests.integration.megatrace.support import CULPRIT, WORLD, hangs_of, leave_when_seen, scenario
from tests.support.training import TINY, train

nccl = pytest.importorskip("megatronapp.nccl", reason="the plug-in's wheel is not installed: pip install native/nccl")
from tests.unit.nccl.stand_in import Communicator, Nccl  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.timeout(150)]


def rank(flags: str, folder: Path) -> None:
    """A rank that trains over gloo, and believes that this is NCCL 2.28."""
    leave_when_seen(folder)
    plugin._nccl_version = lambda: (2, 28, 9)
    CollectiveHooks.install = lambda self: report_all_reduces()  # type: ignore[method-assign]
    train(f"{TINY} {flags}", plugins=(ScanPlugin, MegatracePlugin, FaultsPlugin))


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
    own = joined(group or dist.group.WORLD)
    event = own.enqueue(b"AllReduce", elements, channels=1)
    channel = own.channel(event, 0, 5)
    yield
    own.end_channel(channel, 9)


@cache
def joined(group: Any) -> Communicator:
    hash_ = zlib.crc32(f"{group.group_name}:{dist.get_process_group_ranks(group)}".encode())
    return Nccl(nccl.LIBRARY, 5).communicator(hash_, ranks=group.size(), rank=dist.get_rank(group))


@pytest.mark.exhaustive  # beside other launches nobody was named once in three
async def test_a_rank_that_stops_is_named_by_what_nccl_tells_alone(tmp_path: Path) -> None:
    os.environ.pop(plugin.VARIABLE, None)
    stops = scenario(tmp_path, "kind: hang, side: host", from_step=40)

    hangs = await hangs_of(tmp_path, f"--nccl-trace {stops}", rank)

    (hang,) = hangs.first.values()
    assert (hang.ranks, hang.cause) == ((CULPRIT,), Cause.HOST_CPU)
    others = [str(each) for each in range(WORLD) if each != CULPRIT]
    assert f"waiting for it: {', '.join(others)}" in hang.summary
    assert f"Rank {CULPRIT} has not entered all_reduce" in hang.summary
    print(hang.summary)
