"""A run's history as it is now: what the store has, and what is still in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatronapp.collector import history, tables
from megatronapp.collector.blocks import SummaryBlock
from megatronapp.collector.jobs import Attempt, Rank
from megatronapp.collector.parts import Part
from megatronapp.collector.store import Store
from megatronapp.v1 import trace_pb2


@dataclass(frozen=True)
class Snapshot:
    """One attempt; taken in the event loop, where memory and the store's list of files agree, and read in a thread."""

    store: Store
    parts: Sequence[Part]
    summaries: Sequence[SummaryBlock]
    head: trace_pb2.AttemptHistory
    """The attempt without its rows."""
    pipeline: bool

    def rows(self) -> history.Columns:
        found = self.store.history(self.parts)
        if self.summaries:
            found.append(history.of_steps(tables.step_table(self.summaries)))
        return history.read(found)


def take(store: Store, attempt: Attempt) -> Snapshot:
    """Call it in the event loop."""
    ranks = list(attempt.ranks.values())
    head = trace_pb2.AttemptHistory(
        attempt=attempt.attempt,
        first_seen_unix_ns=attempt.first_seen_unix_ns,
        last_seen_unix_ns=attempt.last_seen_unix_ns,
        live=any(rank.streams for rank in ranks),
        ended_well=bool(ranks) and all(_ended_well(rank) for rank in ranks),
        first_step=max(1, attempt.schedule.first_step),
        evaluations=attempt.evaluations,
    )
    summaries = [block for buffer in (attempt.writing, attempt.buffer) for block in buffer.summaries]
    return Snapshot(store, store.history_parts(attempt.key), summaries, head, attempt.sizes.pipeline > 1)


def read(snapshots: Sequence[Snapshot], request: trace_pb2.ReadHistoryRequest) -> trace_pb2.ReadHistoryResponse:
    asked = history.Range(request.from_step, request.to_step, request.from_unix_ns, request.to_unix_ns)
    found = [asked.of(snapshot.rows()) for snapshot in snapshots]
    shares = history.share(request.bins or history.DEFAULT_BINS, [len(rows["step"]) for rows in found])
    answer = trace_pb2.ReadHistoryResponse()
    for snapshot, rows, bins in zip(snapshots, found, shares, strict=True):
        attempt = history.attempt_bins(rows, bins, by_time=request.by_time, pipeline=snapshot.pipeline)
        attempt.MergeFrom(snapshot.head)
        answer.attempts.append(attempt)
    return answer


def _ended_well(rank: Rank) -> bool:
    heartbeat = rank.process.heartbeat
    return rank.process.closed and (heartbeat is None or heartbeat.phase == trace_pb2.PHASE_PAUSE)
