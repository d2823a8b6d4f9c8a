"""The pipeline simulator against published values, and how fast it is: `python -m bench.simulator`.

Published values: zero-bubble tables (arXiv 2401.10241, p 8, times in ms), ZBV (arXiv 2405.15362), DualPipe's bubble
(arXiv 2412.19437), and MegatronApp's recorded runs, whose iterations are predicted from their orders and durations and
from what messages took in the other iterations (needs the recordings: --recordings FOLDER). What choosing while running
gains over a replay is held against the design's figures. Prints one JSON object a row, and exits with 1 when a row
misses its goal. Speeds are processor seconds of one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bench import _choosing
from megatronapp.cli.pipeline.compiled import compiled_engine
from megatronapp.cli.pipeline.recordings import read_recording
from megatronapp.core.pipeline import bounds, caps, orders
from megatronapp.core.pipeline.arrays import Whole
from megatronapp.core.pipeline.placement import Layout, Placement
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.replay import replay_recorded
from megatronapp.core.pipeline.simulator.run import Engine, Run, dynamic, run, strict
from megatronapp.core.pipeline.simulator.times import Variation, constant_durations, equal_times
from tests.support.overlapped import results_together

RECORDINGS = Path(__file__).resolve().parents[1] / "../shared/data/megatronapp_profiling"


class Row(NamedTuple):
    """Times of one microbatch on one stage in ms, and published bubbles."""

    microbatches: int
    forward: float
    dgrad: float
    wgrad: float
    latency: float
    chunks: int
    one_f1b: float
    interleaved: float
    zb_h1: float
    zb_h2: float
    zb_2p: float
    zb_2p_global: float


STAGES = 8
ZERO_BUBBLE = (
    Row(24, 18.522, 18.086, 9.337, 0.601, 3, 0.2431, 0.1055, 0.1585, 0.1083, 0.0433, 0.1083),
    Row(32, 18.513, 18.086, 9.331, 0.626, 3, 0.1985, 0.0818, 0.1242, 0.0837, 0.0039, 0.0835),
    Row(64, 18.546, 18.097, 9.321, 0.762, 3, 0.1240, 0.0443, 0.0674, 0.0444, 0.0026, 0.0439),
    Row(24, 29.718, 29.444, 19.927, 0.527, 4, 0.2347, 0.0808, 0.1323, 0.0698, 0.0029, 0.1003),
    Row(32, 29.802, 29.428, 19.530, 0.577, 4, 0.1898, 0.0628, 0.1045, 0.0559, 0.0022, 0.0778),
    Row(64, 29.935, 29.621, 19.388, 0.535, 4, 0.1091, 0.0320, 0.0554, 0.0294, 0.0010, 0.0405),
)
ZBV = ((16, 48, 14.407, 14.380, 9.676, 1.610, 0.0697), (24, 72, 6.763, 6.969, 5.251, 0.755, 0.0638))
"""Stages, microbatches, F, B, W, latency of one chunk, bubble."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.simulator", description=__doc__)
    parser.add_argument("--recordings", type=Path, default=RECORDINGS, help="folder of MegatronApp's profiling data")
    parser.add_argument("--pipelines", type=int, default=1024, help="pipelines of the speed row; 0: no speeds")
    parser.add_argument("--seeds", type=int, default=100)
    options = parser.parse_args()
    missed = 0
    for row in _rows(options):
        missed += row.get("ok") is False
        print(json.dumps(row), flush=True)
    return 1 if missed else 0


def _rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for row in ZERO_BUBBLE:
        yield from _zero_bubble(row)
    yield from map(_zbv, ZBV)
    yield from _memory_and_dualpipe()
    yield from _recordings(options.recordings)
    yield from _choosing.rows(options.seeds, compiled_engine())
    if options.pipelines:
        yield from _speeds(options.pipelines, options.seeds)


def _zero_bubble(row: Row) -> Iterator[dict[str, Any]]:
    name = f"m {row.microbatches}, F {row.forward}"
    latency, work = round(row.latency * 1e6), row.microbatches * (row.forward + row.dgrad + row.wgrad)
    for schedule, published in (("1f1b", row.one_f1b), ("zb-h1", row.zb_h1), ("zb-h2", row.zb_h2)):
        layout = Layout(stages=STAGES, microbatches=row.microbatches, split=schedule != "1f1b")
        yield _compared(f"{schedule}, {name}", _bubble(_run(layout, row, latency, schedule)), published, 1e-4)
    cost = bounds.interleaved_cost(STAGES, row.chunks, row.microbatches, work / row.microbatches, row.latency)
    yield _compared(f"interleaved by its closed form, {name}", 1 - work / cost, row.interleaved, 1e-4)
    layout = Layout(stages=STAGES, chunks=row.chunks, microbatches=row.microbatches)
    simulated = _run(layout, row, latency, "interleaved").end_ns / 1e6 - STAGES * row.latency
    yield _compared(f"interleaved simulated, less p · latency, {name}", 1 - work / simulated, row.interleaved, 1e-4)
    bound = bounds.split_bound(STAGES, row.microbatches, row.forward, work / row.microbatches, row.latency)
    yield _compared(f"zb-2p global, the bound, {name}", 1 - work / bound, row.zb_2p_global, 1e-4)
    yield _compared(f"zb-2p by stage, {name}", _bubble(_zb_2p(row, latency)), row.zb_2p, 0.002, worse_only=True)


def _run(layout: Layout, row: Row, latency_ns: int, schedule: str) -> Run:
    durations = constant_durations(layout, equal_times(layout, row.forward * 1e6, row.dgrad * 1e6, row.wgrad * 1e6))
    made = strict(schedule, layout, orders.all_stages(schedule, layout))
    return run(layout, made, durations, wire(layout, Links(latency_ns=latency_ns)))


def _zb_2p(row: Row, latency_ns: int) -> Run:
    layout = Layout(stages=STAGES, microbatches=row.microbatches, split=True)
    lags = [orders.zb_2p_lag(d, row.forward, row.dgrad, row.wgrad, row.latency) for d in range(STAGES)]
    made = strict("zb-2p", layout, [orders.zero_bubble(layout, d, 2, lags[d]) for d in range(STAGES)])
    durations = constant_durations(layout, equal_times(layout, row.forward * 1e6, row.dgrad * 1e6, row.wgrad * 1e6))
    return run(layout, made, durations, wire(layout, Links(latency_ns=latency_ns)))


def _bubble(done: Run) -> float:
    """Of the stage that needs longest from its own begin to its end."""
    cost = (done.ends.max(axis=1) - done.begins.min(axis=1)).max()
    return float(1 - done.durations.sum(axis=1).max() / cost)


def _zbv(setting: tuple[int, int, float, float, float, float, float]) -> dict[str, Any]:
    stages, microbatches, forward, dgrad, wgrad, latency, published = setting
    layout = Layout(stages=stages, chunks=2, microbatches=microbatches, split=True, placement=Placement.V)
    durations = constant_durations(layout, equal_times(layout, *(2e6 * each for each in (forward, dgrad, wgrad))))
    made = strict("zbv", layout, orders.all_stages("zbv", layout))
    done = run(layout, made, durations, wire(layout, Links(latency_ns=round(latency * 1e6))))
    return _compared(f"zbv, p {stages}, m {microbatches}", _bubble(done), published, 0.002)


def _memory_and_dualpipe() -> Iterator[dict[str, Any]]:
    yield _compared("v-half memory, p 16", bounds.v_half_memory(16), 9, 0)
    yield _compared("v-min memory, p 16", bounds.v_min_memory(16), 6, 0)
    for stages in (4, 8):
        layout = Layout(stages=stages, chunks=2, microbatches=6 * stages, split=True, placement=Placement.V)
        durations = constant_durations(layout, equal_times(layout, 2000, 2000, 2000))
        made = orders.all_stages("dualpipev", layout)
        late = results_together(layout, made, durations)
        done = run(layout, strict("dualpipev", layout, made), durations, wire(layout, Links()), late=late)
        idle = float(done.end_ns - durations.sum(axis=1).min())
        formula = bounds.dualpipe_bubble(2 * stages, 3000, 2000, 1000)
        yield _compared(f"dualpipev's bubble, p {stages}, F = B = W", idle, formula, 0)


def _recordings(folder: Path) -> Iterator[dict[str, Any]]:
    for name in ("pp", "dpp"):
        path = folder / f"data-1-pipeline-4-tensor-1-{name}-aggregated.json"
        if not path.exists():
            yield {
                "what": f"recorded run {name}",
                "skipped": f"{path.name} is not there; name its folder: --recordings",
            }
            continue
        recorded = read_recording(path)
        measured = recorded.pipeline_ns
        for messages in (True, False):
            predicted = np.array(
                [replay_recorded(recorded, each, messages=messages).end_ns for each in range(len(recorded))]
            )
            row = {
                "what": f"recorded run {name}, {'blocking' if messages else 'free'} messages, mean pipeline time in ms",
                "simulated": round(float(predicted.mean()) / 1e6, 2),
                "measured": round(float(measured.mean()) / 1e6, 2),
                "error_ratio": round(float(predicted.mean() / measured.mean() - 1), 4),
                "worst_iteration_error_ratio": round(float(max(predicted / measured - 1, key=abs)), 4),
            }
            yield {**row, "goal": 0.05, "ok": abs(row["error_ratio"]) <= 0.05} if messages else row  # type: ignore[arg-type]


def _compared(
    what: str, simulated: float, published: float, tolerance: float, *, worse_only: bool = False
) -> dict[str, Any]:
    """Published values have four digits."""
    difference = simulated - published if worse_only else abs(simulated - published)
    ok = difference <= tolerance + 5e-5
    return {"what": what, "simulated": round(simulated, 5), "published": published, "goal": tolerance, "ok": bool(ok)}


def _speeds(pipelines: int, seeds: int) -> Iterator[dict[str, Any]]:
    compiled = compiled_engine()
    large = Layout(stages=64, chunks=4, microbatches=512, split=True)
    for name, engine in (("Python", None), ("compiled", compiled)):
        if name == "compiled" and engine is None:
            yield {"what": "compiled", "skipped": "numba is not installed; pip install 'megatronapp[simulator]'"}
            return
        if engine is not None:
            seconds = _timed(Layout(stages=2, microbatches=2, split=True), 1, engine)
            yield {"what": "compiling, or loading what was compiled", "seconds": round(seconds, 2)}
        seconds = _timed(large, 1, engine)
        what = f"{name}: p 64, v 4, m 512, dynamic, {large.stages * large.operations} operations"
        yield {"what": what, "seconds": round(seconds, 2), "goal": 10, "ok": seconds <= 10}
    layout = Layout(stages=8, chunks=2, microbatches=32, split=True)
    runs = pipelines * seeds
    seconds = _timed(layout, runs, compiled)
    yield {
        "what": f"compiled: {pipelines} pipelines of p 8, v 2, m 32 × {seeds} seeds, dynamic, on one core",
        "seconds": round(seconds, 1),
        "goal": 600,
        "ok": seconds <= 600 if runs >= 102_400 else None,
        "operations_per_second": round(runs * layout.stages * layout.operations / seconds),
    }


def _timed(layout: Layout, runs: int, engine: Engine | None) -> float:
    """Processor seconds of simulations with drawn times, orders and links included."""
    began = time.process_time()
    cap = caps.stock_cap(layout)
    schedule = dynamic("", layout, orders.all_stages("interleaved", layout), [cap] * layout.stages)
    wiring = wire(layout, Links(latency_ns=20_000))
    times = equal_times(layout, 1e7, 1e7, 1e7)
    variation = Variation(jitter_cv=0.2)
    peaks: set[float] = set()
    for number in range(runs):
        durations: Whole = variation.draw(layout, times, np.random.default_rng(number))[0]
        done = run(layout, schedule, durations, wiring, engine=engine)
        peaks.add(max(done.peaks))
    assert max(peaks) <= cap
    return time.process_time() - began


if __name__ == "__main__":
    sys.exit(main())
