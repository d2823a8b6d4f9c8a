"""StepTable: one step of one job as arrays over all its ranks. What every signal and rule looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from megatronapp.v1 import trace_pb2

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RankTable:
    """Who the ranks are; arrays of one entry per rank, ordered by global rank.

    Two ranks do the same work when they agree in pipeline (stage) and differ in data or tensor only.
    """

    rank: Ints
    pipeline: Ints
    """The stage; of several roles, which do different work, the stages of one are counted on after those of another."""
    data: Ints
    tensor: Ints
    context: Ints
    expert: Ints
    node: npt.NDArray[np.str_]
    gpu_uuid: npt.NDArray[np.str_]
    device: npt.NDArray[np.str_]
    """The physical device, equal over attempts and processes. Where it is not told: the rank on its node."""
    on_cpu: npt.NDArray[np.bool_]
    """True: the rank's measure of compute is thread CPU time, not wall time."""
    first_stage: Ints | None = None
    """What the first stage of the rank's role is counted as; None: there is one role."""
    role: npt.NDArray[np.str_] | None = None
    """As the placement says, empty: none; None: nobody has one."""

    @property
    def stage(self) -> Ints:
        """In the rank's own role, as its placement says."""
        return self.pipeline if self.first_stage is None else self.pipeline - self.first_stage

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, slots=True)
class Rows:
    """One row per (rank, operation, chunk, communicator, peer) of a step; times in seconds.

    Compute rows count self time: what nested collectives and p2p operations took is not in them.
    """

    rank: Ints
    """Index into the RankTable, not the global rank."""
    operation: Ints
    """Index into StepTable.operations."""
    chunk: Ints
    communicator: Ints
    """Index into StepTable.communicators, -1: none."""
    peer: Ints
    """Global rank of a p2p row's peer, -1: none."""
    count: Ints
    duration: Floats
    duration_min: Floats
    duration_max: Floats
    cpu: Floats
    cpu_min: Floats
    cpu_max: Floats
    launch_lag: Floats
    launch_lag_max: Floats
    tokens: Floats
    length_squares: Floats
    bytes: Floats
    starved_count: Ints
    """Of GPU ranks' compute: spans in which the device waited for its host, and what they took and carried."""
    starved: Floats
    starved_tokens: Floats
    starved_length_squares: Floats

    def __len__(self) -> int:
        return len(self.rank)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Group:
    """A communicator: its id, kind (tp, pp, dp, …) and global ranks."""

    id: str
    kind: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Microbatches:
    """Per-microbatch compute, where the source tells it; what finds sequence imbalance without a covariate.

    compute[s, m] is the seconds of forward plus backward of row m's microbatch on stage s; a row is one (replica,
    microbatch).
    """

    replica: Ints
    compute: Floats


@dataclass(frozen=True, slots=True)
class StepTable:
    step: int
    ranks: RankTable
    rows: Rows
    operations: tuple[str, ...]
    kinds: Ints
    """SpanKind of each operation."""
    communicators: tuple[Group, ...]
    start: Floats
    """Job time in seconds of each rank's step begin, nan where the clock is not aligned."""
    duration: Floats
    cpu: Floats
    microbatches: int = 1
    virtual_stages: int = 1
    peak_activations: int = 0
    """Most that a rank held in the step, in chunks × microbatches; 0: not known."""
    orders: tuple[bytes, ...] = ()
    """What the stages of one replica ran, by stage, where they chose it (core/pipeline/pass_codes.py)."""
    phases: frozenset[int] = frozenset()
    """Phase values of any rank: first step, evaluation, checkpoint, …"""
    detail: Microbatches | None = None
    received_unix_ns: int = 0
    missing: tuple[int, ...] = field(default=())
    """Global ranks in `ranks` whose summary did not arrive."""
    reduces_beside: bool = False
    """Gradients are reduced beside the backward passes, the last of which wait for ranks that are behind."""
    nccl: tuple[tuple[int, Sequence[trace_pb2.NcclTally]], ...] = ()
    """By global rank: what NCCL told of operations that ended since the step before."""
    ports: tuple[tuple[int, Sequence[trace_pb2.PortSends]], ...] = ()
    """By global rank: the network ports that it sent through since the step before."""
    unheard: int = 0
    """How many more ranks the job says to have: counted, not listed, as the number is anybody's word."""
