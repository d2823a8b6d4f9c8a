"""Which recorder is used."""

from __future__ import annotations

import torch

from megatronapp.trainer.plugins.scan.recorder import CpuTimebase, PythonRecorder, Recorder


def make_recorder(device: torch.device) -> Recorder:
    """A recorder for the calling thread's work on a device."""
    if device.type == "cuda":
        from megatronapp.trainer.plugins.scan.cuda import CudaTimebase

        return PythonRecorder(CudaTimebase(device))
    return PythonRecorder(CpuTimebase())
