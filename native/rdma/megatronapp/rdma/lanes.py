"""Which lane two ranks take: a pure choice from what both offer, the same on both."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from megatronapp.rdma.config import LaneName
from megatronapp.rdma.errors import HandshakeError, LaneUnavailableError


@dataclass(frozen=True, kw_only=True)
class Capabilities:
    """What one rank has and wants, told to a peer."""

    rank: int
    protocol: tuple[int, ...]
    host: str
    pid_namespace: str
    lanes: tuple[LaneName, ...]
    require: tuple[LaneName, ...]
    checksum: bool
    gpu: str | None = None
    """The GPU's uuid."""
    ucx_address: str = ""
    """Hexadecimal; empty without UCX."""
    has_rdma: bool = False
    missing: dict[str, str] = field(default_factory=dict)
    """Why a lane is not there."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Capabilities:
        """Raises HandshakeError for anything but the fields of an offer, each of its type."""
        try:
            lists = {name: tuple(fields[name]) for name in ("protocol", "lanes", "require")}
            capabilities = cls(**(fields | lists))
            bytes.fromhex(capabilities.ucx_address)
        except (KeyError, TypeError, ValueError) as error:
            raise HandshakeError(f"the peer's offer is of another version: {error}") from error
        texts = (
            capabilities.host,
            capabilities.pid_namespace,
            *capabilities.lanes,
            *capabilities.require,
            *capabilities.missing,
            capabilities.gpu or "",
        )
        numbers = (capabilities.rank, *capabilities.protocol)
        flags = (capabilities.checksum, capabilities.has_rdma)
        if not (
            all(isinstance(text, str) for text in texts)
            and all(type(number) is int for number in numbers)
            and all(isinstance(flag, bool) for flag in flags)
            and isinstance(capabilities.missing, dict)
        ):
            raise HandshakeError("the peer's offer is of another version: a field is of another type")
        return capabilities


@dataclass(frozen=True, kw_only=True)
class Route:
    """How tensors of one peer travel."""

    cpu: LaneName
    cuda: Literal["cuda_ipc", "staged"] | None
    """Staged: through host memory, and then as tensors of the CPU."""
    refused: dict[str, str]
    """Why the faster lanes were not taken."""

    def __str__(self) -> str:
        return f"{self.cpu}+{self.cuda}" if self.cuda else self.cpu


def choose(mine: Capabilities, theirs: Capabilities, *, shared_memory: bool, gpus_reach: bool) -> Route:
    """`shared_memory`: a local socket joins the two; `gpus_reach`: each GPU can write into the other's memory.

    Raises LaneUnavailableError when a lane that either requires is not taken, and when nothing is left.
    """
    refused = _refused(mine, theirs, shared_memory=shared_memory, gpus_reach=gpus_reach)
    ucx_first = mine.has_rdma and theirs.has_rdma
    order: tuple[LaneName, ...] = ("shm", "ucx", "tcp") if ucx_first else ("shm", "tcp", "ucx")
    cpu = next((lane for lane in order if lane not in refused), None)
    if cpu is None:
        raise LaneUnavailableError(f"no lane between ranks {mine.rank} and {theirs.rank}: {_reasons(refused)}")
    cuda: Literal["cuda_ipc", "staged"] | None = "cuda_ipc" if "cuda_ipc" not in refused else None
    both_have_gpus = mine.gpu is not None and theirs.gpu is not None
    if cuda is None and (mine.gpu or theirs.gpu) and not (shared_memory and both_have_gpus):
        cuda = "staged"
    for lane in {*mine.require, *theirs.require}:
        if lane not in (cpu, cuda):
            reason = refused.get(lane, f"{cpu} is faster and both allow it")
            raise LaneUnavailableError(f"lane {lane} between ranks {mine.rank} and {theirs.rank} is required: {reason}")
    return Route(cpu=cpu, cuda=cuda, refused=refused)


def _refused(mine: Capabilities, theirs: Capabilities, *, shared_memory: bool, gpus_reach: bool) -> dict[str, str]:
    refused: dict[str, str] = {}
    for lane in ("shm", "cuda_ipc", "ucx", "tcp"):
        for capabilities in (mine, theirs):
            if lane not in capabilities.lanes:
                refused.setdefault(lane, f"rank {capabilities.rank}: {capabilities.missing.get(lane, 'not allowed')}")
    if not shared_memory:
        refused.setdefault("shm", "the ranks are on different hosts or in different network namespaces")
    refused.setdefault("cuda_ipc", _no_cuda_ipc(mine, theirs, shared_memory=shared_memory, gpus_reach=gpus_reach))
    return {lane: reason for lane, reason in refused.items() if reason}


def _no_cuda_ipc(mine: Capabilities, theirs: Capabilities, *, shared_memory: bool, gpus_reach: bool) -> str:
    if not shared_memory:
        return "the ranks are on different hosts or in different network namespaces"
    if mine.pid_namespace != theirs.pid_namespace:
        return "the ranks are in different PID namespaces: set shareProcessNamespace on the pod"
    if not gpus_reach:
        return "the GPUs can't reach each other's memory, or don't see each other (CUDA_VISIBLE_DEVICES)"
    return ""


def _reasons(refused: dict[str, str]) -> str:
    return "; ".join(f"{lane}: {reason}" for lane, reason in refused.items())
