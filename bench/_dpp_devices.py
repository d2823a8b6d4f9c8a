"""MegaDPP and megatron-core's schedule on real devices, for bench.dpp: steps of all modes and cases in one run.

Weights do not change (the learning rate is 0), and each step reads the first step's data: losses and gradients of any
two steps must be the same to the bit. Where a case makes operations longer, the device spins behind them: a draw of a
lognormal factor with mean 1 sets what an operation takes, stretched so far that hardly any is to be shorter than the
model's own part of it. Predictions are made from the times of F, B and W in the case's own steps, and from its draws.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import random
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice, pairwise
from statistics import median
from typing import Any, NamedTuple, Self

import numpy as np
import torch
import torch.distributed as dist
from megatron.core.pipeline_parallel import schedules

from bench._blocks import device_name
from bench._dpp_predicted import DYNAMIC, PLANNED, REPLAY, STOCK, Case, Draws, Predicted, orders_of
from bench._dpp_rows import described
from bench.split_cost import Clock
from megatronapp.core.pipeline import caps
from megatronapp.core.pipeline.operations import Kind
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.policy import StagePolicy
from megatronapp.core.trace.message_id import Direction
from megatronapp.trainer.pipeline.native import NativeTransport, rdma_module
from megatronapp.trainer.pipeline.port import Message
from megatronapp.trainer.pipeline.wgrad import DeferredWgrad
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.dpp import DppPlugin
from megatronapp.trainer.plugins.faults.waits import Delay
from tests.support.training import train

CHUNKS = 2
WARM_UP = (STOCK, DYNAMIC, STOCK, DYNAMIC)
HINTED = ("depth-first", "breadth-first")
ORDERED = (PLANNED, REPLAY)
"""What the trainer runs in an order that is given, so that its host runs ahead of its device."""
SHORT_GAP_MS = 1.0
AHEAD = 1
"""Operations that a host which chooses nothing may be ahead of the device where messages come late."""
BITS = {2: torch.int16, 4: torch.int32}


class Planned(NamedTuple):
    """A step. Of one case, the same seed draws the same for all modes."""

    case: Case
    mode: str
    seed: int
    settles: bool = False
    """First of a block: it is not counted, as memory is given back before it."""
    last: bool = False
    """Of its case."""


def plan(cases: Sequence[Case], rounds: int, steps: int, *, replay: bool) -> list[Planned]:
    """Blocks of all modes in a drawn order, round for round; the first case must be the quiet one."""
    planned = [Planned(cases[0], mode, 0, settles=True) for mode in WARM_UP]
    for number, case in enumerate(cases):
        modes = [STOCK, DYNAMIC, PLANNED, *(HINTED if number == 0 else [REPLAY] * replay)]
        for turn in range(rounds):
            for mode in random.Random(turn).sample(modes, len(modes)):
                seeds = range(turn * (steps + 1), (turn + 1) * (steps + 1))
                planned += [Planned(case, mode, seed, settles=seed == seeds[0]) for seed in seeds]
        planned[-1] = planned[-1]._replace(last=True)
    return planned


@dataclass
class CaseRecord:
    """What one rank saw of a case; each by mode. Times are in ns."""

    spans: dict[str, dict[int, tuple[float, float]]] = field(default_factory=lambda: defaultdict(dict))
    """By seed, begin and end in seconds of the host's clock."""
    passes: dict[str, dict[tuple[Kind, int], list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    """What the model's own part of F, B and W of a chunk took."""
    results: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Losses and a sum of the gradients' bits; more than one where steps differ."""
    losses: dict[str, float] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    """Of the device's memory, all that is used."""
    pool_bytes: dict[str, int] = field(default_factory=dict)
    """Of them, what the engine has to receive into."""
    peaks: dict[str, float] = field(default_factory=dict)
    dispatch_seconds: list[float] = field(default_factory=list)
    launch_ms: dict[tuple[Kind, int], float] = field(default_factory=dict)
    """Of the host, by kind and chunk, as the pace knows it."""
    padded: list[float] = field(default_factory=list)
    """What spinning took, of what was wanted."""
    late_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By how much later than was drawn late messages were handed over."""
    gaps: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))
    """By step the ms in which the device had no pass: in short gaps, as a late host leaves them, and in long ones."""

    def plain(self) -> dict[str, Any]:
        """That can be sent: of times their medians."""
        passes = {mode: {key: median(of) for key, of in times.items()} for mode, times in self.passes.items()}
        own = {name: dict(getattr(self, name)) for name in ("spans", "results", "gaps", "late_ms")}
        return {**self.__dict__, **own, "passes": passes}


class DevicePipeline(DppPlugin):
    """Runs the planned steps; the first rank prints a row when a case has ended."""

    planned: list[Planned]
    rows: list[dict[str, Any]]
    what: str

    def __init__(self, args: argparse.Namespace, context: PluginContext) -> None:
        super().__init__(args, context)
        sizes = context.placement.sizes
        self._layout = Layout(
            stages=sizes.pipeline, chunks=sizes.virtual_pipeline, microbatches=context.schedule.microbatches, split=True
        )
        self._stage = context.placement.pipeline
        self._cap = caps.stock_cap(self._layout)
        self._clock, self._delay = Clock(context.device), Delay(context.device)
        self._too_long = 1.0  # what spinning took of what was wanted
        self._wgrad = _TimedWgrad(self)
        assert isinstance(self._pipeline.transport, NativeTransport)
        self._pipeline.transport.late_seconds = self._late_seconds
        self._late = _LateMessages(self._pipeline.transport, self._clock)
        self._draws = Draws(self._layout)
        self._orders = {mode: orders_of(mode, self._layout) for mode in (DYNAMIC, PLANNED, *HINTED)}
        self._number = 0
        self._seen = CaseRecord()
        self._moments: list[tuple[Kind, int, float, Any, Any, Any]] = []
        self._passes: Counter[tuple[Kind, int]] = Counter()
        self._chunk_of_output: dict[int, int] = {}
        self._on_device: deque[Any] = deque()
        self._forward_step, self._backward_step = schedules.forward_step, schedules.backward_step
        schedules.forward_step, schedules.backward_step = self._forward, self._backward

    # ---- the plug-in

    def data(self, iterator: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return cycle(islice(iterator, self._layout.microbatches))

    def schedule(self, function: Any) -> Any:
        dynamic = super().schedule(function)

        def run(**kwargs: Any) -> Any:
            step = self.planned[self._number]
            self._chunks = {id(chunk): number for number, chunk in enumerate(kwargs["model"])}
            if step.settles:
                give_memory_back(self._device)
            self._passes.clear()
            begin = together(self._device)
            outputs = (function if step.mode == STOCK else dynamic)(**kwargs)
            end = now(self._device)
            self._keep(step, (begin, end), outputs, kwargs["model"])
            if step.last:
                self._end_case(step.case)
            self._number += 1
            return outputs

        return run

    def _policy(self, layout: Layout, stage: int) -> StagePolicy:
        mode = self.planned[self._number].mode
        self._made = StagePolicy(layout, stage, self._orders[mode][stage], cap=self._cap, strict=mode in ORDERED)
        return self._made

    # ---- operations

    def timed(self, kind: Kind, chunk: int, call: Callable[[], Any]) -> Any:
        """One, with what is to be spun behind it."""
        step = self.planned[self._number]
        microbatch = self._passes[kind, chunk]
        self._passes[kind, chunk] += 1
        pads = self._draws.pads(step.case, step.seed)[self._stage, :, chunk, microbatch]
        whole = kind is Kind.BACKWARD and step.mode == STOCK
        wanted = float(pads[kind] + (pads[Kind.WGRAD] if whole else 0)) / 1e9
        begin = self._clock.now()
        result = call()
        middle = self._clock.now()
        if wanted:
            self._delay(wanted / self._too_long)
        end = self._clock.now()
        self._moments.append((kind, chunk, wanted, begin, middle, end))
        if step.case.late_ratio and step.mode in (STOCK, *ORDERED) and self._device.type == "cuda":
            self._stay_close(end)
        return result

    def _stay_close(self, end: Any) -> None:
        """A host that has filled the device's queue can't hand over what comes late, which the device may wait for."""
        self._on_device.append(end)
        while len(self._on_device) > AHEAD:
            self._on_device.popleft().synchronize()

    def _forward(self, function: Any, data: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        chunk = self._chunks[id(model)]
        output, tokens = self.timed(
            Kind.FORWARD, chunk, lambda: self._forward_step(function, data, model, *args, **kwargs)
        )
        self._chunk_of_output[id(output)] = chunk
        return output, tokens

    def _backward(self, activation: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        chunk = self._chunk_of_output.pop(id(output))
        return self.timed(Kind.BACKWARD, chunk, lambda: self._backward_step(activation, output, *args, **kwargs))

    def _late_seconds(self, message: Message) -> float:
        step, layout = self.planned[self._number], self._layout
        direction, microbatch, chunk, _ = message.id
        if direction is Direction.FORWARD:
            stage, there = layout.place(layout.part(self._stage, chunk) + 1)
        else:
            stage, there = (self._stage - 1) % layout.stages, chunk
        kind = Kind.FORWARD if direction is Direction.FORWARD else Kind.BACKWARD
        late = self._draws.late(step.case, step.seed)[stage, kind, there, microbatch % layout.microbatches]
        seconds = float(late) / 1e9
        if seconds:
            self._late.made(message, seconds)
        return seconds

    # ---- what was seen

    def _keep(self, step: Planned, span: tuple[float, float], outputs: Any, chunks: Sequence[Any]) -> None:
        moments, self._moments = self._moments, []
        seen, mode = self._seen, step.mode
        spun = wanted = 0.0
        for kind, chunk, asked, begin, middle, end in moments:
            if not step.settles:
                seen.passes[mode][kind, chunk].append(self._clock.seconds(begin, middle) * 1e9)
            wanted += asked
            spun += self._clock.seconds(middle, end) if asked else 0.0
        if wanted:
            seen.padded.append(spun / wanted)
            self._too_long *= spun / wanted
        seen.late_ms[mode] += self._late.later_ms()
        seen.results[mode].add(digest(outputs, chunks if step.settles else ()))
        if outputs:
            total, count = torch.stack(outputs).double().sum(0).flatten()[:2].tolist()
            seen.losses[mode] = total / count
        seen.bytes[mode] = max(seen.bytes.get(mode, 0), used_bytes(self._device))
        seen.pool_bytes[mode] = max(seen.pool_bytes.get(mode, 0), rdma_module().pool_bytes())
        if mode != STOCK:
            seen.peaks[mode] = max(seen.peaks.get(mode, 0.0), self._made.peak)
            if mode not in ORDERED:
                seen.dispatch_seconds.append(self.dynamic.dispatch_seconds / self._layout.operations)
            seen.launch_ms = {lane: seconds * 1e3 for lane, seconds in self.dynamic.durations.launches.items()}
        if not step.settles:
            seen.spans[mode][step.seed] = span
            between = [self._clock.seconds(before[-1], after[3]) * 1e3 for before, after in pairwise(moments)]
            short = [gap for gap in between if gap < SHORT_GAP_MS]
            seen.gaps[mode].append((sum(short), sum(between) - sum(short)))

    def _end_case(self, case: Case) -> None:
        ranks: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, self._seen.plain())
        self._seen = CaseRecord()
        if not self._draws.known:
            self._draws.base = Predicted.times(self._layout, ranks, DYNAMIC)
            quiet = Predicted(self._layout, self._draws, ranks)
            self._orders[REPLAY] = quiet.run(case, DYNAMIC, 0).orders()
        if dist.get_rank() == 0:
            row = described(case, self._layout, ranks, Predicted(self._layout, self._draws, ranks))
            self.rows.append({"what": f"{case.name}, {self.what}", "device": device_name(self._device)} | row)
            print(json.dumps(self.rows[-1]), flush=True)


class _LateMessages:
    """When the device had made what is sent late, and when it was handed over by the thread that does so."""

    def __init__(self, transport: NativeTransport, clock: Clock) -> None:
        self._transport, self._clock = transport, clock
        self._made: dict[Any, tuple[float, Any]] = {}
        self._handed_over: list[tuple[float, Any, Any]] = []
        self._isend = transport.engine.isend
        transport.engine.isend = self._send  # type: ignore[method-assign, assignment]

    def made(self, message: Message, seconds: float) -> None:
        """It will be, by what the current stream holds."""
        self._made[message.peer, self._transport.tag(message)] = seconds, self._clock.now()

    def _send(self, tensor: torch.Tensor, peer: int, tag: Any, **more: Any) -> Any:
        if (made := self._made.pop((peer, tag), None)) is not None:
            self._handed_over.append((*made, self._clock.now()))
        return self._isend(tensor, peer, tag, **more)

    def later_ms(self) -> list[float]:
        """Of each since the last call."""
        handed_over, self._handed_over = self._handed_over, []
        return [(self._clock.seconds(made, sent) - wanted) * 1e3 for wanted, made, sent in handed_over]


class _TimedWgrad(DeferredWgrad):
    def __init__(self, pipeline: DevicePipeline) -> None:
        super().__init__()
        self._pipeline = pipeline

    def run(self, chunk: int, microbatch: int) -> None:
        self._pipeline.timed(Kind.WGRAD, chunk, lambda: super(_TimedWgrad, self).run(chunk, microbatch))


class StockAlone(Plugin):
    """megatron-core's schedule over torch's own messages, as it runs without the plug-in."""

    name = "stock-alone"
    seconds: list[float]
    bytes_used: int

    def __init__(self, context: PluginContext) -> None:
        self._device, self._microbatches, self._steps = context.device, context.schedule.microbatches, 0

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        cls.seconds, cls.bytes_used = [], 0
        return cls(context)

    def data(self, iterator: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        return cycle(islice(iterator, self._microbatches))

    def schedule(self, function: Any) -> Any:
        def run(**kwargs: Any) -> Any:
            self._steps += 1
            if self._steps == len(WARM_UP):
                give_memory_back(self._device)
            begin = together(self._device)
            outputs = function(**kwargs)
            if self._steps > len(WARM_UP):
                self.seconds.append(now(self._device) - begin)
                type(self).bytes_used = max(self.bytes_used, used_bytes(self._device))
            return outputs

        return run


def digest(outputs: Any, chunks: Sequence[Any]) -> str:
    """Losses, and a sum of the gradients' bits where chunks are given; they have none where they are not the last."""
    losses = torch.stack(outputs).tolist() if outputs else []
    bits = [
        parameter.main_grad.view(BITS[parameter.main_grad.itemsize]).sum(dtype=torch.int64)
        for chunk in chunks
        for parameter in chunk.parameters()
    ]
    return f"{losses} {torch.stack(bits).tolist() if bits else ''}"


def together(device: torch.device) -> float:
    """When all ranks are here, and their devices idle."""
    now(device)
    dist.barrier()
    return now(device)


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def give_memory_back(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def used_bytes(device: torch.device) -> int:
    """Of the device, the engine's pool included; what torch has reserved it keeps until `give_memory_back`."""
    if device.type != "cuda":
        return 1
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def run_planned(flags: str, planned: list[Planned], what: str, limit_seconds: float) -> list[dict[str, Any]]:
    """A rank."""
    faulthandler.dump_traceback_later(limit_seconds, exit=True)
    DevicePipeline.planned, DevicePipeline.rows, DevicePipeline.what = planned, [], what
    iterations = f"--train-iters {len(planned)}"
    train(f"{flags} --use-dpp --dpp-policy interleaved-zb {iterations}", plugins=(DevicePipeline,))
    return DevicePipeline.rows


def run_alone(flags: str, steps: int, limit_seconds: float) -> tuple[float, int]:
    """A rank. Returns a step's seconds and the memory that the device uses."""
    faulthandler.dump_traceback_later(limit_seconds, exit=True)
    train(f"{flags} --train-iters {len(WARM_UP) + steps}", plugins=(StockAlone,))
    return float(np.mean(StockAlone.seconds)), StockAlone.bytes_used
