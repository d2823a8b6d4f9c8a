"""Recorded jobs made by replaying a pipeline whose operations take known times."""

from typing import NamedTuple

import numpy as np

from megatronapp.detector.whatif import GraphBuilder, replay, stage_order
from megatronapp.detector.whatif.recording import Key, Operation, Recording

SECONDS = {
    "forward-compute": 1.0,
    "backward-compute": 2.0,
    "params-all-gather": 0.2,
    "gc": 0.001,
    "layernorm-grads-all-reduce": 0.001,
    "embedding-grads-all-reduce": 0.02,
    "grads-reduce-scatter": 0.3,
    "optimizer-clip-main-grad": 0.01,
    "optimizer": 0.1,
}
MESSAGE_SECONDS = 0.003
TAIL = ("gc", "layernorm-grads-all-reduce", "embedding-grads-all-reduce", "grads-reduce-scatter")
END = ("optimizer-clip-main-grad", "optimizer")


class Layout(NamedTuple):
    stages: int
    chunks: int
    microbatches: int
    replicas: int
    steps: int = 2


def record(layout, scale=lambda key, shape: 1.0):
    """scale(key, (steps, replicas)): factor on an operation's time."""
    builder, facts = GraphBuilder(), {}
    for stage in range(layout.stages):
        _stage(builder, facts, layout, stage)
    _pair(builder, facts, layout)
    graph = builder.build()
    shape = (layout.steps, layout.replicas)
    seconds = np.stack(
        [np.broadcast_to(SECONDS.get(k.type, MESSAGE_SECONDS) * scale(k, shape), shape) for k in graph.operations]
    )
    ends = replay(graph, seconds)
    starts = np.zeros_like(ends)
    for event in graph.events:
        for operation in event.operations:
            waits = [graph.operations.index(key) for key in facts[graph.operations[operation]]["after"]]
            if waits:
                starts[operation] = ends[waits].max(axis=0)
    operations = tuple(
        Operation(key, float(starts[i, 0, 0]), float(ends[i, 0, 0]), *facts[key]["where"])
        for i, key in enumerate(graph.operations)
    )
    return Recording(operations, np.arange(layout.steps) + 7, np.arange(layout.replicas), starts, ends - starts)


def _stage(builder, facts, layout, stage):
    def add(key, after, where=(-1, -1, -1)):
        facts.setdefault(key, {"after": [], "where": where})["after"].extend(after)
        builder.add(key, after)
        return key

    parts, counts, previous, last = layout.stages * layout.chunks, {}, None, {}
    gather = None
    for chunk in range(layout.chunks):
        gather = add(Key(stage, "params-all-gather", chunk), [gather] if gather else [], (chunk, -1, -1))
        builder.together([gather], across_replicas=True)
    order = stage_order(stage, layout.stages, layout.chunks, layout.microbatches)
    first_backward = next(i for i, o in enumerate(order) if o.operation == "backward")
    keys = []
    for position, compute in enumerate(order):
        direction, part = compute.operation, compute.chunk * layout.stages + stage
        name = f"{direction}-compute"
        key = Key(stage, name, counts.setdefault(name, 0))
        counts[name] += 1
        where = (compute.chunk, compute.microbatch, part)
        after = [previous] if previous else []
        if direction == "forward" and compute.microbatch == 0:
            after.append(Key(stage, "params-all-gather", compute.chunk))
        if part != (0 if direction == "forward" else parts - 1):
            after.append(_receive(add, stage, direction, counts, last, keys, position, first_backward))
        previous = last[direction] = add(key, after, where)
        keys.append(key)
        if part != (parts - 1 if direction == "forward" else 0):
            name = f"{direction}-send"
            number = counts.setdefault(name, 0)
            counts[name] += 1
            add(Key(stage, name, number), [key, *([Key(stage, name, number - 1)] if number else [])])
    edge = stage in (0, layout.stages - 1)
    for name in (*(t for t in TAIL if edge or not t.startswith("embedding")), *END):
        previous = add(Key(stage, name, 0), [previous], (0, -1, -1))
    builder.together([Key(stage, "grads-reduce-scatter", 0)], across_replicas=True)


def _receive(add, stage, direction, counts, last, keys, position, first_backward):
    name = f"{direction}-recv"
    number = counts.setdefault(name, 0)
    counts[name] += 1
    after = [last[direction]] if direction in last else []
    if number:
        after.append(Key(stage, name, number - 1))
    elif direction == "backward" and first_backward >= 2:
        after.append(keys[first_backward - 2])
    return add(Key(stage, name, number), after)


def _pair(builder, facts, layout):
    for direction, towards in (("forward", 1), ("backward", -1)):
        for stage in range(layout.stages):
            peer = (stage + towards) % layout.stages
            sends = sorted(k for k in facts if k.stage == stage and k.type == f"{direction}-send")
            receives = sorted(k for k in facts if k.stage == peer and k.type == f"{direction}-recv")
            for pair in zip(sends, receives, strict=True):
                builder.together(pair)
    for name, across in (("embedding-grads-all-reduce", False), ("optimizer-clip-main-grad", True)):
        builder.together([k for k in facts if k.type == name], across_replicas=across)
