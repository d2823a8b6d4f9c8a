"""Slow workers planted into recorded jobs: the trace that the job would have left, had they been slow."""

import dataclasses

import numpy as np

from megatronapp.detector.whatif import replay
from megatronapp.detector.whatif.recording import BACKWARD, FORWARD, own_seconds, recording_graph


def plant(trace, workers, effect, from_index=0):
    """workers: (stage, replica) pairs whose compute takes effect times as long from the from_index-th step on.

    Everything that depends on them is late too; waiting times are those of a replay.
    """
    recording = trace.recording
    graph = recording_graph(recording)
    seconds = own_seconds(recording, graph)
    for index, operation in enumerate(recording.operations):
        for stage, replica in workers:
            if operation.key.stage == stage and operation.key.type in (FORWARD, BACKWARD):
                seconds[index, from_index:, replica] *= effect
    return _replayed(trace, graph, seconds)


def with_equal_stages(trace):
    """The same job, had all its workers had the same work: passes take their mean time, but for 0.3 %."""
    recording = trace.recording
    graph = recording_graph(recording)
    seconds = own_seconds(recording, graph)
    for name in (FORWARD, BACKWARD):
        passes = [i for i, operation in enumerate(recording.operations) if operation.key.type == name]
        shape = seconds[passes].shape
        seconds[passes] = np.nanmean(seconds[passes]) * (1 + 0.003 * np.random.default_rng(1).standard_normal(shape))
    return _replayed(trace, graph, seconds)


def _replayed(trace, graph, seconds):
    recording, ends = trace.recording, replay(graph, seconds)
    starts = np.zeros_like(ends)
    for event in graph.events:
        for operation in event.operations:
            if event.after:
                starts[operation] = ends[list(event.after)].max(axis=0)
    operations = tuple(
        dataclasses.replace(operation, start=float(starts[i, 0, 0]), end=float(ends[i, 0, 0]))
        for i, operation in enumerate(recording.operations)
    )
    slow = dataclasses.replace(recording, operations=operations, start=starts, duration=ends - starts)
    return dataclasses.replace(trace, recording=slow)


def paged_ranks(report):
    return sorted(rank for finding in report.findings if finding.page for rank in finding.ranks)


def ranks_of(trace, workers):
    size = trace.meta.ranks_per_worker
    return sorted(int(trace.rank[worker]) + i for worker in workers for i in range(size))
