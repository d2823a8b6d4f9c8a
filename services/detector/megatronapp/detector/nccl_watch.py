"""What NCCL tells of a job's operations, watched step by step: transfers, the waits of those who send, late starts. Of
those who send Megatrace's telemetry of their network ports may tell instead.

Nothing of it is there unless NCCL tells: other jobs are judged as ever.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field

import numpy as np

from megatronapp.detector.signals import nccl_operations
from megatronapp.detector.signals.destinations import Destinations
from megatronapp.detector.signals.late_starts import LateStart, LateStarts, waited_for
from megatronapp.detector.signals.nccl import Joined
from megatronapp.detector.signals.nccl_operations import Communicators, Transfer, Waits
from megatronapp.detector.signals.pace import Pace
from megatronapp.detector.signals.peers import beside_stage_peers, median_of_others
from megatronapp.detector.statistics.monitor import Monitor
from megatronapp.detector.statistics.noise import Noise
from megatronapp.detector.steps import Floats, Ints, StepTable

TRANSFER, TRANSFER_BESIDE = "nccl_transfer", "nccl_transfer_beside"
SEND, SEND_BESIDE = "nccl_send", "nccl_send_beside"
START = "nccl_start"
BESIDE = math.log(1.5)
"""Healthy transfers of one kind differ by less: by where their members are."""
LEAST_PEERS = 3
SILENT_STEPS = 8
"""In which nothing is told, as where the trace was switched off: what was told before does not hold."""
MOST_TRANSFERS = 1 << 14
"""That are watched; later ones are left out."""
NOISE: Mapping[str, Noise] = {
    TRANSFER: Noise(floor=0.05, prior=0.10, clip=8, allowance=math.inf, smallest=0.10, together=True),
    TRANSFER_BESIDE: Noise(floor=0.05, prior=0.10, clip=8, allowance=BESIDE, smallest=BESIDE, changes=False),
    SEND: Noise(floor=0.10, prior=0.20, clip=8, allowance=math.inf, smallest=0.25, together=True),
    SEND_BESIDE: Noise(floor=0.10, prior=0.20, clip=8, allowance=BESIDE, smallest=BESIDE, changes=False),
    START: Noise(floor=0.01, prior=0.02, clip=8, allowance=math.inf, smallest=0.02, bursts=True),
}
"""Of waits for sends to end more is usual: what others send passes the same switches."""


@dataclass(frozen=True, slots=True)
class NcclView:
    """What was told in a step, and what is watched of it."""

    transfers: nccl_operations.Transfers
    waits: Mapping[int, Waits]
    destinations: Destinations
    starts: tuple[LateStart, ...]
    known: Mapping[int, Joined]
    keys: tuple[Transfer, ...]
    """By item of the monitors TRANSFER and TRANSFER_BESIDE."""
    ends: Mapping[Transfer, tuple[tuple[int, ...], tuple[int, ...]]]
    pace: Pace
    ports: Mapping[int, str] = field(default_factory=dict)
    """By rank the network port through which it has sent most slowly when its ports told last: short steps may come in
    which they tell nothing."""


@dataclass(slots=True)
class NcclWatch:
    monitors: MutableMapping[str, Monitor]
    """All of the job's; those of NOISE are added once NCCL tells."""
    _communicators: Communicators = field(default_factory=Communicators)
    _destinations: Destinations = field(default_factory=Destinations)
    _late: LateStarts = field(default_factory=LateStarts)
    _pace: Pace = field(default_factory=Pace)
    _ports: dict[int, str] = field(default_factory=dict)
    _view: NcclView | None = None
    _view_step: int = 0
    _numbers: dict[Transfer, int] = field(default_factory=dict)
    _ends: dict[Transfer, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)

    def observe(
        self, table: StepTable, usual_seconds: float, log_steps: float, *, waits_explained: bool
    ) -> NcclView | None:
        """log_steps: log of the steps between two false alarms of the job. waits_explained: that others wait needs no
        reason. None: nothing is told. In a short step nothing may have ended that is told of: what was told last
        holds."""
        if table.nccl or table.ports:
            self._view_step, self._view = (
                table.step,
                self._of_step(table, usual_seconds, log_steps, waits_explained=waits_explained),
            )
        elif table.step - self._view_step > SILENT_STEPS:
            self._view = None
        return self._view

    def _of_step(self, table: StepTable, usual_seconds: float, log_steps: float, *, waits_explained: bool) -> NcclView:
        self._pace.note(table.step, float(np.nanmedian(table.duration)))
        self._communicators.learn(table.nccl, table.communicators)
        known = self._communicators.known
        transfers = nccl_operations.transfers(table.nccl, known)
        waits = nccl_operations.port_waits(table.ports) | nccl_operations.waits(table.nccl)
        self._ports |= nccl_operations.slowest_ports(table.ports)
        starts = self._late.of(table.nccl, known)
        self._prepare(len(table.ranks), len(transfers.bandwidth), log_steps)
        self._watch_transfers(table.step, transfers)
        self._watch_sends(table, waits)
        self._destinations.note(table.step, table.nccl, known, self._slow_senders())
        waited = {} if waits_explained else waited_for(starts, known, table.ranks)
        self._observe(START, table.step, list(waited), [seconds / usual_seconds for seconds in waited.values()])
        keys = tuple(self._numbers)
        return NcclView(
            transfers, waits, self._destinations, tuple(starts), known, keys, self._ends, self._pace, self._ports
        )

    def _slow_senders(self) -> dict[int, int]:
        """From which step on."""
        found = dict[int, int]()
        for monitor in (self.monitors[SEND], self.monitors[SEND_BESIDE]):
            for rank in np.flatnonzero(monitor.alarmed).tolist():
                found[rank] = min(since := int(monitor.since[rank]), found.get(rank, since))
        return found

    def _prepare(self, ranks: int, transfers: int, log_steps: float) -> None:
        for signal, noise in NOISE.items():
            if signal not in self.monitors:
                items = max(ranks, transfers) if signal in (TRANSFER, TRANSFER_BESIDE) else ranks
                self.monitors[signal] = Monitor(noise, log_steps + math.log(max(1, items) * len(NOISE)))

    def _observe(self, signal: str, step: int, items: list[int], values: list[float] | Floats) -> None:
        self.monitors[signal].observe(step, np.array(items, np.int64), np.array(values, np.float64))

    def _watch_transfers(self, step: int, transfers: nccl_operations.Transfers) -> None:
        for key in transfers.bandwidth:
            if key not in self._numbers and len(self._numbers) < MOST_TRANSFERS:
                self._numbers[key] = len(self._numbers)
                self._ends[key] = transfers.ends[key]
        sent = [key for key in transfers.bandwidth if key in self._numbers]
        items = np.array([self._numbers[key] for key in sent], np.int64)
        slowness = -np.log(np.array([transfers.bandwidth[key] for key in sent]))
        alike = defaultdict[object, list[int]](list)
        for place, key in enumerate(sent):
            alike[(*key[1:], len(transfers.ends[key][0]))].append(place)
        kinds = np.zeros(len(sent), np.int64)
        for kind, places in enumerate(alike.values()):
            kinds[places] = kind
        self.monitors[TRANSFER].observe(step, items, slowness, kinds)
        beside = self._beside(items, slowness, [np.array(places) for places in alike.values()])
        self.monitors[TRANSFER_BESIDE].observe(step, items, beside)

    def _beside(self, items: Ints, slowness: Floats, alike: list[Ints]) -> Floats:
        """Beside others of the same operation, algorithm, size and number of members."""
        beside = np.full(len(items), np.nan)
        monitor = self.monitors[TRANSFER_BESIDE]
        slow = np.array([item < len(monitor) and bool(monitor.alarmed[item]) for item in items.tolist()], np.bool_)
        for places in alike:
            if len(places) > LEAST_PEERS:
                own = slowness[places]
                beside[places] = own - median_of_others(own[:, None], ~slow[places])[:, 0]
        return beside

    def _watch_sends(self, table: StepTable, waits: Mapping[int, Waits]) -> None:
        ranks = table.ranks.rank
        sending = [own.sending if (own := waits.get(rank)) is not None else None for rank in ranks.tolist()]
        slowness = np.log(np.array([np.nan if value is None else value for value in sending], np.float64))
        self.monitors[SEND].observe(table.step, ranks, slowness)
        usable = np.isfinite(slowness)
        enough = np.isin(table.ranks.pipeline, _stages_of(table.ranks.pipeline[usable], LEAST_PEERS))
        beside = slowness - beside_stage_peers(slowness[:, None], table.ranks.pipeline, usable)[:, 0]
        self.monitors[SEND_BESIDE].observe(table.step, ranks, np.where(enough, beside, np.nan))


def _stages_of(stages: Ints, more_than: int) -> Ints:
    found, counts = np.unique(stages, return_counts=True)
    return found[counts > more_than]
