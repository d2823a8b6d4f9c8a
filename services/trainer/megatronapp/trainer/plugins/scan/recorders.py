"""Which recorder is used: the native one when its wheel is installed, else Python's."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from megatronapp.core.logging import get_logger
from megatronapp.core.trace.message_id import NO_MESSAGE
from megatronapp.trainer.plugins.scan.operations import BLOCKING, ON_HOST
from megatronapp.trainer.plugins.scan.recorder import (
    COLUMNS,
    CpuTimebase,
    PythonRecorder,
    Recorder,
    Sealed,
    Spans,
)

log = get_logger(__name__)

WHEEL = "megatronapp_scan"


def make_recorder(device: torch.device) -> Recorder:
    """A recorder for the calling thread's work on a device."""
    if find_spec(WHEEL) is not None:
        try:
            return NativeRecorder(device)
        except RuntimeError as error:
            log.warning("native_recorder_unusable", reason=str(error))
    return make_python_recorder(device)


def make_python_recorder(device: torch.device) -> Recorder:
    if device.type == "cuda":
        from megatronapp.trainer.plugins.scan.cuda import CudaTimebase

        return PythonRecorder(CudaTimebase(device))
    return PythonRecorder(CpuTimebase())


class NativeRecorder:
    """The wheel's recorder. Its methods are C functions, handed on as they are."""

    def __init__(self, device: torch.device) -> None:
        """Raises RuntimeError when the CUDA driver does not play along."""
        current_stream = None
        if device.type == "cuda":
            torch.cuda.current_stream(device).synchronize()  # makes the context, before training begins
            current_stream = torch._C._cuda_getCurrentRawStream
        native = import_module(WHEEL).Recorder(bytes(ON_HOST), bytes(BLOCKING), current_stream, device.index or 0)
        self._native = native
        self.context, self.begin, self.end = native.context, native.begin, native.end
        self.end_work = native.end_work
        self.cancel, self.restart, self.switch = native.cancel, native.restart, native.switch
        self.add, self.mark, self.done = native.add, native.mark, native.done
        self.innermost, self.depth = native.innermost, native.depth

    def end_operation(
        self,
        communicator: int,
        peer: int,
        sequence: int,
        size: int,
        stream: int,
        issued: Any = None,
        message: int = NO_MESSAGE,
        /,
    ) -> Any:
        """The wheel has no column for a message's name: it is left out."""
        return self._native.end_operation(communicator, peer, sequence, size, stream, issued)

    def seal(self) -> Sealed:
        return _NativeSealed(self._native.seal())


class _NativeSealed:
    def __init__(self, native: Any) -> None:
        self._native = native
        self.wait = native.wait

    def resolve(self) -> Spans:
        _, reference_ns, reference_error_ns, data = self._native.resolve()
        arrays = {
            name: np.frombuffer(column, np.int64)
            for name, column in zip(import_module(WHEEL).COLUMNS, data, strict=True)
        }
        return Spans(
            columns={name: arrays[name] if name in arrays else np.zeros_like(arrays["issue"]) for name in COLUMNS},
            start=arrays["issue"],
            duration=arrays["end"] - arrays["issue"],
            exposed=arrays["end"] - arrays["begin"],
            cpu=arrays["cpu"],
            enqueue=arrays["enqueue"],
            behind=arrays["behind"],
            reference_ns=reference_ns,
            reference_error_ns=reference_error_ns,
        )
