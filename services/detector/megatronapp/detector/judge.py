"""Judge: StepTables of one attempt in, suspicions of each step out. Keeps what was learnt of the job's noise.

A step goes through four layers, each made of what the one before has left:

1. *Signals* (signals/) turn the table into one number a rank or link, with what is known taken out: the work that each
   rank had (tokens, sequence lengths), its stage, what its peers took, what it waited for.
2. *Monitors* (statistics/monitor.py), one for each signal, decide which of these numbers are slower than they should
   be. The false alarms that a job may have are shared out among ranks and signals (`monitor_of`).
3. *Reasons before consequences.* REASONS name a cause in a rank (its device, its host, its link). CONSEQUENCES (others
   wait, the whole job is slow) are followed all the time, but while a reason stands they are explained by it and
   dropped.
4. *Rules* (rules/, called by attribution.py) read the View and put names to it; attribution leaves the strongest story.

What is slow already must not spoil the yardstick: ranks under an alarm are no peers (`_healthy`), and steps in which
they are slow are not the usual ones (`_usual_seconds`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from megatronapp.core.findings import Cause, Finding, Kind
from megatronapp.core.trace.span_names import SpanName
from megatronapp.detector import profiles
from megatronapp.detector.attribution import attribute
from megatronapp.detector.gates import log_effect
from megatronapp.detector.nccl_watch import SEND, SEND_BESIDE, START, TRANSFER, TRANSFER_BESIDE, NcclWatch
from megatronapp.detector.profiles import DeviceProfile
from megatronapp.detector.rules import slow_checkpoint
from megatronapp.detector.rules.base import OWN_REASONS, PAGE_STEPS, PATIENT_PAGE_STEPS, SPEED, Suspicion, View
from megatronapp.detector.signals import (
    absence,
    accounting,
    compute,
    exposure,
    imbalance,
    launching,
    links,
    matrix,
    peers,
    processor,
    waits,
)
from megatronapp.detector.signals.accounting import Accounts
from megatronapp.detector.signals.compute import ComputeEffect
from megatronapp.detector.signals.exposure import Exposure
from megatronapp.detector.signals.history import Anchors, PassHistory, Standing
from megatronapp.detector.signals.launching import Launching
from megatronapp.detector.signals.nodes import Nodes
from megatronapp.detector.signals.outrun import Outrun
from megatronapp.detector.signals.processor import ProcessorModel
from megatronapp.detector.signals.saves import Saves
from megatronapp.detector.signals.transfers import Transfers
from megatronapp.detector.signals.work import WorkModel
from megatronapp.detector.statistics import sequential
from megatronapp.detector.statistics.monitor import WARM_UP, Monitor
from megatronapp.detector.statistics.widening import MANY
from megatronapp.detector.steps import Floats, Ints, StepTable
from megatronapp.v1 import trace_pb2

STEPS, SAVES = "steps", "saves"
"""What suspicions are drawn from."""
STEPS_BETWEEN_FALSE_ALARMS = 1e5, 1e7
"""Of the whole job, at least and at most; each rank and signal gets its share. A page needs more than an alarm
(findings.py). Of few devices it is the least, as these wait until they can tell (statistics/widening.py)."""
REASONS = (*OWN_REASONS, "transfer", SEND, SEND_BESIDE, TRANSFER, TRANSFER_BESIDE)
"""Signals that say why; CONSEQUENCES only say that, and leave a reason the time to show itself."""
CONSEQUENCES = ("wait", "job_compute", START)
USUAL_STEPS = 64
"""Newest healthy ones whose median the usual step takes, as many as make a history (monitor.CLEAN)."""


def log_steps_between_false_alarms(profile: DeviceProfile, ranks: int, step_seconds: float) -> float:
    """Of a whole job whose steps are said to take so long."""
    least, most = STEPS_BETWEEN_FALSE_ALARMS
    wanted = profile.seconds_between_false_alarms / step_seconds if ranks >= MANY and step_seconds > 0 else least
    return math.log(min(most, max(least, wanted)))


def monitor_of(profile: DeviceProfile, signal: str, items: int, log_steps: float) -> Monitor:
    """items: how many of the signal are watched; each has its share of the false alarms that a job may have."""
    noise, signals = profile.noise[signal], len(profile.noise.keys() - profiles.RARE)
    threshold = log_steps + math.log(items * signals)
    if signal not in profiles.RARE:
        steps = PATIENT_PAGE_STEPS if signal in CONSEQUENCES else PAGE_STEPS
        noise = replace(noise, clip=min(noise.clip, sequential.clip(threshold, steps)))
    return Monitor(noise, threshold)


class Judge:
    """Pure and deterministic: the same tables give the same suspicions. Tables must come in the order of steps.

    The first `start_up_steps` tables of devices that warm up are not judged.
    """

    def __init__(self, start_up_steps: int = 0) -> None:
        self._start_up_steps = start_up_steps
        self.monitors: dict[str, Monitor] = {}
        self.view: View | None = None
        """The newest judged step."""
        self._log_steps = 0.0
        """Between two false alarms."""
        self._nccl = NcclWatch(self.monitors)
        self._work = WorkModel()
        self._processor = ProcessorModel()
        self._transfers = Transfers()
        self._exposure = Exposure()
        self._anchors: dict[str, Anchors] = {}
        self._standing: dict[str, Standing] = {}
        self._passes = PassHistory()
        self._saves = Saves()
        self._nodes = Nodes()
        self._outrun: dict[str, Outrun] = {}
        """Of the ranks' speed, and of each share."""
        self._starved: set[int] = set()
        """Ranks whose device has waited for its host for most of a step."""
        self._durations: deque[float] = deque(maxlen=USUAL_STEPS)
        self._resumed: list[Finding] = []
        """Known slow before the first step."""
        self._first: list[int] = []
        """The first WARM_UP steps that were judged."""

    def resume(self, finding: Finding) -> None:
        """A device was slow in the attempt before, as are its ranks in this one until their steps say otherwise."""
        self._resumed.append(finding)

    def observe(
        self, table: StepTable, telemetry: Mapping[int, trace_pb2.GpuTelemetry] | None = None
    ) -> dict[str, list[Suspicion]]:
        """Judge one step; returns all that is suspected now, of each source that the step tells of.

        One in which something else went on (checkpoint, evaluation, …) tells of that at most: of the steps it says
        neither that what was suspected goes on nor that it is over.
        """
        profile = profiles.of_ranks(table.ranks)
        if self._start_up_steps > 0 and profile.warms_up:
            self._start_up_steps -= 1
            return {}
        if not len(table.rows) or table.phases:
            if trace_pb2.PHASE_CHECKPOINT not in table.phases or self.view is None:
                return {}
            self._watch_saves(table)
            return {SAVES: list(slow_checkpoint.detect(self.view))}
        self._prepare(table, profile)
        if len(self._first) < WARM_UP:
            self._first.append(table.step)
        healthy = self._healthy(table)
        passed = self._passes_of(table, healthy)
        effect = compute.effect(table, passed, self._work, healthy)
        accounts, delayed = accounting.account(table), absence.delayed(table)
        usual = self._usual_seconds(table)
        garbage = accounting.beside_garbage(table, accounts, profile.noise["garbage_collection"].floor * usual)
        messages, collectives = links.messages(table, delayed | garbage), links.collectives(table)
        passes = launching.of_passes(passed, table.ranks.pipeline, healthy)
        pace = self._anchored("launching", table, passes.pace)
        self._watch_compute(table, effect, healthy, passes, pace)
        self._watch_shares(table, accounts, messages, usual, healthy, delayed)
        late = self._watch_launching(table, passes, pace)
        explained = late or not effect.equal_work or self._reason_known()
        self._watch_waits(table, effect, usual, delayed, explained=explained)
        self._watch_links(table, messages, collectives)
        nccl = self._nccl.observe(table, usual, self._log_steps, waits_explained=explained)
        self._watch_imbalance(table, effect)
        self._nodes.observe(table.ranks, {signal: self.monitors[signal] for signal in SPEED})
        self._suppress_consequences()
        self.view = View(
            profile=profile,
            table=table,
            effect=effect,
            accounts=accounts,
            messages=messages,
            collectives=collectives,
            monitors=self.monitors,
            transfers=self._transfers,
            exposure=self._exposure,
            saves=self._saves,
            step_seconds=usual,
            young_until=self._first[-1] if len(self._first) == WARM_UP else math.inf,
            nodes=self._nodes.slow,
            telemetry=telemetry or {},
            nccl=nccl,
        )
        return {STEPS: attribute(self.view)}

    def _prepare(self, table: StepTable, profile: DeviceProfile) -> None:
        if self.monitors:
            return
        ranks = max(1, len(table.ranks))
        self._log_steps = log_steps_between_false_alarms(profile, ranks, float(np.nanmedian(table.duration)))
        for signal in profile.noise:
            items = max(ranks, links.how_many(table)) if signal == "transfer" else ranks
            self.monitors[signal] = monitor_of(profile, signal, items, self._log_steps)
        for finding in self._resumed:
            if finding.kind is Kind.SLOW_GPU:
                signal = "optimizer" if finding.cause is Cause.MEMORY_BOUND else "compute_effect"
                for rank in finding.ranks:
                    self.monitors[signal].resume(rank, log_effect(finding))

    def _reason_known(self) -> bool:
        return any(self.monitors[signal].alarmed.any() for signal in REASONS if signal in self.monitors)

    def _suppress_consequences(self) -> None:
        """While a slow rank is known, others' waiting and the job's slowness need no other reason."""
        if self._reason_known():
            for signal in CONSEQUENCES:
                if signal in self.monitors:
                    self.monitors[signal].suppress()

    def _healthy(self, table: StepTable) -> npt.NDArray[np.bool_]:
        """Ranks with which others may be compared: those not found slow already."""
        healthy = np.ones(len(table.ranks), bool)
        for signal in SPEED:
            alarmed = self.monitors[signal].alarmed
            known = table.ranks.rank < len(alarmed)
            healthy[known] &= ~alarmed[table.ranks.rank[known]]
        return healthy

    def _passes_of(self, table: StepTable, healthy: npt.NDArray[np.bool_]) -> matrix.Compute:
        """The step's passes, as on each rank's usual processor where that is measured."""
        passed = matrix.compute(table)
        measures = processor.measures(table, passed)
        if measures is None:
            return passed
        return processor.steadied(passed, self._processor.slower(table.ranks.rank, measures, healthy))

    def _usual_seconds(self, table: StepTable) -> float:
        """Median duration of the job's recent steps in which nothing was found slow."""
        duration = float(np.nanmedian(table.duration))
        if not self._durations or not any(self.monitors[s].alarmed.any() for s in ("compute_effect", "host_gap")):
            self._durations.append(duration)
        return float(np.median(self._durations))

    def _watch_compute(
        self,
        table: StepTable,
        effect: ComputeEffect,
        healthy: npt.NDArray[np.bool_],
        passes: Launching,
        pace: Floats,
    ) -> None:
        """pace: of the passes, since the attempt's start."""
        ranks, step = table.ranks.rank, table.step
        fastest = passes.fastest_beside_peers if effect.equal_work else np.full(len(ranks), np.nan)
        beside_peers = passes.trusted(effect.beside_peers, fastest)
        self._watch_device("compute_effect", table, beside_peers, passes.starved)
        since_start = self._passes.since_start(ranks, effect.passes, healthy)
        # A device that had always waited for its host, and now sets the pace itself.
        self._starved.update(ranks[passes.starved].tolist())
        fresh = ~np.isfinite(since_start) & effect.passes.known & ~passes.starved
        fresh &= np.isin(ranks, list(self._starved))
        fastest = self._anchored("fastest", table, passes.fastest)
        since_start = passes.trusted(np.where(fresh, np.maximum(pace, 0.0), since_start), fastest)
        everybody = peers.median_of_others(since_start[:, None], healthy)[:, 0]
        centred = since_start - np.where(np.isfinite(everybody), everybody, 0.0)
        self._watch_device("own_history", table, centred, passes.starved)
        self._observe_outrun("speed", ranks, since_start, SPEED)
        job = float(np.median(since_start[np.isfinite(since_start)])) if np.isfinite(since_start).any() else np.nan
        self.monitors["job_compute"].observe(step, np.zeros(1, np.int64), np.array([job]))
        optimizer = matrix.compute(table, (SpanName.OPTIMIZER,)).seconds
        beside = np.log(optimizer) - np.log(peers.beside_stage_peers(optimizer, table.ranks.pipeline, healthy))
        values = beside[:, 0] if beside.shape[1] else np.full(len(ranks), np.nan)
        self.monitors["optimizer"].observe(step, ranks, np.where(passes.waits_for_host, np.nan, values))

    def _watch_device(self, signal: str, table: StepTable, values: Floats, starved: npt.NDArray[np.bool_]) -> None:
        """A device that waits for its host tells nothing of its speed, but an alarm that it is slow is over."""
        monitor, ranks = self.monitors[signal], table.ranks.rank
        known = ranks < len(monitor)
        alarmed, usual = np.zeros(len(ranks), bool), np.zeros(len(ranks))
        alarmed[known], usual[known] = monitor.alarmed[ranks[known]], monitor.baseline[ranks[known]]
        idle = starved & alarmed & ~np.isfinite(values)
        monitor.observe(table.step, ranks, np.where(idle, usual, values))

    def _watch_shares(
        self,
        table: StepTable,
        accounts: Accounts,
        messages: links.Messages,
        usual: float,
        healthy: npt.NDArray[np.bool_],
        delayed: npt.NDArray[np.bool_],
    ) -> None:
        """What ranks spend beside compute, as shares of the usual step: against the median peer, or without one
        against their own first steps."""
        shares = {
            "host_gap": accounts.host,
            "data_wait": accounts.data,
            "garbage_collection": accounts.garbage,
            "sync_delay": accounts.sync,
        }
        if "send_delay" in self.monitors:
            sending = np.where(delayed, np.nan, links.sending_seconds(table, messages))
            shares |= {"preempted": accounts.preempted, "send_delay": sending}
        values = np.stack(list(shares.values()), axis=1) / usual
        reference = peers.beside_stage_peers(values, table.ranks.pipeline, healthy)
        for column, signal in enumerate(shares):
            anchored = self._anchored(signal, table, values[:, column])
            beside = self._beside(signal, table.ranks.rank, (values - reference)[:, column], anchored)
            self.monitors[signal].observe(table.step, table.ranks.rank, beside)
            self._observe_outrun(signal, table.ranks.rank, values[:, column], (signal,))

    def _observe_outrun(self, name: str, ranks: Ints, own: Floats, signals: Collection[str]) -> None:
        """own: what these signals' values are of each rank for itself, beside nobody."""
        monitors = {signal: self.monitors[signal] for signal in signals}
        self._outrun.setdefault(name, Outrun()).observe(ranks, own, monitors)

    def _watch_launching(self, table: StepTable, passes: Launching, pace: Floats) -> bool:
        """How late starved ranks are; the pace of others is their device's. Returns whether others may wait for it."""
        if "launching" not in self.monitors:
            return False
        beside = self._beside("launching", table.ranks.rank, passes.beside_peers, pace)
        late = np.where(passes.starved, beside, np.minimum(beside, 0.0))
        self.monitors["launching"].observe(table.step, table.ranks.rank, late)
        return passes.late

    def _watch_waits(
        self,
        table: StepTable,
        effect: ComputeEffect,
        usual: float,
        delayed: npt.NDArray[np.bool_],
        *,
        explained: bool,
    ) -> None:
        """What others wait for a rank beyond what it computes longer, which is judged by itself.

        Where work is unequal they wait for the heaviest replica, where hosts set the pace for the latest of them, and
        where a slow rank is known for that: it needs no other reason, and is not what is usual.
        """
        untold = self._waited_for_untold(table, usual)
        absent = np.isin(table.ranks.rank, table.missing)
        waited = waits.waited_for(table, delayed) - waits.computed_longer(table, effect)
        known = np.where(absent, untold, waited / usual)
        judged = np.full(len(known), np.nan) if explained else known
        self.monitors["wait"].observe(table.step, table.ranks.rank, judged)

    def _waited_for_untold(self, table: StepTable, usual: float) -> Floats:
        """How much longer than in the job's first steps a rank is waited for that does not tell."""
        if not table.missing and len(self._first) == WARM_UP:
            return np.full(len(table.ranks), np.nan)
        return self._anchored("untold", table, waits.waited_for_untold(table) / usual)

    def _beside(self, signal: str, ranks: Ints, beside: Floats, own: Floats) -> Floats:
        return self._standing.setdefault(signal, Standing()).beside(ranks, beside, own, self.monitors[signal].baseline)

    def _anchored(self, signal: str, table: StepTable, values: Floats) -> Floats:
        return self._anchors.setdefault(signal, Anchors()).subtract(table.ranks.rank, values)

    def _watch_links(self, table: StepTable, messages: links.Messages, collectives: links.Collectives) -> None:
        """Where a transfer takes what the members' hosts give it, or runs beside passes, it says nothing of links."""
        if "transfer" not in self.monitors:
            return
        items = self._transfers.numbers(table, messages, collectives)
        shown = np.where(exposure.hidden(messages), np.nan, messages.seconds)
        seconds = np.concatenate([shown, collectives.seconds])
        values, kinds = np.log(np.maximum(seconds, 1e-7)), self._transfers.kinds(items)
        self.monitors["transfer"].observe(table.step, items, values, kinds)
        self._exposure.observe(table, messages, slow=bool(self.monitors["transfer"].alarmed.any()))

    def _watch_saves(self, table: StepTable) -> None:
        """A save that is slow is not learnt: the usual one stays what it was."""
        effect = self._saves.effect(table)
        self.monitors["checkpoint"].observe(table.step, table.ranks.rank, effect.beside)
        self.monitors["job_checkpoint"].observe(table.step, np.zeros(1, np.int64), np.array([effect.of_all]))
        self._saves.learn(table, ~(effect.of_ranks > self.monitors["checkpoint"].noise.allowance))

    def _watch_imbalance(self, table: StepTable, effect: ComputeEffect) -> None:
        stages = imbalance.of_stages(table.ranks, effect, self._healthy(table))
        self.monitors["stage_imbalance"].observe(table.step, np.arange(len(stages)), stages)
        sequences = np.array([imbalance.of_sequences(table.ranks, effect)])
        self.monitors["sequence_imbalance"].observe(table.step, np.zeros(1, np.int64), sequences)
        experts = np.array([imbalance.of_experts(effect)])
        self.monitors["expert_imbalance"].observe(table.step, np.zeros(1, np.int64), experts)
