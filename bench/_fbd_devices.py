"""What bench.fbd runs on real devices, and what it comes to: *linears* on one backward and one forward device, *input*
on the devices of a pipeline with forward devices added, or with a forward rank that shares one of them.

Ways to train that need few devices run side by side where there are enough. Each is a row; behind the last way that a
comparison needs comes the comparison, with the planner's prediction from the times of one device and of the link.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from bench._fbd_launch import (
    DISAGGREGATED,
    KERNELS,
    LANE_STEPS,
    LINK,
    PROFILE,
    WATCHED,
    Record,
    Run,
    RunError,
    iterations,
    played,
)
from bench._model import COMMON, PRESETS
from bench.split_cost import KINDS, WARM_UP_ROUNDS
from megatronapp.core.pipeline.bounds import one_f1b_cost
from megatronapp.core.pipeline.disaggregation.cluster import ForwardDevices, Training
from megatronapp.core.pipeline.disaggregation.mapping import Mapping
from megatronapp.core.pipeline.disaggregation.step import PlannedStep
from megatronapp.core.pipeline.partition import Mode
from megatronapp.core.pipeline.placement import Layout
from megatronapp.trainer import arguments
from megatronapp.trainer.plugins.fbd import FbdPlugin
from megatronapp.trainer.plugins.fbd.figures import model_of
from megatronapp.trainer.plugins.fbd.plan import Plan
from megatronapp.trainer.plugins.fbd.roles import Role

PROFILE_ROUNDS, PROFILE_MICROBATCHES = 4, 8
LIMIT_SECONDS = 120
"""Of one way to train."""
LARGE = 1e15
FULL_RECOMPUTE = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
PREDICTION_MUST = 0.1


@dataclass(frozen=True, kw_only=True)
class Way:
    """To train: how many devices it takes, and its flags beside the model's. `shared`: that many forward ranks more,
    on devices that others have."""

    devices: int
    flags: str = ""
    disaggregated: bool = False
    shared: int = 0


def stock(stages: int, *, replicas: int = 1, recomputes: bool = False) -> Way:
    flags = f"--pipeline-model-parallel-size {stages} {FULL_RECOMPUTE if recomputes else ''}"
    return Way(devices=stages * replicas, flags=flags)


def disaggregated(mode: Mode, stages: int, forward: int, *, shared: bool = False) -> Way:
    """Where devices are shared the backward ranks come first, so that the forward ranks have the first ones, too."""
    flags = (
        f"--forward-backward-disaggregating --fbd-mode {mode} --pipeline-model-parallel-size {stages} "
        f"--forward-pipeline-model-parallel-size {forward} {'--fbd-roles-apart' if shared else ''}"
    )
    own, more = (0, forward) if shared else (forward, 0)
    return Way(devices=stages + own, flags=flags, disaggregated=True, shared=more)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """MegaFBD beside stock on its backward devices, without and with full recompute, and on all of its devices."""

    mode: Mode
    stages: int
    forward: int
    shared: bool = False
    whole: tuple[tuple[int, int], ...] = ()
    """(stages, replicas) of stock on all devices."""
    must_over_none: float = 0.0
    must_over_full: float = 0.0

    @property
    def name(self) -> str:
        where = " on a shared device" if self.shared else ""
        return f"{self.mode}, {self.stages} + {self.forward}{where}"

    @property
    def none(self) -> str:
        return f"PP {self.stages}, no recompute"

    @property
    def full(self) -> str:
        return f"PP {self.stages}, full recompute"

    @property
    def others(self) -> dict[str, Way]:
        return {
            f"PP {stages} x DP {replicas}, no recompute": stock(stages, replicas=replicas)
            for stages, replicas in self.whole
        }

    @property
    def ways(self) -> dict[str, Way]:
        return {
            self.none: stock(self.stages),
            self.full: stock(self.stages, recomputes=True),
            self.name: disaggregated(self.mode, self.stages, self.forward, shared=self.shared),
            **self.others,
        }


COMPARISONS = {
    "linears": Comparison(
        mode=Mode.LINEARS, stages=1, forward=1, whole=((1, 2),), must_over_none=1.15, must_over_full=1.4
    ),
    "shared": Comparison(mode=Mode.INPUT, stages=2, forward=1, shared=True),
    "2+2": Comparison(mode=Mode.INPUT, stages=2, forward=2, whole=((4, 1), (2, 2))),
    "3+1": Comparison(mode=Mode.INPUT, stages=3, forward=1, whole=((4, 1), (2, 2))),
}


@dataclass(frozen=True, kw_only=True)
class Devices:
    """What to run, and how many devices there are. `flags` change the preset's."""

    preset: str
    microbatches: int
    batch: int
    steps: int
    flags: tuple[str, ...] = ()
    count: int = 2
    limit_seconds: float = 600.0
    kernels: bool = False
    """Whether MegaFBD's ranks tell what their devices run."""

    @cached_property
    def model(self) -> list[str]:
        sizes = f"--micro-batch-size {self.batch} --global-batch-size {self.batch * self.microbatches}"
        return [*f"{PRESETS[self.preset]} {COMMON} {sizes} --log-interval 1".split(), *self.flags]

    def run(self, name: str, way: Way, first: int) -> Run:
        """On devices from `first` on."""
        own = tuple(range(first, first + way.devices))
        if name == PROFILE:
            steps = len(KINDS) * (PROFILE_ROUNDS + WARM_UP_ROUNDS)
            sizes = f"--train-iters {steps} --global-batch-size {self.batch * PROFILE_MICROBATCHES}"
            return Run(name=name, devices=own[:1], flags=(*self.model, *sizes.split()), plugins=PROFILE)
        flags = (*self.model, "--train-iters", str(iterations(self.steps)), *way.flags.split())
        plugins = (KERNELS if self.kernels else DISAGGREGATED) if way.disaggregated else WATCHED
        return Run(name=name, devices=own + own[: way.shared], flags=flags, plugins=plugins)


def rows(devices: Devices, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Of the named comparisons: one for each way to train, and one for each comparison once all it needs is there."""
    left = {name: COMPARISONS[name] for name in names}
    ways = in_order({PROFILE: Way(devices=2)} | {key: way for each in left.values() for key, way in each.ways.items()})
    seen: dict[str, list[Record]] = {}
    until = time.monotonic() + devices.limit_seconds
    for batch in batches(ways, devices.count):
        for name, outcome in together(devices, batch, until):
            if isinstance(outcome, list):
                seen[name] = outcome
                if name != PROFILE:
                    yield described(name, outcome)
            else:
                yield {"what": name, "failed": outcome, "ok": False}
        for name, each in list(left.items()):
            if {PROFILE, *each.ways} <= seen.keys():
                yield compared(devices, left.pop(name), seen)
    for each in left.values():
        yield {"what": each.name, "failed": "not compared: not all that it needs ended well", "ok": False}


def kernels(devices: Devices, names: Iterable[str]) -> Iterator[str]:
    """Lines of text: what each rank's device runs of the named comparisons, without stock's. Raises RunError."""
    for comparison in (COMPARISONS[name] for name in names):
        way = comparison.ways[comparison.name]
        ranks = played(replace(devices, kernels=True).run(comparison.name, way, 0), devices.limit_seconds)
        for label, each in _labelled(ranks):
            yield f"{comparison.name}, {label}: a step of {_ms(trained(ranks)[0].step_seconds)} ms, when not recorded"
            yield from (f"  {line}" for line in each.kernels)


def in_order(ways: dict[str, Way]) -> dict[str, Way]:
    """So that many run side by side, and what matters comes first."""
    return dict(sorted(ways.items(), key=lambda each: (each[1].devices, not each[1].disaggregated)))


def batches(ways: dict[str, Way], count: int) -> Iterator[dict[str, Way]]:
    """In order, as many at once as have devices of their own."""
    batch: dict[str, Way] = {}
    for name, way in ways.items():
        if batch and sum(each.devices for each in batch.values()) + way.devices > count:
            yield batch
            batch = {}
        batch[name] = way
    yield batch


def together(devices: Devices, batch: dict[str, Way], until: float) -> Iterator[tuple[str, list[Record] | str]]:
    """What the ranks of each saw, or why there is nothing."""

    def play(run: Run) -> list[Record] | str:
        left = until - time.monotonic()
        if left <= 0:
            return "not begun: no time is left"
        try:
            return played(run, min(left, LIMIT_SECONDS))
        except RunError as error:
            return str(error)

    runs, first = [], 0
    for name, way in batch.items():
        runs.append(devices.run(name, way, first))
        first += way.devices
    with ThreadPoolExecutor(len(runs)) as pool:
        yield from zip(batch, pool.map(play, runs), strict=True)


def trained(ranks: list[Record]) -> list[Record]:
    """Those that train."""
    return [each for each in ranks if each.role != Role.FORWARD]


def losses(ranks: list[Record]) -> list[float]:
    """Which one of the ranks knows, or some alike."""
    return max((each.losses for each in ranks), key=len)


def described(name: str, ranks: list[Record]) -> dict[str, Any]:
    seen = losses(ranks)
    return {
        "what": name,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "step_ms": _ms(trained(ranks)[0].step_seconds),
        "first_and_last_loss": [seen[0], seen[-1]] if seen else [],
        "peak_gib": {label: round(each.peak_bytes / 2**30, 1) for label, each in _labelled(ranks)},
        f"device_and_host_ms_of_{LANE_STEPS}_steps": {
            label: {lane: [_ms(seconds) for seconds in both] for lane, both in each.lanes.items()}
            for label, each in _labelled(ranks)
        },
    }


def _labelled(ranks: list[Record]) -> Iterator[tuple[str, Record]]:
    for number, each in enumerate(ranks):
        yield f"rank {number}, {each.role or 'trains'}, stage {each.stage}", each


def compared(devices: Devices, comparison: Comparison, seen: dict[str, list[Record]]) -> dict[str, Any]:
    times = seen[PROFILE][0].times
    seconds = {name: trained(ranks)[0].step_seconds for name, ranks in seen.items() if name != PROFILE}
    own = seconds[comparison.name]
    over_none, over_full = seconds[comparison.none] / own, seconds[comparison.full] / own
    bitwise = losses(seen[comparison.name]) == losses(seen[comparison.full])
    row = {
        "what": f"{comparison.name}, {' '.join((devices.preset, *devices.flags))}, {devices.microbatches} microbatches "
        f"of {devices.batch}",
        "forward_dgrad_wgrad_ms": [_ms(times[name]) for name in "FBW"],
        "gain_over_none": round(over_none, 3),
        "gain_over_full": round(over_full, 3),
        **{f"gain_over_{name}": round(seconds[name] / own, 3) for name in comparison.others},
        "losses_are_those_of_full_recompute": bitwise,
    }
    ok = bitwise and over_none >= comparison.must_over_none and over_full >= comparison.must_over_full
    if comparison.shared:  # the planner knows no such devices
        return row | {"ok": ok}
    figures, error = prediction(devices, comparison, times, seconds)
    return row | figures | {"ok": ok and abs(error) <= PREDICTION_MUST}


def prediction(
    devices: Devices, comparison: Comparison, times: dict[str, float], seconds: dict[str, float]
) -> tuple[dict[str, Any], float]:
    """The planner's, with what stock's step takes beside its passes, and how far off it is."""
    share = sum(each for name, each in times.items() if name.startswith("linear ")) / times["F"]
    step = planned(devices, comparison, times, share)
    pass_seconds = sum(times[name] for name in "FBW") / comparison.stages
    passes = one_f1b_cost(comparison.stages, devices.microbatches, pass_seconds, step.training.message_ns / 1e9)
    tail = max(0.0, seconds[comparison.none] - passes)
    step = replace(step, training=replace(step.training, tail_ns=tail * 1e9))
    predicted = step.step_ns / 1e9 + tail
    error = seconds[comparison.name] / predicted - 1
    return {
        "linears_share": round(share, 3),
        "link_gigabytes_per_second": round(times[LINK] / 1e9, 1),
        "paces_ms": [round(pace / 1e6, 2) for pace in step.paces],
        "predicted_ms": _ms(predicted),
        "prediction_error_ratio": round(error, 4),
    }, error


def planned(devices: Devices, comparison: Comparison, times: dict[str, float], linears_share: float) -> PlannedStep:
    """By the planner, from the times of one device."""
    way, stages = comparison.ways[comparison.name], comparison.stages
    config, args = arguments.parse([*devices.model, *f"--train-iters 1 {way.flags}".split()], (FbdPlugin,))
    model, link = model_of(config), times[LINK] or LARGE
    forward, dgrad, wgrad = (times[name] * 1e9 / stages for name in "FBW")
    training = Training(
        layout=Layout(stages=stages, microbatches=devices.microbatches), tensor=1, replicas=1, forward_ns=forward,
        dgrad_ns=dgrad, wgrad_ns=wgrad, message_ns=model.border_bytes / link * 1e9, memory_bytes=LARGE,
    )  # fmt: skip
    beside = ForwardDevices(count=comparison.forward, speed=1.0, memory_bytes=LARGE, bytes_per_second=link)
    mapping = Mapping(comparison.mode, 1, comparison.forward, Plan.of(args, way.devices).slots)
    return PlannedStep(model, training, beside, mapping, linears_share)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)
