"""One checkpoint on its way to the disk: by a thread over a copy in the host's memory, while training goes on.

No process is forked: one that holds threads, sockets and a GPU does not survive that. All that ranks do together
(agreeing that all have written, the metadata, the rename) is done by the training thread, between two steps.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.async_utils import AsyncRequest
from megatron.core.dist_checkpointing.strategies.filesystem_async import FileSystemWriterAsync
from torch.distributed.checkpoint.api import CheckpointException

from megatronapp.core.errors import UnavailableError

Write = Callable[..., Any]


def collect_in_process() -> None:
    """Before a save is asked for. By default the writers' results come through a process of its own, which imports
    torch and takes each rank seconds; who waits for its writers, or has them in a thread, needs none."""
    filesystem_async._results_queue = queue.SimpleQueue()


def failed(step: int, folder: Path, error: BaseException) -> UnavailableError:
    return UnavailableError(
        f"the checkpoint of step {step} could not be written to {folder} (the ones before it are whole): {error}; "
        "make room there or give another --save"
    )


class Writing:
    """All ranks make one, ask `is_done`, and call `finish`, together."""

    def __init__(self, request: AsyncRequest, publish: Callable[[], None], *, step: int, final: Path) -> None:
        """`publish` makes what was written the newest checkpoint; all ranks call it."""
        self.step, self.final = step, final
        self._request, self._publish = request, publish
        self._thread = threading.Thread(target=_writer(request), name="checkpoint", daemon=True)
        self._thread.start()

    def is_done(self, device: torch.device) -> bool:
        """Whether every rank has written its part; the same answer on all."""
        under_way = torch.tensor([int(self._thread.is_alive())], device=device)
        dist.all_reduce(under_way, op=dist.ReduceOp.MAX)
        return not int(under_way)

    def finish(self) -> Path:
        """Waits for what is still being written. Raises UnavailableError on all ranks."""
        self._thread.join()
        try:
            for finalize in self._request.finalize_fns:
                finalize()
        except (OSError, CheckpointException) as error:
            raise failed(self.step, self.final.parent, error) from error
        self._publish()
        return self.final


def _writer(request: AsyncRequest) -> Callable[[], None]:
    """Of this rank's part, from a copy made now."""
    if request.preload_fn is None or request.async_fn is None:
        return lambda: None
    transforms = request.async_fn.args[0]
    buckets, results = _host_copy(request.preload_fn()), request.async_fn_args[2]
    return lambda: _write(transforms, buckets, results)


def _host_copy(buckets: Any) -> list[Any]:
    """megatron-core's write buckets with tensors of their own: those of a CPU are still the weights."""
    return [
        (file, key, (content, [(item, tensor.clone()) for item, tensor in tensors]))
        for file, key, (content, tensors) in buckets
    ]


def _write(transforms: list[Any], buckets: list[Any], results: Any) -> None:
    """As megatron-core's writers do, one after the other; what went wrong is told where the results are read."""
    written: dict[int, Any] = {}
    for index, bucket in enumerate(buckets):
        outcome: queue.SimpleQueue[Any] = queue.SimpleQueue()
        count: queue.Queue[int] = queue.Queue()
        count.put(index)
        FileSystemWriterAsync.write_preloaded_data(transforms, index, bucket, outcome, count, True)
        _, found = outcome.get()
        if isinstance(found, Exception):
            results.put(found)
            return
        written[index] = found
    results.put(written)
