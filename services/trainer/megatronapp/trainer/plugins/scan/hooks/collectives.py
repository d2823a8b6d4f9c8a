"""Collectives: the functions of torch.distributed, also where megatron-core has bound them by name at its import.

An operation is counted in its communicator's frontier always, and becomes a span inside a step. The span of an
asynchronous operation lasts from the call to the end of the wait for it; only the wait is time of the rank's.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.distributed as dist

from megatronapp.trainer.agent.calls import DATA_TYPES, Call
from megatronapp.trainer.patches import Patches
from megatronapp.trainer.plugins.scan.frontier import finished_of
from megatronapp.trainer.plugins.scan.hooks.probe import Probe
from megatronapp.trainer.plugins.scan.operations import Operation

ASYNC_STREAM = 4
UNTOLD = Call()

# Function name -> (operation, name and position of the argument that holds the larger side's data). Which of them there
# are depends on PyTorch's version.
FUNCTIONS: dict[str, tuple[Operation, str, int]] = {
    "all_reduce": (Operation.ALL_REDUCE, "tensor", 0),
    "all_gather": (Operation.ALL_GATHER, "tensor_list", 0),
    "all_gather_into_tensor": (Operation.ALL_GATHER, "output_tensor", 0),
    "all_gather_single": (Operation.ALL_GATHER, "output_tensor", 0),
    "_all_gather_base": (Operation.ALL_GATHER, "output_tensor", 0),
    "reduce_scatter": (Operation.REDUCE_SCATTER, "input_list", 1),
    "reduce_scatter_tensor": (Operation.REDUCE_SCATTER, "input", 1),
    "reduce_scatter_single": (Operation.REDUCE_SCATTER, "input", 1),
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
        self._coalescing: _Coalesced | None = None

    def install(self) -> None:
        wrappers: dict[Callable[..., Any], Callable[..., Any]] = {}
        for name, (operation, data, position) in FUNCTIONS.items():
            if (original := getattr(dist, name, None)) is not None:
                wrappers[original] = self._wrap(original, operation, data, position)
        coalescing = dist._coalescing_manager  # type: ignore[attr-defined]  # what DDP's buffers use
        wrappers[coalescing] = self._wrap_coalescing(coalescing)
        rebind(self._patches, wrappers)

    def remove(self) -> None:
        self._patches.restore()

    def _wrap(self, function: Callable[..., Any], operation: Operation, data: str, position: int) -> Callable[..., Any]:
        @functools.wraps(function)
        def collective(*args: Any, **kwargs: Any) -> Any:
            sent = kwargs[data] if data in kwargs else args[position] if 0 <= position < len(args) else None
            if self._coalescing is not None:
                self._coalescing.note(operation, sent)
                return function(*args, **kwargs)
            group = kwargs["group"] if "group" in kwargs else next((a for a in args if _is_group(a)), None)
            if group is dist.GroupMember.NON_GROUP_MEMBER or not (index := self._probe.communicators.index(group)):
                return function(*args, **kwargs)
            root = _root(group, args, kwargs) if operation is Operation.BROADCAST else -1
            call = _Call(
                self._probe, index, operation, size_of(sent), elements_of(operation, sent), call_of(sent, root)
            )
            try:
                result = function(*args, **kwargs)
            except BaseException:
                call.abandon()
                raise
            if result is None:  # without async_op
                call.end()
                return None
            handle = TracedWork(result)
            handle.call = call.issued(handle)
            return handle

        return collective

    def _wrap_coalescing(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @contextmanager
        def coalescing_manager(
            group: Any = None, device: Any = None, async_ops: bool | None = False, **kwargs: Any
        ) -> Iterator[Any]:
            noted = self._coalescing = _Coalesced()
            call: _Call | None = None
            try:
                with function(group, device, async_ops, **kwargs) as manager:
                    handle = _CoalescedWork(manager)
                    try:
                        yield handle
                    finally:
                        self._coalescing = None
                    index = self._probe.communicators.index(group)
                    if noted.operation is not None and index:  # sent as the context ends
                        call = _Call(self._probe, index, noted.operation, noted.size, noted.elements, noted.called)
            except BaseException:
                if call is not None:
                    call.abandon()
                raise
            if call is not None and async_ops:
                handle.call = call.issued(handle)
            elif call is not None:
                call.end()

        return coalescing_manager


class _Call:
    """One operation, from its call to the end of the call or of the wait for it."""

    __slots__ = ("_entry", "_issue", "_operation", "_probe", "_recorded", "_size", "_track")

    def __init__(self, probe: Probe, communicator: int, operation: int, size: int, elements: int, called: Call) -> None:
        """`size` in bytes; `elements`: 0 where the members' may differ."""
        self._probe = probe
        self._operation = operation
        self._size = size
        self._track = probe.frontiers.track(communicator)
        self._entry = self._track.enter(operation, elements, called.pack())
        self._issue: Any = None
        self.begin()

    def begin(self) -> None:
        """The rank's time goes to the operation from here."""
        self._recorded = self._probe.on
        if self._recorded:
            self._probe.recorder.begin(self._operation)

    def end(self) -> None:
        """The device is past the operation when it is past this point."""
        recorder, entry = self._probe.recorder, self._entry
        if not self._recorded:
            entry.end = recorder.mark()
            return
        stream = 0 if self._issue is None else ASYNC_STREAM
        entry.end = recorder.end_operation(
            self._track.communicator, -1, entry.sequence, self._size, stream, self._issue
        )

    def issued(self, handle: TracedWork) -> _Call:
        """An asynchronous call has returned: the rest happens when its handle is waited for."""
        self._entry.finished = finished_of(handle)
        if self._recorded:
            self._issue = self._probe.recorder.cancel()
        return self

    def abandon(self) -> None:
        if self._recorded:
            self._probe.recorder.cancel()


@dataclass(slots=True)
class _Coalesced:
    """What is called inside a coalescing context: torch sends it as one operation when the context ends."""

    operation: Operation | None = None
    size: int = 0
    elements: int = 0
    called: Call = UNTOLD

    def note(self, operation: Operation, sent: Any) -> None:
        self.operation = operation
        self.size += size_of(sent)
        self.elements += elements_of(operation, sent)
        called = call_of(sent, -1)
        self.called = called if self.called in (UNTOLD, called) else UNTOLD


class TracedWork:
    """The handle of an asynchronous operation; the first wait ends the operation's span."""

    def __init__(self, work: Any) -> None:
        self._work = work
        self.call: _Call | None = None

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        call, self.call = self.call, None
        if call is None:
            return self._work.wait(*args, **kwargs)
        call.begin()
        try:
            return self._work.wait(*args, **kwargs)
        finally:
            call.end()

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The operation's own: FSDP2 waits for what is an instance of torch's Work, and for nothing else."""
        return type(self._work)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


class _CoalescedWork(TracedWork):
    """The manager that `with _coalescing_manager(...) as cm` binds: filled inside, waited for later."""

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._work.works)


def _is_group(argument: Any) -> bool:
    return isinstance(argument, dist.ProcessGroup)


def rebind(patches: Patches, replacements: dict[Callable[..., Any], Callable[..., Any]]) -> None:
    """Replace functions in torch.distributed and wherever a module outside of torch holds them under any name:
    megatron-core, a script, a library. What torch's own modules call among themselves stays as it is."""
    for name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or (name.startswith("torch.") and name != "torch.distributed"):
            continue
        for attribute, value in list(vars(module).items()):
            if type(value) is FunctionType and (wrapper := replacements.get(value)) is not None:
                patches.set(module, attribute, wrapper)


def size_of(data: Any) -> int:
    """Bytes of a tensor or of a list of tensors."""
    if isinstance(data, torch.Tensor):
        return data.numel() * data.element_size()
    if isinstance(data, list | tuple):
        return sum(size_of(tensor) for tensor in data)
    return 0


def elements_of(operation: Operation, data: Any) -> int:
    """Of a tensor or of a list of tensors; 0 where members may have different ones."""
    if operation is Operation.ALL_TO_ALL:
        return 0
    if isinstance(data, torch.Tensor):
        return data.numel()
    if isinstance(data, list | tuple):
        return sum(elements_of(operation, tensor) for tensor in data)
    return 0


def call_of(data: Any, root: int) -> Call:
    first = data[0] if isinstance(data, list | tuple) and data else data
    return Call(_NAMES.get(first.dtype, "") if isinstance(first, torch.Tensor) else "", root)


_NAMES = {dtype: name for name in DATA_TYPES if (dtype := getattr(torch, name, None)) is not None}


def _root(group: dist.ProcessGroup | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The global rank of a broadcast's source; -1 where it can't be told."""
    if (in_group := kwargs.get("group_src")) is not None:
        return dist.get_global_rank(group or dist.distributed_c10d._get_default_group(), in_group)
    source = kwargs.get("src", args[1] if len(args) > 1 else None)
    return source if isinstance(source, int) else -1
