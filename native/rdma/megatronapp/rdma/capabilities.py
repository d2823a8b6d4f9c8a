"""What this process can offer to peers, found by looking."""

from __future__ import annotations

from pathlib import Path

import torch

from megatronapp.rdma import _native
from megatronapp.rdma.config import Config, LaneName
from megatronapp.rdma.lanes import Capabilities
from megatronapp.rdma.peer_connector import gpu_identity
from megatronapp.rdma.rendezvous import host_identity, pid_namespace

RDMA_DEVICES = Path("/sys/class/infiniband")


def local_capabilities(native: _native.Engine, rank: int, config: Config) -> Capabilities:
    """Of the lanes that the configuration allows, those that this process has. Opens UCX only where it may be taken."""
    missing: dict[str, str] = {lane: reason for lane in config.lanes if (reason := why_missing(lane))}
    wants_ucx = "ucx" not in missing and "ucx" in config.lanes and (bool(rdma_devices()) or only_ucx(config))
    if "ucx" in config.lanes and not wants_ucx:
        missing.setdefault("ucx", "no RDMA device: TCP is faster without UCX (require ucx to have it nevertheless)")
    return Capabilities(
        rank=rank,
        protocol=_native.protocol(),
        host=host_identity(),
        pid_namespace=pid_namespace(),
        lanes=tuple(lane for lane in config.lanes if lane not in missing),
        require=config.require,
        checksum=config.checksum,
        gpu=None if why_missing("cuda_ipc") else gpu_identity(torch.cuda.current_device()),
        ucx_address=native.open_ucx().hex() if wants_ucx else "",
        has_rdma=bool(rdma_devices()) or only_ucx(config),
        missing=missing,
    )


def only_ucx(config: Config) -> bool:
    return "ucx" in config.require or not {"shm", "tcp"} & set(config.lanes)


def why_missing(lane: LaneName) -> str:
    """Why this process has no such lane; empty when it has."""
    try:
        if lane == "cuda_ipc":
            _native.check_cuda_driver()
            return "" if torch.cuda.is_available() else "PyTorch sees no GPU"
        if lane == "ucx":
            _native.ucx_version()
    except RuntimeError as error:
        return str(error)
    return ""


def rdma_devices() -> list[str]:
    return sorted(device.name for device in RDMA_DEVICES.iterdir()) if RDMA_DEVICES.is_dir() else []
