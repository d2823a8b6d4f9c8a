"""What a rank's device runs within each of bench.fbd's lanes, from a recording of torch's profiler.

What the host launches belongs to the innermost lane that is open then, also where autograd's thread launches it, which
the host waits for. Copies that the transport's own thread launches are counted likewise, by the moment.
"""

from __future__ import annotations

import json
import re
import tempfile
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

PREFIX = "lane "
OUTSIDE = "no lane"
SHOWN, CALLS_SHOWN = 14, 4
"""Kernels of a lane, and calls that its host makes: those that take longest."""
NAME_WIDTH = 110
LEFT_OUT = re.compile(
    r"void |at::native::|\(anonymous namespace\)::|c10::|elementwise_kernel<[^>]*?gpu_kernel_impl\w*<"
)
"""Of a kernel's name: what says nothing of what it does."""


class Span(NamedTuple):
    """In microseconds."""

    begin: float
    end: float
    name: str


@dataclass
class Lane:
    """All of its moments together, in microseconds."""

    entered: int = 0
    host: float = 0.0
    """Without lanes within."""
    launches: int = 0
    operators: int = 0
    """Calls of torch's, those within others left out."""
    busy: float = 0.0
    idle: float = 0.0
    """Before one of its kernels, while the device ran nothing."""
    kernels: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    calls: Counter[str] = field(default_factory=Counter)
    in_driver: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """The host's time in calls of the CUDA runtime and driver, by name."""


class Kernels:
    """Records from `begin` to `end`."""

    def __init__(self) -> None:
        self._profile: Any = None
        self.lines: list[str] = []

    def mark(self, name: str) -> AbstractContextManager[Any]:
        return record_function(PREFIX + name)

    def begin(self) -> None:
        on_gpu = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
        self._profile = profile(activities=[ProfilerActivity.CPU, *on_gpu])
        self._profile.start()

    def end(self, steps: int) -> None:
        self._profile.stop()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(path))
            events = json.loads(path.read_text())["traceEvents"]
        self.lines = list(described(lanes_of(events), steps))


def lanes_of(events: Iterable[dict[str, Any]]) -> dict[str, Lane]:
    """events: of a Chrome trace as torch's profiler writes it."""
    by_category: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("ph") == "X":
            by_category[event.get("cat", "")].append(event)
    marks = [e for e in by_category["user_annotation"] if e["name"].startswith(PREFIX)]
    innermost = list(_innermost(sorted((_span(e) for e in marks), key=lambda span: (span.begin, -span.end))))
    begins = [span.begin for span in innermost]

    def lane_at(moment: float) -> str:
        index = bisect_right(begins, moment) - 1
        return innermost[index].name if index >= 0 and moment < innermost[index].end else OUTSIDE

    lanes: defaultdict[str, Lane] = defaultdict(Lane)
    for mark in marks:
        lanes[mark["name"].removeprefix(PREFIX)].entered += 1
    for span in innermost:
        lanes[span.name].host += span.end - span.begin
    for moment in _outermost(by_category["cpu_op"]):
        lanes[lane_at(moment)].operators += 1
    launched = {}
    for event in (*by_category["cuda_runtime"], *by_category["cuda_driver"]):
        name = lane_at(event["ts"])
        lanes[name].in_driver[event["name"]] += float(event["dur"])
        launched[event.get("args", {}).get("correlation")] = name
    on_device = [e for name in ("kernel", "gpu_memcpy", "gpu_memset") for e in by_category[name]]
    _add_kernels(lanes, launched, sorted(on_device, key=lambda e: float(e["ts"])))
    return dict(lanes)


def _span(event: dict[str, Any]) -> Span:
    begin = float(event["ts"])
    return Span(begin, begin + float(event["dur"]), event["name"].removeprefix(PREFIX))


def _innermost(spans: Iterable[Span]) -> Iterator[Span]:
    """Nested spans, in order, cut into pieces that do not overlap: each is the innermost one's."""
    open_: list[Span] = []
    reached = 0.0
    for span in (*spans, Span(float("inf"), float("inf"), "")):
        while open_ and open_[-1].end <= span.begin:
            ended = open_.pop()
            yield Span(reached, ended.end, ended.name)
            reached = ended.end
        if open_:
            yield Span(reached, span.begin, open_[-1].name)
        reached = span.begin
        open_.append(span)


def _outermost(operators: Iterable[dict[str, Any]]) -> Iterator[float]:
    """When those begin that no other operator of the same thread is open around."""
    until: dict[Any, float] = {}
    for event in sorted(operators, key=lambda e: (float(e["ts"]), -float(e["dur"]))):
        begin = float(event["ts"])
        if begin >= until.get(event["tid"], 0.0):
            until[event["tid"]] = begin + float(event["dur"])
            yield begin


def _add_kernels(lanes: defaultdict[str, Lane], launched: dict[Any, str], on_device: list[dict[str, Any]]) -> None:
    reached = float(on_device[0]["ts"]) if on_device else 0.0
    for event in on_device:
        lane = lanes[launched.get(event.get("args", {}).get("correlation"), OUTSIDE)]
        begin, duration = float(event["ts"]), float(event["dur"])
        lane.launches += 1
        lane.idle += max(0.0, begin - reached)
        lane.busy += duration
        lane.kernels[event["name"]] += duration
        lane.calls[event["name"]] += 1
        reached = max(reached, begin + duration)


def described(lanes: dict[str, Lane], steps: int) -> Iterator[str]:
    """Lines of a table, all of one step."""
    for name, lane in sorted(lanes.items(), key=lambda each: -each[1].busy - each[1].host):
        yield (
            f"{name}: {lane.entered / steps:g} times; device busy {_ms(lane.busy, steps)} ms, idle before its kernels "
            f"{_ms(lane.idle, steps)} ms; host {_ms(lane.host, steps)} ms; {lane.operators / steps:g} operators, "
            f"{lane.launches / steps:g} kernels and copies"
        )
        for kernel, duration in _longest(lane.kernels, SHOWN):
            shown = LEFT_OUT.sub("", kernel)[:NAME_WIDTH]
            yield f"    {_ms(duration, steps)} ms  {lane.calls[kernel] / steps:g} x  {shown}"
        for call, duration in _longest(lane.in_driver, CALLS_SHOWN):
            yield f"    host {_ms(duration, steps)} ms  {call}"


def _longest(durations: Mapping[str, float], most: int) -> list[tuple[str, float]]:
    return sorted(durations.items(), key=lambda each: -each[1])[:most]


def _ms(microseconds: float, steps: int) -> str:
    return f"{microseconds / steps / 1e3:.2f}"
