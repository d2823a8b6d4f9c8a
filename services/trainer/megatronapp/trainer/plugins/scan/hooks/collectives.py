"""Collectives: the functions of torch.distributed, also where megatron-core has bound them by name at its import.

An operation is counted in its communicator's frontier always, and becomes a span inside a step. The span of an
asynchronous operation lasts from the call to the end of the wait for it; only the wait is time of the rank's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from megatronapp.trainer.plugins.scan.frontier import Pending, Track, finished_of
from megatronapp.trainer.plugins.scan.hooks.probe import Patches, Probe
from megatronapp.trainer.plugins.scan.operations import Operation

ASYNC_STREAM = 4

# Function name -> (operation, name and position of the argument that holds the larger side's data).
FUNCTIONS: dict[str, tuple[Operation, str, int]] = {
    "all_reduce": (Operation.ALL_REDUCE, "tensor", 0),
    "all_gather": (Operation.ALL_GATHER, "tensor_list", 0),
    "all_gather_into_tensor": (Operation.ALL_GATHER, "output_tensor", 0),
    "_all_gather_base": (Operation.ALL_GATHER, "output_tensor", 0),
    "reduce_scatter": (Operation.REDUCE_SCATTER, "input_list", 1),
    "reduce_scatter_tensor": (Operation.REDUCE_SCATTER, "input", 1),
    "_reduce_scatter_base": (Operation.REDUCE_SCATTER, "input", 1),
    "broadcast": (Operation.BROADCAST, "tensor", 0),
    "all_to_all": (Operation.ALL_TO_ALL, "input_tensor_list", 1),
    "all_to_all_single": (Operation.ALL_TO_ALL, "input", 1),
    "barrier": (Operation.BARRIER, "", -1),
}


class CollectiveHooks:
    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._patches = Patches()
        self._inside: _Coalesced | None = None

    def install(self) -> None:
        wrappers: dict[Callable[..., Any], Callable[..., Any]] = {}
        for name, (operation, data, position) in FUNCTIONS.items():
            original = getattr(dist, name)
            wrappers[original] = self._wrap(original, operation, data, position)
        coalescing = dist._coalescing_manager  # type: ignore[attr-defined]  # what DDP's buffers use
        wrappers[coalescing] = self._wrap_coalescing(coalescing)
        rebind(self._patches, wrappers)

    def remove(self) -> None:
        self._patches.restore()

    def _wrap(self, function: Callable[..., Any], operation: Operation, data: str, position: int) -> Callable[..., Any]:
        @functools.wraps(function)
        def collective(*args: Any, **kwargs: Any) -> Any:
            size = size_of(kwargs[data] if data in kwargs else args[position] if 0 <= position < len(args) else None)
            if self._inside is not None:
                self._inside.note(operation, size)
                return function(*args, **kwargs)
            group = kwargs.get("group") or next((a for a in args if isinstance(a, dist.ProcessGroup)), None)
            if group is dist.GroupMember.NON_GROUP_MEMBER:
                return function(*args, **kwargs)
            call = _Call(self._probe, group, operation, size)
            call.begin()
            try:
                result = function(*args, **kwargs)
            except BaseException:
                call.abandon()
                raise
            # Without async_op the functions return None.
            return call.end() if result is None else call.issued(TracedWork(result, call))

        return collective

    def _wrap_coalescing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def coalescing_manager(
            group: Any = None, device: Any = None, async_ops: bool | None = False, **kwargs: Any
        ) -> Iterator[Any]:
            call = _Coalesced(self._probe, group)
            self._inside = call
            try:
                with function(group, device, async_ops, **kwargs) as manager:
                    handle = _CoalescedWork(manager, call)
                    try:
                        yield handle
                    finally:
                        self._inside = None
                        call.begin()
            except BaseException:
                call.abandon()
                raise
            if async_ops:
                call.issued(handle)
            else:
                call.end()

        return coalescing_manager


class _Call:
    """One operation from its call to its completion."""

    def __init__(self, probe: Probe, group: Any, operation: int, size: int) -> None:
        self._probe = probe
        self._operation = operation
        self._size = size
        self._index = probe.communicators.index(group)
        self._track: Track = probe.frontiers.track(self._index)
        self._entry: Pending | None = None
        self._recorded = False
        self._issue: Any = None

    def begin(self) -> None:
        self._entry = self._track.enter(self._operation)
        self._begin_span()

    def end(self) -> None:
        """The call or the wait has returned: the device is past the operation when it is past this point."""
        entry = self._entry
        if entry is None:
            return
        if not self._recorded:
            entry.end = self._probe.recorder.mark()
            return
        self._recorded = False
        stream = 0 if self._issue is None else ASYNC_STREAM
        entry.end = self._probe.recorder.end_operation(self._index, -1, entry.sequence, self._size, stream, self._issue)

    def issued(self, handle: TracedWork) -> TracedWork:
        """An asynchronous call has returned: its span ends with the handle's wait."""
        if self._entry is not None:
            self._entry.finished = finished_of(handle)
        if self._recorded:
            self._recorded = False
            self._issue = self._probe.recorder.cancel()
        return handle

    def wait_begin(self) -> None:
        if self._entry is not None:
            self._begin_span()

    def abandon(self) -> None:
        if self._recorded:
            self._probe.recorder.cancel()

    def _begin_span(self) -> None:
        if self._probe.on:
            self._recorded = True
            self._probe.recorder.begin(self._operation)


class _Coalesced(_Call):
    """Several collectives that torch sends as one when their context ends."""

    def __init__(self, probe: Probe, group: Any) -> None:
        super().__init__(probe, group, Operation.ALL_REDUCE, 0)
        self._empty = True

    def note(self, operation: int, size: int) -> None:
        self._empty = False
        self._operation = operation
        self._size += size

    def begin(self) -> None:
        if not self._empty:
            super().begin()


class TracedWork:
    """The handle of an asynchronous operation; the first wait ends the operation's span."""

    def __init__(self, work: Any, call: _Call) -> None:
        self._work = work
        self._call: _Call | None = call

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        call, self._call = self._call, None
        if call is None:
            return self._work.wait(*args, **kwargs)
        call.wait_begin()
        try:
            return self._work.wait(*args, **kwargs)
        finally:
            call.end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class _CoalescedWork(TracedWork):
    """The manager that `with _coalescing_manager(...) as cm` binds: filled inside, waited for later."""

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._work.works)


def rebind(patches: Patches, replacements: dict[Callable[..., Any], Callable[..., Any]]) -> None:
    """Replace functions in torch.distributed and wherever a module of megatron-core holds them under any name."""
    for name, module in list(sys.modules.items()):
        if module is None or not (name == "torch.distributed" or name.startswith("megatron.core")):
            continue
        for attribute, value in list(vars(module).items()):
            if callable(value) and (wrapper := _lookup(replacements, value)) is not None:
                patches.set(module, attribute, wrapper)


def _lookup(replacements: dict[Callable[..., Any], Callable[..., Any]], value: Any) -> Callable[..., Any] | None:
    try:
        return replacements.get(value)
    except TypeError:  # not hashable
        return None


def size_of(data: Any) -> int:
    """Bytes of a tensor or of a list of tensors."""
    if isinstance(data, torch.Tensor):
        return data.numel() * data.element_size()
    if isinstance(data, list | tuple):
        return sum(size_of(tensor) for tensor in data)
    return 0
