"""A pipeline of real ranks whose devices' time is slept, for bench.dpp, and what the simulator says of the same."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import schedules

from megatronapp.core.pipeline import caps, orders
from megatronapp.core.pipeline.arrays import Whole
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import StagePolicy
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import Run, dynamic, run, strict
from megatronapp.core.pipeline.simulator.times import Variation, equal_times
from megatronapp.core.trace.message_id import Direction
from megatronapp.trainer.pipeline.native import NativeTransport
from megatronapp.trainer.pipeline.port import Message
from megatronapp.trainer.pipeline.wgrad import DeferredWgrad
from megatronapp.trainer.plugins.base import PluginContext
from megatronapp.trainer.plugins.dpp import DppPlugin
from tests.support.forked import run_forked
from tests.support.slow_links import slow_down_links
from tests.support.training import TINY, train

STAGES, CHUNKS = 4, 2
WARM_UP_STEPS = 1
HINT, FILLING = "interleaved-zb", "interleaved"
"""With places for W, as `--dpp-policy auto` runs it; and where W fills gaps."""
STOCK, DYNAMIC, REPLAY = "stock", "dynamic", "replay"
MODES = (STOCK, DYNAMIC, REPLAY)
AS_POSTED = "dynamic, messages as they are posted"
SEQUENCE, BATCH, HIDDEN = 16, 1, 32
LARGE_SEQUENCE = 1024
"""Whose messages, of 128 KiB, are many times what a slow link's socket keeps."""


class Scenario(NamedTuple):
    """What differs between operations, and the gains that a row is to show: over stock, and over the replay."""

    name: str
    jitter_cv: float = 0.0
    length_cv: float = 0.0
    late_ratio: float = 0.0
    goal: float = 1.05
    over_replay: float = 0.0


QUIET = Scenario("quiet")


@dataclass(frozen=True)
class Setting:
    """So many steps, each with draws of its own. ratios: F : B : W; the shortest operation takes `operation_ms`, and B
    and W take `split_overhead` of their time longer where they are split."""

    scenario: Scenario
    ratios: tuple[float, float, float]
    split_overhead: float
    operation_ms: float
    microbatches: int
    seeds: int
    stages: int = STAGES
    chunks: int = CHUNKS
    transfer_ms: float = 0.0
    """For which a message occupies its link; 0: the lane's own speed."""
    hint: str = HINT

    @property
    def layout(self) -> Layout:
        return Layout(stages=self.stages, chunks=self.chunks, microbatches=self.microbatches, split=True)

    @property
    def links(self) -> Links:
        return Links(transfer_ns=round(self.transfer_ms * 1e6))

    @property
    def cap(self) -> int:
        return caps.stock_cap(self.layout)

    def draws(self, seed: int, *, split: bool) -> tuple[Whole, Whole]:
        """(durations, lateness of the operation's message) by (stage, F B W, chunk, microbatch) in ns."""
        return _drawn(self, seed, split)

    def orders(self, mode: str) -> list[list[Operation]]:
        """The hint; or for the replay what the dynamic order is on a quiet machine."""
        if mode == REPLAY:
            return simulated(replace(self, scenario=QUIET), DYNAMIC, seed=0).orders()
        return orders.all_stages(self.hint, self.layout)


@cache
def _drawn(setting: Setting, seed: int, split: bool) -> tuple[Whole, Whole]:
    forward, dgrad, wgrad = (
        each / min(setting.ratios) * setting.operation_ms * 1e6 * setting.chunks for each in setting.ratios
    )
    variation = Variation(
        jitter_cv=setting.scenario.jitter_cv,
        length_cv=setting.scenario.length_cv,
        late_ratio=setting.scenario.late_ratio,
        late_ns=round(3 * forward),
        backward_ratio=1 + setting.split_overhead if split else 1.0,
    )
    times = equal_times(setting.layout, forward, dgrad, wgrad)
    durations, late = variation.draw(setting.layout, times, np.random.default_rng(seed))
    shape = (setting.stages, len(Kind), setting.chunks, setting.microbatches)
    return durations.reshape(shape), late.reshape(shape)


def simulated(
    setting: Setting, mode: str, seed: int, host_ns: Whole | None = None, hints: list[list[Operation]] | None = None
) -> Run:
    """`host_ns`: what an operation takes its host beside what it sleeps, by (stage, kind of the mode's operations);
    None: nothing. `hints`: in place of the dynamic order's."""
    layout = replace(setting.layout, split=mode != STOCK)
    durations, late = setting.draws(seed, split=mode != STOCK)
    if mode == STOCK:
        durations = np.stack([durations[:, Kind.FORWARD], durations[:, Kind.BACKWARD :].sum(axis=1)], axis=1)
        late = late[:, : Kind.WGRAD]
        schedule = strict(mode, layout, orders.all_stages("interleaved", layout))
    elif mode == REPLAY:
        schedule = strict(mode, layout, setting.orders(mode), by_need=True)
    else:
        schedule = dynamic(mode, layout, hints or setting.orders(mode), [setting.cap] * setting.stages)
        schedule = replace(schedule, by_need=mode != AS_POSTED)
    if host_ns is not None:
        durations = durations + host_ns[..., None, None]
    flat, wiring = (setting.stages, layout.operations), wire(layout, setting.links)
    return run(layout, schedule, durations.reshape(flat), wiring, late=late.reshape(flat) * wiring.crosses(layout))


class Measured(NamedTuple):
    """By step, after the warm-up."""

    seconds: list[float]
    """Of the pipeline, all stages together."""
    host_shares: list[float]
    """Of the operations' time, on the rank where it is largest."""
    host_ns: Whole
    """What an operation takes its host beside what it sleeps, choosing included: the median over steps, by (stage,
    kind of the mode's operations)."""
    dispatch_seconds: float
    """Of one operation, the median over steps, on the rank where it is largest."""
    peak: float
    """Most activations in flight."""


def measured(setting: Setting, mode: str) -> Measured:
    flags = (
        f"{TINY} --pipeline-model-parallel-size {setting.stages} "
        f"--num-virtual-stages-per-pipeline-rank {setting.chunks} "
        f"--num-layers {setting.stages * setting.chunks} --micro-batch-size {BATCH} "
        f"--global-batch-size {setting.microbatches * BATCH} "
        f"--train-iters {WARM_UP_STEPS + setting.seeds} --use-dpp --dpp-policy {setting.hint}"
    )
    if setting.transfer_ms:
        flags += f" --dpp-transport tcp --seq-length {LARGE_SEQUENCE}"
    ranks = run_forked(setting.stages, _steps_of, flags, setting, mode, timeout=600)
    spans = [max(step.end for step in steps) - min(step.begin for step in steps) for steps in zip(*ranks, strict=True)][
        WARM_UP_STEPS:
    ]
    shares = [max(step.host_share for step in steps) for steps in zip(*ranks, strict=True)][WARM_UP_STEPS:]
    host_ns = np.array([np.median([step.host_ns for step in rank[WARM_UP_STEPS:]], axis=0) for rank in ranks])
    dispatch = max(float(np.median([step.dispatch for step in rank])) for rank in ranks)
    peak = max(step.peak for rank in ranks for step in rank)
    return Measured(spans, shares, host_ns.astype(np.int64), dispatch, peak)


class _Step(NamedTuple):
    """Of one rank; begin and end in seconds of the host's clock."""

    begin: float
    end: float
    host_share: float
    host_ns: list[float]
    """Of an operation, by its kind."""
    dispatch: float
    peak: float


def _steps_of(flags: str, setting: Setting, mode: str) -> list[_Step]:
    SleptPipeline.setting, SleptPipeline.mode = setting, mode
    SleptPipeline.steps = []
    if setting.transfer_ms:
        slow_down_links(LARGE_SEQUENCE * BATCH * HIDDEN * 4 / (setting.transfer_ms / 1e3))
    train(flags, plugins=(SleptPipeline,))
    return SleptPipeline.steps


class SleptPipeline(DppPlugin):
    """Puts sleep in the place of what the model computes, under any of MODES."""

    setting: Setting
    mode: str
    steps: list[_Step]

    def __init__(self, args: argparse.Namespace, context: PluginContext) -> None:
        super().__init__(args, context)
        self._stage = context.placement.pipeline
        self._passes: Counter[tuple[Kind, int]] = Counter()
        self._slept, self._worked = _none(), _none()
        self._wgrad = _SleptWgrad(self)
        self._orders = self.setting.orders(self.mode)
        self._made: StagePolicy | None = None
        assert isinstance(self._pipeline.transport, NativeTransport)
        self._pipeline.transport.late_seconds = self._late_seconds
        for name, kind in (("forward_step", Kind.FORWARD), ("backward_step", Kind.BACKWARD)):
            setattr(schedules, name, self._timed(getattr(schedules, name), kind))

    # ---- the plug-in

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        for number, chunk in enumerate(chunks):
            chunk.forward = self._forward(chunk, number)

    def schedule(self, function: Any) -> Any:
        scheduled = function if self.mode == STOCK else super().schedule(function)
        if self.mode == AS_POSTED:
            self.dynamic.places = None

        def run_step(**kwargs: Any) -> Any:
            self._slept, self._worked = _none(), _none()
            self._passes.clear()
            dist.barrier()
            begin = time.perf_counter()
            outputs = scheduled(**kwargs)
            end = time.perf_counter()
            dispatch = 0.0 if self.mode == STOCK else self.dynamic.dispatch_seconds / self.setting.layout.operations
            peak = 0.0 if self._made is None else self._made.peak
            self.steps.append(_Step(begin, end, self._host_share(), self._host_ns(dispatch), dispatch, peak))
            return outputs

        return run_step

    def _policy(self, layout: Layout, stage: int) -> StagePolicy:
        self._made = StagePolicy(layout, stage, self._orders[stage], cap=self.setting.cap, strict=self.mode == REPLAY)
        return self._made

    # ---- what is slept, and what operations take beside it

    def _host_share(self) -> float:
        return 1 - sum(self._slept.values()) / sum(self._worked.values())

    def _host_ns(self, dispatch_seconds: float) -> list[float]:
        """Of an operation, by its kind, with the choice of it."""
        operations = self.setting.chunks * self.setting.microbatches
        kinds = replace(self.setting.layout, split=self.mode != STOCK).kinds
        return [((self._worked[kind] - self._slept[kind]) / operations + dispatch_seconds) * 1e9 for kind in kinds]

    def sleep(self, kinds: Sequence[Kind], chunk: int) -> None:
        """The next microbatch of a chunk, of these kinds together."""
        durations, _ = self.setting.draws(len(self.steps), split=self.mode != STOCK)
        nanoseconds = 0
        for kind in kinds:
            nanoseconds += int(durations[self._stage, kind, chunk, self._passes[kind, chunk]])
            self._passes[kind, chunk] += 1
        self._slept[kinds[0]] += nanoseconds / 1e9
        time.sleep(nanoseconds / 1e9)

    def _late_seconds(self, message: Message) -> float:
        direction, microbatch, chunk, _ = message.id
        layout = self.setting.layout
        if direction is Direction.FORWARD:
            kind, (stage, there) = Kind.FORWARD, layout.place(layout.part(self._stage, chunk) + 1)
        else:
            kind, (stage, there) = Kind.BACKWARD, ((self._stage - 1) % layout.stages, chunk)
        _, late = self.setting.draws(len(self.steps), split=True)
        return float(late[stage, kind, there, microbatch]) / 1e9

    def _timed(self, function: Callable[..., Any], kind: Kind) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = function(*args, **kwargs)
            self.worked(kind, time.perf_counter() - began)
            return result

        return timed

    def worked(self, kind: Kind, seconds: float) -> None:
        self._worked[kind] += seconds

    def _forward(self, chunk: Any, number: int) -> Any:
        weight = next(parameter for parameter in chunk.parameters() if parameter.requires_grad)

        def forward(*_: Any, **__: Any) -> Any:
            received = None if chunk.pre_process else chunk.decoder.input_tensor
            sequence = LARGE_SEQUENCE if self.setting.transfer_ms else SEQUENCE
            hidden = torch.zeros(sequence, BATCH, HIDDEN) if received is None else received
            hidden = _Sleep.apply(hidden + weight.sum() * 0, self, number)  # type: ignore[no-untyped-call]
            return 1.0 + hidden.mean(-1).transpose(0, 1) if chunk.post_process else hidden

        return forward


def _none() -> dict[Kind, float]:
    """Seconds."""
    return dict.fromkeys(Kind, 0.0)


class _SleptWgrad(DeferredWgrad):
    def __init__(self, pipeline: SleptPipeline) -> None:
        super().__init__()
        self._pipeline = pipeline

    def run(self, chunk: int, microbatch: int) -> None:
        began = time.perf_counter()
        self._pipeline.sleep([Kind.WGRAD], chunk)
        self._pipeline.worked(Kind.WGRAD, time.perf_counter() - began)


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, pipeline: SleptPipeline, chunk: int) -> torch.Tensor:
        ctx.pipeline, ctx.chunk = pipeline, chunk
        pipeline.sleep([Kind.FORWARD], chunk)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        whole = ctx.pipeline.mode == STOCK
        ctx.pipeline.sleep([Kind.BACKWARD, Kind.WGRAD] if whole else [Kind.BACKWARD], ctx.chunk)
        return gradient.clone(), None, None
