"""Which recorder is used: the native one where its wheel is installed and loads, else Python's."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import torch

from megatronapp.core.logging import get_logger
from megatronapp.trainer.plugins.scan.operations import BLOCKING, ON_HOST
from megatronapp.trainer.plugins.scan.python_recorder import CpuTimebase, PythonRecorder
from megatronapp.trainer.plugins.scan.recorder import RING_BYTES, Recorder

log = get_logger(__name__)

WHEEL = "megatronapp.scan"
NOT_INSTALLED = "the wheel megatronapp-scan is not installed (pip install ./native/scan)"
ON_GPU = "events are read back by the training thread"
ON_CPU = "recording costs the training thread more of its time"


def make_recorder(device: torch.device, *, first_of_node: bool = True, bulk_bytes: int = 0) -> Recorder:
    """A recorder for the calling thread's work on a device. What a node lacks, its first rank says for all."""
    try:
        return make_native_recorder(device, bulk_bytes=bulk_bytes)
    except ImportError as error:
        known = find_spec(WHEEL) is not None
        reason = f"{WHEEL} can't be loaded: {error}" if known else NOT_INSTALLED
        said_here = first_of_node
    except (RuntimeError, OSError) as error:
        reason, said_here = str(error), True
    if said_here:
        on_gpu = device.type == "cuda"
        log.warning("slower_recorder", reason=reason, consequence=ON_GPU if on_gpu else ON_CPU)
    return make_python_recorder(device, bulk_bytes=bulk_bytes)


def make_python_recorder(device: torch.device, ring_bytes: int = RING_BYTES, bulk_bytes: int = 0) -> Recorder:
    """Raises OSError without memory for its segment, ValueError for a ring that is no power of two."""
    if device.type == "cuda":
        from megatronapp.trainer.plugins.scan.cuda import CudaTimebase

        return PythonRecorder(CudaTimebase(device), ring_bytes, bulk_bytes)
    return PythonRecorder(CpuTimebase(), ring_bytes, bulk_bytes)


def make_native_recorder(device: torch.device, ring_bytes: int = RING_BYTES, bulk_bytes: int = 0) -> Recorder:
    """The wheel's recorder, as it is.

    Raises ImportError without a wheel that loads, RuntimeError when the CUDA driver does not play along, and
    OSError.
    """
    current_stream = None
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()  # makes the context, before training begins
        current_stream = torch._C._cuda_getCurrentRawStream
    native: Recorder = import_module(WHEEL).Recorder(
        bytes(ON_HOST), bytes(BLOCKING), current_stream, device.index or 0, ring_bytes, bulk_bytes
    )
    return native
