"""A recorded job as rows of operations, and the step's graph rebuilt from them.

The table holds, for each worker (replica, stage) and step, every operation with its start and duration. What waits for
what is not in it; it follows from how a pipeline works (docs/whatif.md lists the rules) and from the order in which one
model-parallel group ran its operations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from megatronapp.core.errors import DataError
from megatronapp.detector.steps import Floats, Ints
from megatronapp.detector.whatif.graph import Graph, GraphBuilder

FORWARD, BACKWARD = "forward-compute", "backward-compute"
PARAMS, GRADS, SEPARATE_GRADS = "params-all-gather", "grads-reduce-scatter", "separate-grads-all-reduce"
EMBEDDING, LAYERNORM = "embedding-grads-all-reduce", "layernorm-grads-all-reduce"
CLIP, OPTIMIZER, GC = "optimizer-clip-main-grad", "optimizer", "gc"
MESSAGES = ("forward-send", "forward-recv", "backward-send", "backward-recv")
COMPUTE = (FORWARD, BACKWARD, OPTIMIZER, GC)
COMMUNICATION = (*MESSAGES, PARAMS, GRADS, SEPARATE_GRADS, EMBEDDING, LAYERNORM, CLIP)
ACROSS_REPLICAS = (PARAMS, GRADS, SEPARATE_GRADS)

CLOCK_SLACK_SECONDS = 5e-5
"""How far start and end of dependent operations of one worker may cross in a trace."""


class Key(NamedTuple):
    """An operation of the step: the sequence-th of its type on its stage."""

    stage: int
    type: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as the template group ran it; times in seconds from the step's start."""

    key: Key
    start: float
    end: float
    chunk: int
    microbatch: int
    part: int
    """Position of its chunk in the whole model, 0 for the first; −1 where the trace does not tell."""


@dataclass(frozen=True, slots=True)
class Recording:
    """Every operation of every worker and step, on axes (operation, step, replica); nan where none was recorded."""

    operations: tuple[Operation, ...]
    steps: Ints
    replicas: Ints
    start: Floats
    duration: Floats

    @property
    def end(self) -> Floats:
        return self.start + self.duration


def recorded_seconds(recording: Recording) -> Floats:
    """Recorded time of each step: first start to last end over all workers."""
    first = np.nanmin(recording.start, axis=(0, 2))
    return np.asarray(np.nanmax(recording.end, axis=(0, 2)) - first)


def own_seconds(recording: Recording, graph: Graph[Key]) -> Floats:
    """Each operation's own time: its duration without the wait for the last member of its event to arrive.

    An end that lies before that arrival by more than clocks may be off (10 ms) counts as no time at all.
    """
    seconds = recording.duration.copy()
    for event in graph.events:
        members = list(event.operations)
        if len(members) == 1 and not event.across_replicas:
            continue
        start = np.where(np.isnan(recording.start[members]), -np.inf, recording.start[members]).max(axis=0)
        if event.across_replicas:
            start = start.max(axis=-1, keepdims=True)
        seconds[members] = recording.end[members] - start
    return np.where(seconds <= -10e-3, 0.0, seconds)


def host_seconds(recording: Recording, graph: Graph[Key]) -> Floats:
    """By how much each computation began later than everything it waits for had ended: its host was not ready.

    0 for other operations: communication also begins late because of ranks that the trace does not show it wait for.
    """
    late = np.zeros_like(recording.start)
    ends = recording.end
    for event in graph.events:
        for operation in event.operations:
            if recording.operations[operation].key.type in (FORWARD, BACKWARD) and event.after:
                late[operation] = recording.start[operation] - ends[list(event.after)].max(axis=0)
    return np.maximum(np.nan_to_num(late), 0.0)


def recording_graph(recording: Recording) -> Graph[Key]:
    """The step's graph; its operations are the recording's keys, in their order. Raises DataError."""
    builder = GraphBuilder[Key]()
    for operation in recording.operations:
        builder.add(operation.key)
    stages = sorted({operation.key.stage for operation in recording.operations})
    parts = max(operation.part for operation in recording.operations) + 1
    edges: dict[tuple[str, int], list[Key]] = {}
    for stage in stages:
        mine = _Stage(stage, recording.operations)
        _compute_stream(builder, mine)
        _parameter_stream(builder, mine)
        _after_compute(builder, mine)
        for direction in ("forward", "backward"):
            for end in ("send", "recv"):
                edges[f"{direction}-{end}", stage] = _messages(builder, mine, direction, end, parts)
    for direction, towards in (("forward", 1), ("backward", -1)):
        _pair_messages(builder, edges, stages, direction, towards)
        if not any(edges[f"{direction}-send", stage] for stage in stages):
            _hand_over(builder, recording.operations, direction, towards)
    _synchronise(builder, recording.operations)
    return builder.build()


class _Stage:
    """The operations of one stage, by type and in the order in which they began."""

    def __init__(self, stage: int, operations: tuple[Operation, ...]) -> None:
        self.stage = stage
        self.operations = sorted((o for o in operations if o.key.stage == stage), key=lambda o: (o.start, o.key))
        self.compute = self.of(FORWARD, BACKWARD)
        if not self.compute:
            raise DataError(f"stage {stage} has no {FORWARD} or {BACKWARD} operation")

    def of(self, *types: str) -> list[Operation]:
        return [operation for operation in self.operations if operation.key.type in types]

    def keys(self, *types: str) -> list[Key]:
        """In sequence order."""
        return sorted(operation.key for operation in self.of(*types))


def _compute_stream(builder: GraphBuilder[Key], stage: _Stage) -> None:
    builder.chain(operation.key for operation in stage.compute)


def _parameter_stream(builder: GraphBuilder[Key], stage: _Stage) -> None:
    """Parameter gathers and gradient scatters share a stream; a chunk's first forward needs its gathered parameters."""
    builder.chain(operation.key for operation in stage.of(PARAMS, GRADS))
    gathered = {operation.chunk: operation for operation in sorted(stage.of(PARAMS), key=lambda o: o.key)}
    for chunk, gather in gathered.items():
        first = next((o for o in stage.of(FORWARD) if o.chunk == chunk), None)
        if first is not None:
            builder.add(first.key, [gather.key])
    if stage.of(SEPARATE_GRADS):
        _overlapped_gradients(builder, stage)


def _overlapped_gradients(builder: GraphBuilder[Key], stage: _Stage) -> None:
    """The first scatter of a chunk's gradients needs the chunk's last backward."""
    scatters = {operation.chunk: operation for operation in sorted(stage.of(GRADS), key=lambda o: o.key, reverse=True)}
    for chunk, scatter in scatters.items():
        backward = [operation for operation in stage.of(BACKWARD) if operation.chunk == chunk]
        if backward:
            builder.add(scatter.key, [max(backward, key=lambda o: o.end).key])


def _after_compute(builder: GraphBuilder[Key], stage: _Stage) -> None:
    """Last computation → gc → layernorm → embedding → gradients → clip → optimizer.

    Where gradients are scattered during backward, only the separate ones stand in that line, and it also waits for the
    last scatter.
    """
    overlapped = bool(stage.of(SEPARATE_GRADS))
    gradients = SEPARATE_GRADS if overlapped else GRADS
    tail = [key for name in (LAYERNORM, EMBEDDING, gradients, CLIP, OPTIMIZER) for key in stage.keys(name)]
    last_compute = max(stage.compute, key=lambda operation: operation.end).key
    builder.chain([last_compute, *stage.keys(GC), *tail])
    if overlapped and tail:
        builder.add(tail[0], stage.keys(GRADS)[-1:])


def _messages(builder: GraphBuilder[Key], stage: _Stage, direction: str, end: str, parts: int) -> list[Key]:
    """Tie the sends or receives of a stage to the computations they serve; return those that have a peer, in order.

    A receive needs the computation before the one it serves (its buffer), and the first message of the backward phase
    the forward before the last one of the warm-up (they are launched together).
    """
    messages = stage.of(f"{direction}-{end}")
    builder.chain(message.key for message in messages)
    computes = sorted(stage.of(f"{direction}-compute"), key=lambda operation: operation.key)
    paired: list[Key] = []
    for message, index in _serve(messages, computes, end, _has_peer(direction, end, computes, parts)):
        compute = computes[index]
        if end == "send":
            builder.add(message.key, [compute.key])
        else:
            builder.add(compute.key, [message.key])
            builder.add(message.key, [before.key for before in computes[max(0, index - 1) : index]])
        if _has_peer(direction, end, [compute], parts)[0]:
            paired.append(message.key)
    first_backward = next((i for i, o in enumerate(stage.compute) if o.key.type == BACKWARD), 0)
    if direction == "backward" and messages and first_backward >= 2:
        builder.add(min(message.key for message in messages), [stage.compute[first_backward - 2].key])
    return paired


def _has_peer(direction: str, end: str, computes: list[Operation], parts: int) -> list[bool]:
    """False for what the model's first part would receive or its last part send forward, and the reverse backward."""
    border = 0 if (direction == "forward") == (end == "recv") else parts - 1
    return [compute.part != border for compute in computes]


def _serve(
    messages: list[Operation], computes: list[Operation], end: str, has_peer: list[bool]
) -> list[tuple[Operation, int]]:
    """Pair each message with the index of the computation it serves.

    Tracers may also record calls that move nothing: at the step's edges, and for the model's first and last part. So
    there is a message either for each computation with a peer, or for each computation, or for each but the first.
    """
    if not computes:
        return []
    if end == "recv":
        latest = max(compute.start for compute in computes) + CLOCK_SLACK_SECONDS
        messages = [message for message in messages if message.start <= latest]
    else:
        earliest = min(compute.end for compute in computes) - CLOCK_SLACK_SECONDS
        messages = [message for message in messages if message.end >= earliest]
    with_peer = [index for index, peer in enumerate(has_peer) if peer]
    for indices in (with_peer, list(range(len(computes))), list(range(1, len(computes)))):
        if len(messages) == len(indices):
            return list(zip(messages, indices, strict=True))
    if not messages:
        return []
    name, stage = messages[0].key.type, messages[0].key.stage
    raise DataError(
        f"stage {stage} recorded {len(messages)} {name} operations for {len(computes)} computations; messages were lost"
    )


def _pair_messages(
    builder: GraphBuilder[Key], edges: dict[tuple[str, int], list[Key]], stages: list[int], direction: str, towards: int
) -> None:
    """The n-th send towards a stage and the n-th receive there are one message: streams keep their order."""
    for index, stage in enumerate(stages):
        peer = stages[(index + towards) % len(stages)]
        sends, receives = edges[f"{direction}-send", stage], edges[f"{direction}-recv", peer]
        if len(sends) != len(receives):
            raise DataError(
                f"stage {stage} recorded {len(sends)} {direction}-send operations with a peer and stage {peer} "
                f"{len(receives)} {direction}-recv; messages were lost"
            )
        for pair in zip(sends, receives, strict=True):
            builder.together(pair)


def _hand_over(builder: GraphBuilder[Key], operations: tuple[Operation, ...], direction: str, towards: int) -> None:
    """Where a trace tells of no messages: a microbatch goes straight from one part of the model to the next."""
    computes = {(o.part, o.microbatch): o.key for o in operations if o.key.type == f"{direction}-compute"}
    for (part, microbatch), key in computes.items():
        if part >= 0 and (part - towards, microbatch) in computes:
            builder.add(key, [computes[part - towards, microbatch]])


def _synchronise(builder: GraphBuilder[Key], operations: tuple[Operation, ...]) -> None:
    for key in (operation.key for operation in operations if operation.key.type in ACROSS_REPLICAS):
        builder.together([key], across_replicas=True)
    for name, across_replicas in ((EMBEDDING, False), (CLIP, True)):
        for sequence in {operation.key.sequence for operation in operations if operation.key.type == name}:
            members = [o.key for o in operations if o.key.type == name and o.key.sequence == sequence]
            builder.together(members, across_replicas=across_replicas)
