"""What NVML says of a rank's GPU, once a second."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from megatronapp.core.logging import get_logger
from megatronapp.v1 import trace_pb2

log = get_logger(__name__)


class GpuTelemetry:
    """Reads in a thread of its own, since NVML can take long when a GPU is in trouble; `latest` never waits."""

    def __init__(self, gpu_uuid: str, pid: int, interval_seconds: float = 1.0) -> None:
        self._uuid = gpu_uuid
        self._pid = pid
        self._interval = interval_seconds
        self._stop = threading.Event()
        self._latest: trace_pb2.GpuTelemetry | None = None
        self._thread = threading.Thread(target=self._run, name="agent-nvml", daemon=True)
        self._thread.start()

    @property
    def latest(self) -> trace_pb2.GpuTelemetry | None:
        return self._latest

    def close(self) -> None:
        self._stop.set()

    def _run(self) -> None:
        import pynvml

        try:
            pynvml.nvmlInit()
            device = pynvml.nvmlDeviceGetHandleByUUID(self._uuid)
        except pynvml.NVMLError as error:
            log.warning("no_gpu_telemetry", gpu_uuid=self._uuid, reason=str(error))
            return
        while not self._stop.wait(self._interval):
            self._latest = read(pynvml, device, self._pid)
        pynvml.nvmlShutdown()


def read(nvml: Any, device: Any, pid: int) -> trace_pb2.GpuTelemetry:
    """One reading; a value that this GPU does not have stays 0. `pid` is the rank's process."""

    def get(function: Callable[..., Any], *args: Any, default: Any = 0) -> Any:
        try:
            return function(device, *args)
        except nvml.NVMLError:
            return default

    remapped = get(nvml.nvmlDeviceGetRemappedRows, default=(0, 0))
    utilization = get(nvml.nvmlDeviceGetUtilizationRates, default=None)
    processes = get(nvml.nvmlDeviceGetComputeRunningProcesses, default=())
    return trace_pb2.GpuTelemetry(
        sm_clock_mhz=get(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM),
        sm_clock_max_mhz=get(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM),
        clock_event_reasons=get(nvml.nvmlDeviceGetCurrentClocksEventReasons),
        temperature_celsius=get(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU),
        power_watts=get(nvml.nvmlDeviceGetPowerUsage) / 1000,
        ecc_volatile_uncorrected=get(
            nvml.nvmlDeviceGetTotalEccErrors, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
        remapped_rows=sum(remapped[:2]),
        pcie_replays=get(nvml.nvmlDeviceGetPcieReplayCounter),
        utilization_percent=utilization.gpu if utilization else 0,
        other_processes=sum(process.pid != pid for process in processes),
    )
