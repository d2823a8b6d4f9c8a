"""Small StepTables made by hand."""

import numpy as np

from megatronapp.detector.formats.rows import make_rows
from megatronapp.detector.steps import Group, RankTable, StepTable
from megatronapp.v1 import trace_pb2

OPERATIONS = ("forward", "backward", "optimizer", "all_reduce", "wgrad")
KINDS = np.array(
    [*[trace_pb2.SPAN_KIND_COMPUTE] * 3, trace_pb2.SPAN_KIND_COLLECTIVE, trace_pb2.SPAN_KIND_COMPUTE], np.int64
)
WGRAD = OPERATIONS.index("wgrad")


def step_table(
    stages, replicas, seconds, *, microbatches=8, chunks=1, tensor=1, collective=0.0, groups=(), step=1, split=False
):
    """A step in which rank r's forward takes seconds[r] and its backward twice that, for every microbatch; half of it
    is W if `split`."""
    lengths = {0: 1, 1: 1, WGRAD: 1} if split else {0: 1, 1: 2}
    world = stages * replicas * tensor
    rank = np.arange(world)
    pipeline, data, lane = rank // (replicas * tensor), rank // tensor % replicas, rank % tensor
    rows = [
        (r, operation, chunk, -1, microbatches, microbatches * seconds[r] * length)
        for r in rank
        for operation, length in lengths.items()
        for chunk in range(chunks)
    ]
    rows += [(r, 3, 0, number, 1, collective) for number, group in enumerate(groups) for r in group.ranks if r in rank]
    columns = dict(
        zip(("rank", "operation", "chunk", "communicator", "count", "duration"), np.array(rows).T, strict=True)
    )
    columns["duration_min"] = columns["duration_max"] = columns["duration"] / columns["count"]
    return StepTable(
        step=step,
        ranks=RankTable(
            rank=rank,
            pipeline=pipeline,
            data=data,
            tensor=lane,
            context=np.zeros(world, int),
            expert=np.zeros(world, int),
            node=np.full(world, "node-0"),
            gpu_uuid=np.full(world, ""),
            device=np.full(world, ""),
            on_cpu=np.zeros(world, bool),
        ),
        rows=make_rows(columns),
        operations=OPERATIONS,
        kinds=KINDS,
        communicators=tuple(groups),
        start=np.zeros(world),
        duration=np.full(world, 1.0),
        cpu=np.zeros(world),
        microbatches=microbatches,
        virtual_stages=chunks,
    )


def tensor_groups(stages, replicas, tensor):
    workers = range(stages * replicas)
    return tuple(Group(f"tp:{w}", "tp", tuple(range(w * tensor, (w + 1) * tensor))) for w in workers)
