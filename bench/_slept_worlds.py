"""Forward and backward ranks whose devices' time is slept, for bench.fbd, and what the planner says of the same."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import torch
from megatron.core.pipeline_parallel import schedules

from megatronapp.core.pipeline.disaggregation.cluster import ForwardDevices, Model, Training
from megatronapp.core.pipeline.disaggregation.mapping import Mapping
from megatronapp.core.pipeline.disaggregation.step import PlannedStep
from megatronapp.core.pipeline.partition import Mode
from megatronapp.core.pipeline.placement import Layout
from megatronapp.trainer.pipeline.wgrad import DeferredWgrad
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.fbd import FbdPlugin
from megatronapp.trainer.plugins.fbd.link import Link
from megatronapp.trainer.plugins.fbd.roles import Role
from tests.support.forked import run_forked
from tests.support.training import TINY, train

LAYERS, HIDDEN, SEQUENCE = 12, 32, 16
WARM_UP_STEPS = 1
LINEARS_SHARE = 0.9
"""Of a forward's time."""
FAST_LINK, LARGE = 1e15, 1e15
"""Bytes a second, and bytes: what is slept here is passes alone."""


@dataclass(frozen=True)
class Setting:
    """F, dgrad and wgrad of one stage take `operation_ms` each; forward devices run at `speed`."""

    mode: Mode
    stages: int
    devices: int
    speed: float
    operation_ms: float
    microbatches: int
    steps: int

    @property
    def mapping(self) -> Mapping:
        return Mapping(self.mode, 1, self.devices, 2 * self.stages)

    @property
    def operation_seconds(self) -> float:
        return self.operation_ms / 1e3

    def planned(self) -> PlannedStep:
        model = Model(
            layers=LAYERS, hidden=HIDDEN, sequence=SEQUENCE, batch=1, ffn=4 * HIDDEN, qkv_width=3 * HIDDEN,
            vocabulary=256, groups=4,
        )  # fmt: skip
        time_ns = self.operation_ms * 1e6
        training = Training(
            layout=Layout(stages=self.stages, microbatches=self.microbatches), tensor=1, replicas=1,
            forward_ns=time_ns, dgrad_ns=time_ns, wgrad_ns=time_ns, memory_bytes=LARGE,
        )  # fmt: skip
        devices = ForwardDevices(count=self.devices, speed=self.speed, memory_bytes=LARGE, bytes_per_second=FAST_LINK)
        return PlannedStep(model, training, devices, self.mapping, LINEARS_SHARE)


class Slept(NamedTuple):
    """Seconds of a microbatch's passes on a backward or stock rank, and of a layer on a forward rank."""

    forward: float
    backward: float
    wgrad: float
    """Where it is an operation of its own; else it is in `backward`."""
    layer: float


class Measured(NamedTuple):
    step_seconds: float
    """The mean, from one step's begin to the next one's, on the first stage."""
    host_share: float
    """Of the passes' time on a rank, the largest: by what they were longer than their device's."""


def stock(setting: Setting, *, recomputes: bool) -> Measured:
    """megatron-core's 1F1B on the backward devices alone."""
    each = setting.operation_seconds
    return _measured(setting, setting.stages, "", Slept(each, each * (2 + recomputes), 0.0, 0.0), ())


def disaggregated(setting: Setting) -> Measured:
    each = setting.operation_seconds
    again = each * (1.0 if setting.mode is Mode.INPUT else 1 - LINEARS_SHARE)
    flags = (
        f"--forward-backward-disaggregating --fbd-mode {setting.mode} --fbd-slots {setting.mapping.slots} "
        f"--forward-pipeline-model-parallel-size {setting.devices}"
    )
    slept = Slept(again, each, each, each * setting.stages / LAYERS / setting.speed)
    return _measured(setting, setting.stages + setting.devices, flags, slept, (FbdPlugin,))


def _measured(setting: Setting, ranks: int, more: str, slept: Slept, plugins: tuple[type[Plugin], ...]) -> Measured:
    flags = (
        f"{TINY} --num-layers {LAYERS} --pipeline-model-parallel-size {setting.stages} --micro-batch-size 1 "
        f"--global-batch-size {setting.microbatches} --train-iters {WARM_UP_STEPS + setting.steps + 1} {more}"
    )
    seen = run_forked(ranks, _run, flags, slept, plugins, timeout=900)
    begins = next(each.begins for each in seen if not each.runs_forward)[WARM_UP_STEPS:]
    seconds = (begins[-1] - begins[0]) / (len(begins) - 1)
    return Measured(seconds, max(1 - each.slept / each.worked for each in seen))


class _Record(NamedTuple):
    """Of one rank, in seconds."""

    begins: list[float]
    slept: float
    worked: float
    runs_forward: bool


def _run(flags: str, slept: Slept, plugins: tuple[type[Plugin], ...]) -> _Record:
    SleptPasses.times = slept
    train(flags, plugins=(*plugins, SleptPasses))
    made = SleptPasses.made
    return _Record(made.begins, made.slept, made.worked, made.runs_forward)


class SleptPasses(Plugin):
    """Sleeps what a device would compute, on top of a model that takes next to no time."""

    name = "slept"
    times: Slept
    made: SleptPasses

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        cls.made = plugin = cls()
        plugin.runs_forward = context.placement.role == Role.FORWARD
        plugin.begins, plugin.slept, plugin.worked, plugin.waited = [], 0.0, 0.0, 0.0
        if plugin.runs_forward:
            Link.wait_sent = plugin.waiting(Link.wait_sent)  # type: ignore[method-assign]
        if not plugin.runs_forward:
            for owner, name, seconds in (
                (schedules, "forward_step", cls.times.forward),
                (schedules, "backward_step", cls.times.backward),
                (DeferredWgrad, "run", cls.times.wgrad),
            ):
                setattr(owner, name, plugin.longer(getattr(owner, name), seconds))
        return plugin

    runs_forward: bool
    begins: list[float]
    slept: float
    worked: float
    waited: float
    """For slots, within a layer's forward."""

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        for layer in chunks[0].decoder.layers if self.runs_forward else ():  # type: ignore[union-attr]
            layer.forward = self.behind(layer.forward, self.times.layer)

    def step_begin(self, step: int) -> None:
        self.begins.append(time.perf_counter())

    def waiting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> None:
            began = time.perf_counter()
            function(*args)
            self.waited += time.perf_counter() - began

        return run

    def behind(self, function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        """What a layer sends comes when its device is through: the host's part, as long as it was the last time, lies
        within the device's."""
        host = 0.0

        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal host
            began, waited = time.perf_counter(), self.waited
            time.sleep(max(0.0, seconds - host))
            computes = time.perf_counter()
            result = function(*args, **kwargs)
            ended, in_slots = time.perf_counter(), self.waited - waited
            host = ended - computes - in_slots
            self.slept += seconds
            self.worked += ended - began - in_slots
            return result

        return run

    def longer(self, function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = function(*args, **kwargs)
            left = seconds - (time.perf_counter() - began)
            if left > 0:
                time.sleep(left)  # the host's part runs beside the device's
            self.slept += seconds
            self.worked += time.perf_counter() - began
            return result

        return run
