"""Timeline: one step of a synchronous job, from what each rank does by itself to what each rank spends on whom.

    host, data, garbage │ passes, waiting for peers, stages, experts │ reduce-scatter │ norm │ optimizer │ gather

A tensor group goes through each pass together, as slow as its slowest rank; the others wait in the group's collectives.
Stages wait for each other's messages as the schedule says. Replicas meet in the reduce-scatter, stages in the agreement
on the gradient's norm, and replicas again in the all-gather of the parameters. A rank's rows and the time that its host
loses outside of them make up its step exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bench.scale.families import TENSOR_OPERATIONS, Families
from bench.scale.layout import DP, EP, MP, TP, Layout
from bench.scale.schedule import Times, pipeline
from megatronapp.detector.steps import Floats

FILLED = 0.98
"""Share of a step that is not lost on hosts: the rest is left for the noise."""
TENSOR, EXPERTS, MESSAGE = 0.08, 0.05, 0.01
"""Shares of a pass that its tensor group's collectives, its experts' exchange and its message take."""
REDUCE, GATHER, NORM, OPTIMIZER = 0.03, 0.02, 0.001, 0.03
"""Shares of a step."""
ISSUE_SECONDS = 1e-6
"""What is seen of a send that nobody waits for."""


@dataclass(frozen=True, slots=True)
class Forces:
    """What a step is made of. Arrays have one entry a rank unless it says otherwise; `log_` is of a factor."""

    start: Floats
    """Seconds after the first rank at which each begins."""
    log_compute: Floats
    work: Floats
    """(stages or 1, replicas, tensor ranks or 1, microbatches): of a pass's usual time."""
    jitter: Floats
    """(2, stages, replicas, tensor ranks, passes): of the forward and the backward passes."""
    host: Floats
    """Seconds; so data, garbage."""
    data: Floats
    garbage: Floats
    log_optimizer: Floats
    log_message: Floats
    """(2, ranks): of the messages that a rank sends forward and backward."""
    log_reduce: Floats
    """Of a rank's share in its replicas' collectives: a group takes as long as its slowest member's."""
    log_tensor: Floats
    """(stages, replicas)."""


@dataclass(frozen=True, slots=True)
class Spent:
    """(ranks, families) in seconds: of all of a row's operations together, of the shortest and of the longest."""

    total: Floats
    least: Floats
    most: Floats
    duration: Floats
    """Of each rank's step."""
    host: Floats
    """What of it is in no row."""
    end: Floats
    """Of each rank's step, after the first rank's begin."""


class Timeline:
    def __init__(self, layout: Layout, step_seconds: float) -> None:
        self.layout, self.families = layout, Families(layout)
        self._schedule = pipeline(layout.pp, layout.vpp, layout.microbatches)
        self._passes = layout.microbatches * layout.vpp
        self._reduce, self._gather = (share * step_seconds if layout.dp > 1 else 0.0 for share in (REDUCE, GATHER))
        self._norm = NORM * step_seconds if layout.pp * layout.tp > 1 else 0.0
        self._optimizer = OPTIMIZER * step_seconds
        body = FILLED * step_seconds - self._reduce - self._gather - self._norm - self._optimizer
        bubble = 1 + (layout.pp - 1) / self._passes
        unit = body / bubble / self._passes
        self._tensor = TENSOR * unit / 2 if layout.tp > 1 else 0.0
        self._experts = EXPERTS * unit / 2 if layout.ep > 1 else 0.0
        self.message_seconds = MESSAGE * unit / 2 if layout.pp > 1 else 0.0
        self.compute_seconds = (unit - 2 * (self._tensor + self._experts + self.message_seconds)) * self._passes
        self._masks = self._row_masks()

    def run(self, forces: Forces) -> Spent:
        shape, spent = self.layout.shape, _nothing(self.layout.world, len(self.families))
        own = self._own_passes(forces)
        slowest = own.max(axis=3)
        tensor = self._tensor * np.exp(forces.log_tensor)
        took = slowest + tensor[None, ..., None] + self._experts
        ready = (forces.start + forces.host + forces.data + forces.garbage).reshape(shape)
        begin = ready.max(axis=2)
        message = self.message_seconds * np.exp(forces.log_message).reshape(2, *shape)
        moved = message.max(axis=3)
        times = self._schedule.run(begin, self._in_order(took), self._transfers(moved), self.layout.ep)
        self._tell_passes(spent, own)
        self._tell_tensor(spent, slowest[:, :, :, None] - own, begin[..., None] - ready, tensor)
        self._tell_messages(spent, times, message, moved)
        self._tell_experts(spent, times)
        for name, seconds in (("data", forces.data), ("gc", forces.garbage)):
            self._put(spent, self.families.of(name), seconds)
        done = times.end[:, -1] + (times.sent[:, -1] if self._schedule.blocking else 0.0)
        return self._finish(spent, forces, np.repeat(done[..., None], shape[2], axis=2))

    # ---- the passes ----

    def _own_passes(self, forces: Forces) -> Floats:
        """(2, stages, replicas, tensor ranks, passes): what each rank computes itself."""
        work = np.tile(forces.work, self.layout.vpp) if self.layout.vpp > 1 else forces.work
        rank = np.exp(forces.log_compute).reshape(*self.layout.shape, 1) * (self.compute_seconds / self._passes / 3)
        own: Floats = forces.jitter * (rank * work)
        own[1] *= 2.0
        return own

    def _in_order(self, took: Floats) -> Floats:
        """(stages, passes in the stage's order, replicas) of (2, stages, replicas, passes)."""
        schedule = self._schedule
        both = np.concatenate([took[0], took[1]], axis=2)
        index = schedule.pass_index + self._passes * schedule.backward
        taken: Floats = np.take_along_axis(
            both, np.broadcast_to(index[:, None, :], (*both.shape[:2], index.shape[1])), 2
        )
        return taken.transpose(0, 2, 1)

    def _transfers(self, moved: Floats) -> Floats:
        """Of the message that each pass waits for; moved: (2, sending stages, replicas)."""
        schedule = self._schedule
        forward, backward = np.roll(moved[0], 1, axis=0), np.roll(moved[1], -1, axis=0)
        arriving = np.where(schedule.backward[..., None], backward[:, None], forward[:, None])
        return np.asarray(arriving * schedule.receives[..., None])

    def _row_masks(self) -> dict[tuple[str, int], Floats]:
        """(stages, 1, passes in order): which of them belong to a row."""
        schedule = self._schedule
        return {
            (name, chunk): ((schedule.backward == back) & (schedule.chunk == chunk))[:, None].astype(np.float64)
            for name, back in (("forward", False), ("backward", True))
            for chunk in range(self.layout.vpp)
        }

    def _tell_passes(self, spent: Spent, own: Floats) -> None:
        chunks = own.reshape(2, self.layout.world, self.layout.vpp, self.layout.microbatches)
        total, least, most = chunks.sum(axis=3), chunks.min(axis=3), chunks.max(axis=3)
        for direction, name in enumerate(("forward", "backward")):
            for chunk in range(self.layout.vpp):
                column, of = self.families.of(name, chunk), (direction, slice(None), chunk)
                self._put(spent, column, total[of], least[of], most[of])

    def _tell_tensor(self, spent: Spent, waits: Floats, late: Floats, tensor: Floats) -> None:
        """waits: as own passes; late: what the group's first collective waits for its last member's begin."""
        if self.layout.tp == 1:
            return
        m, chunks = self.layout.microbatches, self.layout.vpp
        waited = waits.sum(axis=0).reshape(self.layout.world, chunks, m).sum(axis=2)
        waited[:, 0] += late.reshape(-1)
        transfer = np.repeat(tensor.reshape(-1), self.layout.tp)
        for chunk in range(chunks):
            total, shortest = waited[:, chunk] + 2 * m * transfer, transfer / TENSOR_OPERATIONS
            longest = shortest + waited[:, chunk] / (2 * m)
            self._put(spent, self.families.of("all_reduce", chunk, TP), total, shortest, longest)

    def _tell_experts(self, spent: Spent, times: Times) -> None:
        if self.layout.ep == 1:
            return
        m = self.layout.microbatches
        for chunk in range(self.layout.vpp):
            mask = self._masks["forward", chunk] + self._masks["backward", chunk]
            waited = self._per_rank(np.matmul(mask, times.coupled)[:, 0])
            shortest = np.full_like(waited, self._experts / 2)
            column = self.families.of("all_to_all", chunk, EP)
            self._put(spent, column, waited + 2 * m * self._experts, shortest, shortest + waited / (4 * m))

    def _per_rank(self, of_workers: Floats) -> Floats:
        """(stages, replicas) → ranks."""
        return np.repeat(of_workers.reshape(-1), self.layout.tp)

    # ---- messages ----

    def _tell_messages(self, spent: Spent, times: Times, message: Floats, moved: Floats) -> None:
        """A tensor rank whose message is faster than the group's slowest waits for that in the group's collective."""
        if self.layout.pp == 1:
            return
        early = np.zeros((self.layout.world, self.layout.vpp))
        for chunk in range(self.layout.vpp):
            for direction, name, sender in ((0, "forward", 1), (1, "backward", -1)):
                mask, ahead = self._masks[name, chunk], (moved[direction][..., None] - message[direction]).reshape(-1)
                arriving = np.roll(ahead.reshape(self.layout.shape), sender, axis=0).reshape(-1)
                for end, waited, gain in (("send", times.sent, ahead), ("recv", times.received, arriving)):
                    if end == "send" and not self._schedule.blocking:
                        self._put_issued(spent, self.families.of(f"{name}_{end}", chunk))
                        continue
                    column = self.families.of(f"{name}_{end}", chunk)
                    early[:, chunk] += self._tell_direction(spent, column, waited, mask, gain)
        for chunk in range(self.layout.vpp):
            if (column := self.families.of("all_reduce", chunk, TP)) >= 0:
                spent.total[:, column] += early[:, chunk]

    def _tell_direction(self, spent: Spent, column: int, waited: Floats, mask: Floats, gain: Floats) -> Floats:
        """Returns what each rank waits less here than the slowest of its tensor group."""
        total = self._per_rank(np.matmul(mask, waited)[:, 0])
        mine = mask[:, 0, :, None] > 0
        least = self._per_rank(np.where(mine, waited, np.inf).min(axis=1))
        most = self._per_rank(np.where(mine, waited, 0.0).max(axis=1))
        count = self.families.count[:, column]
        less = np.minimum(gain * count, total * (count > 0))
        self._put(spent, column, total - less, np.maximum(least - gain, 0.0), most)
        return less

    def _put_issued(self, spent: Spent, column: int) -> None:
        self._put(spent, column, np.zeros(self.layout.world), np.full(self.layout.world, ISSUE_SECONDS))

    # ---- the end of the step ----

    def _finish(self, spent: Spent, forces: Forces, arrival: Floats) -> Spent:
        shape = self.layout.shape
        slowest = np.exp(forces.log_reduce).reshape(shape).max(axis=1, keepdims=True)
        reduced, optimizer = arrival, (self._optimizer * np.exp(forces.log_optimizer)).reshape(shape)
        if self.layout.dp > 1:
            reduced = np.broadcast_to(arrival.max(axis=1, keepdims=True) + self._reduce * slowest, shape)
        agreed = np.broadcast_to(reduced.max(axis=(0, 2), keepdims=True) + self._norm, shape)
        end = stepped = agreed + optimizer
        if self.layout.dp > 1:
            end = np.broadcast_to(stepped.max(axis=1, keepdims=True) + self._gather * slowest, shape)
        for name, group, seconds in (
            ("reduce_scatter", DP, reduced - arrival),
            ("all_reduce", MP, agreed - reduced),
            ("optimizer", "", optimizer),
            ("all_gather", DP, end - stepped),
        ):
            self._put(spent, self.families.of(name, -1, group), seconds.reshape(-1))
        ends = end.reshape(-1)
        duration = ends - forces.start
        return Spent(spent.total, spent.least, spent.most, duration, duration - spent.total.sum(axis=1), ends)

    def _put(
        self, spent: Spent, column: int, total: Floats, least: Floats | None = None, most: Floats | None = None
    ) -> None:
        """Write a family's times; those of one operation are the same three times."""
        if column < 0:
            return
        has = self.families.count[:, column] > 0
        count = np.maximum(self.families.count[:, column], 1)
        mean = total / count
        spent.total[:, column] = total * has
        spent.least[:, column] = (mean if least is None else least) * has
        spent.most[:, column] = (mean if most is None else most) * has


def _nothing(world: int, families: int) -> Spent:
    total, least, most = (np.zeros((world, families)) for _ in range(3))
    return Spent(total, least, most, np.zeros(world), np.zeros(world), np.zeros(world))
