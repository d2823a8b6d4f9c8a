"""Whether MegaFBD pays on these devices, how, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megatronapp.core.errors import UsageError
from megatronapp.core.pipeline import bounds
from megatronapp.core.pipeline.disaggregation import memory
from megatronapp.core.pipeline.disaggregation.cluster import ForwardDevices, Model, Training
from megatronapp.core.pipeline.disaggregation.mapping import Mapping, mappings
from megatronapp.core.pipeline.disaggregation.step import Paces, PlannedStep
from megatronapp.core.pipeline.partition import Mode

LEAST_GAIN = 1.05
"""Predictions are within 5 %: less is not promised."""
WORTH = 0.01
"""A step must be shorter by more than this share to be worth more forward devices or more slots."""
GIB = 2**30


@dataclass(frozen=True, slots=True)
class Baseline:
    """The training without MegaFBD. shares: forward devices train too, as more replicas of it."""

    recomputes: bool
    shares: bool
    step_ns: float
    memory_bytes: float
    """Of a training device."""

    def __str__(self) -> str:
        recompute = "full recompute" if self.recomputes else "no recompute"
        return f"all devices training, {recompute}" if self.shares else recompute


@dataclass(frozen=True, slots=True)
class Scored:
    """step_ns: of the same batch as the baseline's. bound: what no such mapping's gain exceeds."""

    mapping: Mapping
    step_ns: float
    gain: float
    bound: float
    paces: Paces
    forward_bytes: float
    backward_bytes: float


@dataclass(frozen=True, slots=True)
class Plan:
    """`tried`, fastest first, all fit; `chosen` is the best of them, whether it pays or not. `reason`: why it does not
    pay, or empty."""

    baseline: Baseline
    chosen: Scored | None
    tried: list[Scored]
    reason: str

    @property
    def pays(self) -> bool:
        return not self.reason


def make_plan(
    model: Model,
    training: Training,
    devices: ForwardDevices,
    *,
    linears_share: float | None = None,
    choices: Sequence[Mapping] | None = None,
) -> Plan:
    """linears_share: of a forward's time; by default the share of its FLOPs. choices: the mappings to try; by default
    all. Raises UsageError where the training itself fits in no way."""
    if model.layers % training.layout.parts:
        raise UsageError(f"{model.layers} layers can't be cut into {training.layout.parts} equal parts")
    share = model.linears_share if linears_share is None else linears_share
    if not 0 < share < 1:
        raise UsageError("the linears' share of a forward is between 0 and 1")
    baseline = min(baselines(model, training, devices), key=lambda each: each.step_ns)
    every = [
        score(PlannedStep(model, training, devices, mapping, share), baseline)
        for mapping in (mappings(model, training, devices) if choices is None else choices)
    ]
    fitting = [each for each in every if _fits(each, training, devices)]
    fitting.sort(key=lambda each: each.step_ns)
    chosen = _leanest(fitting)
    return Plan(baseline, chosen, fitting, _reason(baseline, chosen, every, devices))


def baselines(model: Model, training: Training, devices: ForwardDevices) -> list[Baseline]:
    """All that fit. Forward devices that could train count as training, for all of a step's batch: as far as more
    replicas help, each of which goes at the pace of the slowest."""
    made = []
    for recomputes in (False, True):
        needed = memory.training_bytes(model, training, recomputes=recomputes)
        if needed > training.memory_bytes:
            continue
        step_ns = _stock_ns(training, recomputes=recomputes)
        made.append(Baseline(recomputes, False, step_ns, needed))
        faster = (1 + devices.count / training.devices) * min(1.0, devices.speed)
        if needed <= devices.memory_bytes and faster > 1:
            made.append(Baseline(recomputes, True, step_ns / faster, needed))
    if not made:
        raise UsageError(
            f"the training needs {needed / GIB:.1f} GiB a device with full recompute, which has "
            f"{training.memory_bytes / GIB:.1f}: raise tensor or pipeline sizes"
        )
    return made


def _stock_ns(training: Training, *, recomputes: bool) -> float:
    p, v, m = training.layout.stages, training.layout.chunks, training.layout.microbatches
    whole = training.pass_ns(recomputes=recomputes)
    latency = training.message_ns if p > 1 else 0.0
    if v == 1:
        return bounds.one_f1b_cost(p, m, whole, latency) + training.tail_ns
    return bounds.interleaved_cost(p, v, m, whole, latency) + training.tail_ns


def score(step: PlannedStep, baseline: Baseline) -> Scored:
    step_ns = step.step_ns + step.training.tail_ns
    work = baseline.step_ns - step.training.tail_ns
    bound = work / (step.training.layout.microbatches * max(step.paces))
    return Scored(
        step.mapping,
        step_ns,
        baseline.step_ns / step_ns,
        bound,
        step.paces,
        memory.forward_bytes(step.model, step.training, step.mapping),
        memory.backward_bytes(step.model, step.training, step.mapping),
    )


def _fits(scored: Scored, training: Training, devices: ForwardDevices) -> bool:
    return scored.forward_bytes <= devices.memory_bytes and scored.backward_bytes <= training.memory_bytes


def _leanest(fitting: list[Scored]) -> Scored | None:
    """Of those that are as fast as the fastest, the one with fewest forward devices, then fewest slots."""
    if not fitting:
        return None
    as_fast = [each for each in fitting if each.step_ns <= fitting[0].step_ns * (1 + WORTH)]
    return min(as_fast, key=lambda each: (*_cost(each.mapping), each.step_ns))


def _cost(mapping: Mapping) -> tuple[int, bool, int]:
    """*Layers* mode sends more for less memory: of modes that are as fast it is the last."""
    return mapping.devices, mapping.mode is Mode.LAYERS, mapping.slots


def _reason(baseline: Baseline, chosen: Scored | None, every: list[Scored], devices: ForwardDevices) -> str:
    if not every:
        return (
            "no mapping runs: input needs two or more pipeline stages, linears a forward device for each tensor rank, "
            "layers megatron-core's own layers, without experts and dropout"
        )
    if chosen is None:
        least = min(every, key=lambda each: each.forward_bytes)
        if least.forward_bytes > devices.memory_bytes:
            return f"a forward device has to hold {least.forward_bytes / GIB:.1f} GiB or more: add devices"
        return f"a training device would have to hold {min(e.backward_bytes for e in every) / GIB:.1f} GiB"
    if chosen.gain >= LEAST_GAIN:
        return ""
    return f"{chosen.gain:.2f} times as fast as {baseline}: {_obstacle(baseline, chosen)}"


def _obstacle(baseline: Baseline, chosen: Scored) -> str:
    paces = chosen.paces
    if paces.link >= max(paces.forward, paces.backward):
        return f"the link takes {paces.link / paces.backward:.1f} times as long for a microbatch as backward devices do"
    if paces.forward > paces.backward:
        return f"forward devices take {paces.forward / paces.backward:.1f} times as long as backward devices do"
    if baseline.shares:
        return "these devices do more as replicas that train"
    if not baseline.recomputes and chosen.mapping.mode is not Mode.LINEARS:
        return "activations fit without recompute, which leaves nothing to gain"
    return "filling and emptying the pipeline takes what is gained; more microbatches help"
