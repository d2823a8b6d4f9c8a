"""The faults of a program: one all-reduce of a step that this rank skips, calls with another size, or puts off."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from megatronapp.core.scenario import FaultKind
from megatronapp.trainer.patches import Patches
from megatronapp.trainer.plugins.scan.hooks.collectives import rebind


class WrongCollective:
    """Acts on the first all-reduce after `arm` in a group of several ranks, and only on that one."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._kind: FaultKind | None = None
        self._put_off: Callable[[], Any] | None = None

    def arm(self, kind: FaultKind) -> None:
        """Outside of whatever else watches calls: what is not called is not seen."""
        self.close()
        self._kind = kind
        original = dist.all_reduce
        rebind(self._patches, {original: self._wrap(original)})

    def close(self) -> None:
        self._patches.restore()
        self._kind = self._put_off = None

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def all_reduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            group = kwargs.get("group", args[1] if len(args) > 1 else None)
            if dist.get_world_size(group) == 1:
                return original(tensor, *args, **kwargs)
            kind, self._kind = self._kind, None
            call = functools.partial(original, tensor, *args, **kwargs)
            if kind is FaultKind.WRONG_SIZE:
                other = torch.cat([tensor.detach().reshape(-1)] * 2)
                return original(other, *args, **kwargs)
            if kind is None:
                result, put_off = call(), self._put_off
                self._put_off = None
                if put_off is not None:
                    put_off()
                return result
            self._put_off = call if kind is FaultKind.WRONG_ORDER else None
            return _Skipped() if kwargs.get("async_op") else None

        return all_reduce


class _Skipped:
    """The handle of an operation that was not called."""

    def wait(self, *_: Any, **__: Any) -> bool:
        return True

    def is_completed(self) -> bool:
        return True
