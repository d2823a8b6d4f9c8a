"""Another simulator of MegaFBD, which shares nothing with the product: stages and links as agents on continuous time.

Transfers share links evenly (the product's take turns), layers run one by one (the product's part by part), and each
layer waits for its own weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

WEIGHT_GIB = 2 / 2**30
NOTHING = 1e-9
"""ms: what is left of something that has ended."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Times are of one microbatch on one training stage. Forward devices are a replica's."""

    layers: int = 32
    hidden: int = 4096
    sequence: int = 4096
    vocabulary: int = 50304
    stages: int = 4
    microbatches: int = 32
    tensor: int = 1
    memory_gib: float = 80.0
    forward_ms: float = 32.0
    dgrad_ms: float = 32.0
    wgrad_ms: float = 32.0
    devices: int = 4
    speed: float = 1.0
    device_memory_gib: float = 24.0
    gigabytes_per_second: float = 50.0
    chunks: int = 1


@dataclass(frozen=True)
class Way:
    """One way to run it."""

    linears: bool
    tensor: int
    pipeline: int
    slots: int


@dataclass
class Transfer:
    key: tuple[Any, ...]
    sender: int
    receiver: int
    left: float
    needs: tuple[Any, ...] | None


class World:
    """What has happened, and what is under way."""

    def __init__(self, cluster: Cluster, way: Way) -> None:
        self.cluster, self.way = cluster, way
        self.now = 0.0
        self.done: set[tuple[Any, ...]] = set()
        self.transfers: list[Transfer] = []
        self.programs = [list(_forward_program(cluster, way, stage)) for stage in range(way.pipeline)]
        self.programs += [list(_backward_program(cluster, stage)) for stage in range(cluster.stages)]
        self.position, self.busy = [0] * len(self.programs), [0.0] * len(self.programs)
        self.weights = [list(_span(cluster, way, stage)) for stage in range(way.pipeline)]
        self.weights_left = [_weights_ms(cluster, way)] * way.pipeline

    def run(self) -> float:
        while any(self._next(agent) for agent in range(len(self.programs))):
            while any(self._begin(agent) for agent in range(len(self.programs))):
                pass
            self._advance()
        return self.now

    def _next(self, agent: int) -> tuple[Any, ...] | None:
        program = self.programs[agent]
        return program[self.position[agent]] if self.position[agent] < len(program) else None

    def _begin(self, agent: int) -> bool:
        """Whether the agent has begun something: it sends, or is busy from now on."""
        operation = self._next(agent)
        if operation is None or self.busy[agent]:
            return False
        if not _can_begin(self.cluster, self.way, operation, self):
            return False
        if operation[0] == "send":
            self.transfers.append(_transfer(self.cluster, self.way, operation))
            self.position[agent] += 1
        else:
            self.busy[agent] = _duration(self.cluster, self.way, operation)
        return True

    def _advance(self) -> None:
        """To when the next thing ends."""
        rates = _rates(self.transfers, self.done)
        waits = [left for left in self.busy if left]
        waits += [each.left / rate for each, rate in zip(self.transfers, rates, strict=True) if rate]
        waits += [left for left, queue in zip(self.weights_left, self.weights, strict=True) if queue]
        step = min(waits)
        self.now += step
        for each, rate in zip(self.transfers, rates, strict=True):
            each.left -= rate * step
        self.done.update(each.key for each in self.transfers if each.left < NOTHING)
        self.transfers = [each for each in self.transfers if each.left >= NOTHING]
        for agent, left in enumerate(self.busy):
            if left:
                self._work(agent, left - step)
        for stage, queue in enumerate(self.weights):
            self._receive_weights(stage, queue, step)

    def _work(self, agent: int, left: float) -> None:
        self.busy[agent] = left if left > NOTHING else 0.0
        if not self.busy[agent]:
            self.done.add(self.programs[agent][self.position[agent]])
            self.position[agent] += 1

    def _receive_weights(self, stage: int, queue: list[int], step: float) -> None:
        self.weights_left[stage] -= step
        if queue and self.weights_left[stage] < NOTHING:
            self.done.add(("weights", queue.pop(0)))
            self.weights_left[stage] = _weights_ms(self.cluster, self.way)


def step_ms(cluster: Cluster, way: Way) -> float:
    """Of one training step, without gradient sync and optimizer."""
    return World(cluster, way).run()


def _span(cluster: Cluster, way: Way, stage: int) -> range:
    count = cluster.layers if way.linears else cluster.layers - _part_layers(cluster)
    cuts = [0]
    for index in range(way.pipeline):
        cuts.append(cuts[-1] + count // way.pipeline + (1 if index < count % way.pipeline else 0))
    return range(cuts[stage], cuts[stage + 1])


def _part_layers(cluster: Cluster) -> int:
    return cluster.layers // (cluster.stages * cluster.chunks)


def _forward_program(cluster: Cluster, way: Way, stage: int) -> Iterator[tuple[Any, ...]]:
    span, part_layers = _span(cluster, way, stage), _part_layers(cluster)
    for microbatch in range(cluster.microbatches):
        for layer in span:
            yield "layer", layer, microbatch
            part, ends = layer // part_layers, (layer + 1) % part_layers == 0
            if ends and layer + 1 < cluster.layers:
                yield "send", "input", part + 1, microbatch, stage, 1
            if way.linears and (ends or layer == span[-1]):
                inside = len([each for each in span if each // part_layers == part])
                yield "send", "linears", part, microbatch, stage, inside


def _backward_program(cluster: Cluster, stage: int) -> Iterator[tuple[Any, ...]]:
    """Runs the next one again before each backward; microbatches in groups, the last chunk first. Without tensor ranks
    a stage that others wait for computes weights' gradients once it has sent its own."""
    order = []
    if cluster.chunks == 1:
        order = [(0, i) for i in range(cluster.microbatches)]
    else:
        for first in range(0, cluster.microbatches, cluster.stages):
            group = range(first, min(first + cluster.stages, cluster.microbatches))
            order += [(chunk, i) for chunk in reversed(range(cluster.chunks)) for i in group]
    for index, (chunk, microbatch) in enumerate(order):
        if not index:
            yield "again", chunk * cluster.stages + stage, microbatch
        if index + 1 < len(order):
            yield "again", order[index + 1][0] * cluster.stages + stage, order[index + 1][1]
        yield "backward", chunk * cluster.stages + stage, microbatch
        if _weights_apart(cluster):
            yield "weights' gradients", chunk * cluster.stages + stage, microbatch


def _weights_apart(cluster: Cluster) -> bool:
    return cluster.tensor == 1 < cluster.stages


def _can_begin(cluster: Cluster, way: Way, operation: tuple[Any, ...], world: World) -> bool:
    kind, place, microbatch = operation[0], operation[1], operation[2]
    if kind == "layer":
        before = place == 0 or ("layer", place - 1, microbatch) in world.done
        return before and ("weights", place) in world.done
    if kind == "send":
        stream = (operation[1], operation[2], operation[4])
        return sum((each.key[0], each.key[1], each.sender) == stream for each in world.transfers) < 2
    if kind == "weights' gradients":
        return True
    if kind == "backward":
        return place + 1 == cluster.stages * cluster.chunks or ("backward", place + 1, microbatch) in world.done
    given = set() if place == 0 else {("input", place, microbatch, _sender_of(cluster, way, place))}
    if not way.linears:
        return given <= world.done
    layers = range(place * _part_layers(cluster), (place + 1) * _part_layers(cluster))
    for stage in range(way.pipeline):
        if set(layers) & set(_span(cluster, way, stage)):
            given.add(("linears", place, microbatch, stage))
    return given <= world.done


def _sender_of(cluster: Cluster, way: Way, part: int) -> int:
    layer = part * _part_layers(cluster) - 1
    return next(stage for stage in range(way.pipeline) if layer in _span(cluster, way, stage))


def _duration(cluster: Cluster, way: Way, operation: tuple[Any, ...]) -> float:
    if operation[0] == "layer":
        whole = cluster.forward_ms * cluster.stages * cluster.tensor / (way.tensor * cluster.speed)
        return whole / cluster.layers
    if operation[0] == "backward":
        return (cluster.dgrad_ms + cluster.wgrad_ms * (not _weights_apart(cluster))) / cluster.chunks
    if operation[0] == "weights' gradients":
        return cluster.wgrad_ms / cluster.chunks
    linears, attention = 12 * cluster.hidden, cluster.sequence
    kept = attention / (linears + attention) if way.linears else 1.0
    return cluster.forward_ms * kept / cluster.chunks


def _transfer(cluster: Cluster, way: Way, operation: tuple[Any, ...]) -> Transfer:
    _, what, part, microbatch, stage, layers = operation
    values = cluster.sequence * cluster.hidden
    if what == "input":
        gigabytes = 2 * values * max(cluster.tensor / way.tensor, 1.0) / 1e9
    else:
        gigabytes = 2 * values * layers * (7 / way.tensor + 2) / 1e9
    earlier = microbatch - way.slots
    return Transfer(
        (what, part, microbatch, stage),
        stage,
        part % cluster.stages,
        1e3 * gigabytes / cluster.gigabytes_per_second,
        ("backward", part, earlier) if earlier >= 0 else None,
    )


def _rates(transfers: list[Transfer], done: set[tuple[Any, ...]]) -> list[float]:
    active = [each.needs is None or each.needs in done for each in transfers]
    out: dict[tuple[str, int], int] = {}
    for each, runs in zip(transfers, active, strict=True):
        for end in (("out", each.sender), ("in", each.receiver)) if runs else ():
            out[end] = out.get(end, 0) + 1
    return [
        1 / max(out["out", each.sender], out["in", each.receiver]) if runs else 0.0
        for each, runs in zip(transfers, active, strict=True)
    ]


def _weights_ms(cluster: Cluster, way: Way) -> float:
    gigabytes = 2 * 12 * cluster.hidden**2 / min(way.tensor, cluster.tensor) / 1e9
    return 1e3 * gigabytes / cluster.gigabytes_per_second


# ---- what stock takes, and what fits


def stock_ms(cluster: Cluster, *, recomputes: bool) -> float:
    """1F1B, stage by stage, chunks of one."""
    p, m = cluster.stages, cluster.microbatches
    forward, backward = cluster.forward_ms, cluster.dgrad_ms + cluster.wgrad_ms + cluster.forward_ms * recomputes
    ended: dict[tuple[str, int, int], float] = {}
    programs = []
    for stage in range(p):
        warm = min(p - 1 - stage, m)
        program = [("F", i) for i in range(warm)]
        for i in range(m - warm):
            program += [("F", warm + i), ("B", i)]
        programs.append(program + [("B", i) for i in range(m - warm, m)])
    position, free = [0] * p, [0.0] * p
    while any(position[s] < len(programs[s]) for s in range(p)):
        for stage in range(p):
            while position[stage] < len(programs[stage]):
                kind, i = programs[stage][position[stage]]
                other = stage - 1 if kind == "F" else stage + 1
                if 0 <= other < p and (kind, other, i) not in ended:
                    break
                begin = max(free[stage], ended.get((kind, other, i), 0.0))
                free[stage] = ended[kind, stage, i] = begin + (forward if kind == "F" else backward)
                position[stage] += 1
    return max(free)


def baseline_ms(cluster: Cluster) -> float:
    """The fastest training that fits, also with forward devices that train."""
    made = []
    for recomputes in (False, True):
        needed = _trained_gib(cluster) + _held_gib(cluster, recomputes=recomputes)
        if needed > cluster.memory_gib:
            continue
        own = stock_ms(cluster, recomputes=recomputes)
        made.append(own)
        if needed <= cluster.device_memory_gib:
            more = (1 + cluster.devices / (cluster.stages * cluster.tensor)) * min(1.0, cluster.speed)
            made.append(own / max(more, 1.0))
    return min(made)


def ways(cluster: Cluster) -> Iterator[Way]:
    """All that fit, each with as many slots as do: more are never slower."""
    for linears, tensor, pipeline in product(
        (False, True), range(1, cluster.devices + 1), range(1, cluster.devices + 1)
    ):
        divides = max(tensor, cluster.tensor) % min(tensor, cluster.tensor) == 0
        possible = tensor == cluster.tensor if linears else divides and cluster.stages > 1
        if possible and cluster.hidden // 128 % tensor == 0 and tensor * pipeline <= cluster.devices:
            for slots in sorted({2, cluster.stages + 1, cluster.stages + 2, 2 * cluster.stages}, reverse=True):
                if _way_fits(cluster, Way(linears, tensor, pipeline, slots)):
                    yield Way(linears, tensor, pipeline, slots)
                    break


def _way_fits(cluster: Cluster, way: Way) -> bool:
    gib = cluster.sequence * cluster.hidden / 2**30
    part = _part_layers(cluster)
    message = 2 * gib + (2 * gib * part * (7 / way.tensor + 2) if way.linears else 0.0)
    run_again = min(2, cluster.microbatches)
    on_backward = _trained_gib(cluster) + run_again * part * gib * (10 + 24 / cluster.tensor)
    on_backward += (way.slots - run_again) * message + way.slots * message
    own = len(_span(cluster, way, 0))
    weights = (own * 12 * cluster.hidden**2 + cluster.vocabulary * cluster.hidden) * WEIGHT_GIB / way.tensor
    on_forward = weights + gib * (10 + 24 / way.tensor) + min(cluster.stages, 1 + own // part) * 2 * message
    return on_backward <= cluster.memory_gib and on_forward <= cluster.device_memory_gib


def _trained_gib(cluster: Cluster) -> float:
    parameters = cluster.layers // cluster.stages * 12 * cluster.hidden**2 + cluster.vocabulary * cluster.hidden
    return 9 * WEIGHT_GIB * parameters / cluster.tensor


def _held_gib(cluster: Cluster, *, recomputes: bool) -> float:
    gib = cluster.sequence * cluster.hidden / 2**30
    layer, layers = gib * (10 + 24 / cluster.tensor), cluster.layers // cluster.stages
    held = min(cluster.stages, cluster.microbatches)
    return held * layers * 2 * gib + layer if recomputes else held * layers * layer
