"""MegaDPP against megatron-core's interleaved schedule, and against what the simulator predicts: `python -m bench.dpp`.

`--only cpu`: four ranks with two chunks each run real schedules, the real transport and the host's real part of a step;
what a device would compute is slept, so that two cores are enough. F, B and W are drawn for each step and microbatch,
alike for all schedules and for the simulator: quiet, jitter of each operation, microbatches of different lengths, and
messages that come late. Beside the dynamic order stands the static replay of the order that it takes on a quiet
machine. A row whose hosts take more than a tenth of the operations' time says 'not measured'. The gain to be shown is
half of what the simulator says where hosts take nothing; a step's prediction has what operations were measured to take
their hosts in the same run.

Each case is played with both interleaved hints, as `--dpp-policy` has them: `interleaved-zb`, which has places for W
and which `auto` runs, and `interleaved`, where W fills gaps and whose replay is some percent slower.

Each row says where its ratios of F : B : W and the cost of the split are from: the design, or a measurement. Prints
one JSON object a row, and exits with 1 when a measured row misses what it must show.

`--only links`: two ranks with four chunks each, over links (TCP, held to a rate) on which a message takes longer
than an operation on its rank: messages that wait go as their receivers need them, against as they are posted.

`--only simulated`: what the simulator says of the same rows, for so many seeds that the draws of one hardly matter.

`--only delays`: steps in random orders with random delays of operations and messages, under the smallest cap and above,
over shm and tcp: none hangs, holds more than its cap, or differs from megatron-core's gradients.

`--only gpu`: a real model on two or four GPUs, all cases in one training run, steps of the modes in blocks; beside gain
and prediction the memory that each mode uses. The last row has megatron-core's schedule without the plug-in, over NCCL.
Further flags are the trainer's. Without GPUs it runs on CPUs, whose figures say nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counting devices must not start CUDA: ranks are forks

import numpy as np
import torch

from bench import _dpp_devices, _dpp_rows
from bench._dpp_predicted import CASES
from bench._model import COMMON, PRESETS
from bench._slept_pipeline import (
    AS_POSTED,
    CHUNKS,
    DYNAMIC,
    FILLING,
    HINT,
    MODES,
    QUIET,
    REPLAY,
    STAGES,
    STOCK,
    Measured,
    Scenario,
    Setting,
    measured,
    simulated,
)
from megatronapp.core.pipeline.arrays import Whole
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.delayed import LANES, assert_delays_change_nothing
from tests.support.forked import RankFailedError, run_forked

SCENARIOS = (
    QUIET,
    Scenario("jitter cv 0.2", jitter_cv=0.2, goal=1.06, over_replay=1.01),
    Scenario("length cv 0.5", length_cv=0.5, goal=1.15, over_replay=1.03),
    Scenario("5 % of messages 3 F late", late_ratio=0.05, goal=1.20, over_replay=1.15),
)
MEASURED = "1:1.44:0.48"
"""By `python -m bench.split_cost --preset 1b-wide` on one H100, where the split cost nothing."""
HINTS = (HINT, FILLING)
RATIOS = ("1:1:1", "1:1.3:0.7", MEASURED)
SPLIT_OVERHEADS = {"1:1:1": 0.0, MEASURED: 0.0}
DESIGNS_SPLIT_OVERHEAD = 0.03
HOST_SHARE_LIMIT = 0.1
QUIET_MUST = 0.98
PREDICTION_ERROR_LIMIT = 0.05
DISPATCH_LIMIT_MICROSECONDS = 100
OPERATION_MS, MICROBATCHES = 20.0, 16
TRANSFER_RATIO = 2.4
GPU_CASES = dict(zip(("quiet", "jitter", "length", "late"), CASES, strict=True))
SHORT = 1024
"""Tokens of a sequence on GPUs: megatron-core's own attention writes its scores to memory."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.dpp", description=__doc__)
    parser.add_argument(
        "--only", choices=("cpu", "links", "delays", "simulated", "gpu"), help="default: the first three"
    )
    parser.add_argument("--seeds", type=int, default=5, help="steps, each with draws of its own (default %(default)s)")
    parser.add_argument("--ratios", nargs="+", default=RATIOS, metavar="F:B:W", help="default: %(default)s")
    parser.add_argument("--hint", nargs="+", choices=HINTS, default=HINTS, help="default: both")
    parser.add_argument(
        "--operation-ms", type=float, default=OPERATION_MS, help="the shortest one (default %(default)s)"
    )
    parser.add_argument("--microbatches", type=int, help="default: 16; on GPUs 4 for each stage")
    parser.add_argument("--steps", type=int, default=1000, help="with delays, over each lane (default %(default)s)")
    gpu = parser.add_argument_group("--only gpu")
    gpu.add_argument("--preset", choices=PRESETS, default="1b-wide", help="the model (default %(default)s)")
    gpu.add_argument("--ranks", type=int, help="pipeline stages (default: all GPUs)")
    gpu.add_argument("--layers-per-chunk", type=int, default=2)
    gpu.add_argument("--micro-batch-size", type=int, default=2)
    gpu.add_argument(
        "--cases", nargs="+", choices=tuple(GPU_CASES), default=tuple(GPU_CASES), help="beside the quiet one"
    )
    gpu.add_argument("--rounds", type=int, default=2, help="blocks of each mode and case (default %(default)s)")
    gpu.add_argument("--block", type=int, default=4, help="counted steps of a block (default %(default)s)")
    gpu.add_argument("--replay", action="store_true", help="also the static replay of the quiet machine's order")
    gpu.add_argument("--limit-seconds", type=float, default=240.0, help="of a training run (default %(default)s)")
    options, flags = parser.parse_known_args()
    options.flags = flags
    if options.flags and options.only != "gpu":
        parser.error(f"unknown: {' '.join(options.flags)}")
    missed = 0
    for row in _rows(options):
        missed += row.get("ok") is False
        if options.only != "gpu":  # whose ranks print
            print(json.dumps(row), flush=True)
    return 1 if missed else 0


def _rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if options.only == "gpu":
        yield from _on_gpus(options)
        return
    if options.only in (None, "cpu", "simulated"):
        row = _simulated if options.only == "simulated" else _compared
        for text in options.ratios:
            setting = setting_of(text, options.operation_ms, options.microbatches or MICROBATCHES, options.seeds)
            for hint, scenario in product(options.hint, SCENARIOS):
                yield row(replace(setting, scenario=scenario, hint=hint), text)
    if options.only in (None, "links"):
        yield _over_slow_links(options.operation_ms, options.seeds)
    if options.only in (None, "delays"):
        for lane in LANES:
            yield _delayed(lane, options.steps)


def setting_of(ratios: str, operation_ms: float, microbatches: int, seeds: int) -> Setting:
    """Quiet, with auto's hint."""
    forward, dgrad, wgrad = map(float, ratios.split(":"))
    overhead = SPLIT_OVERHEADS.get(ratios, DESIGNS_SPLIT_OVERHEAD)
    return Setting(QUIET, (forward, dgrad, wgrad), overhead, operation_ms, microbatches, seeds)


def _on_gpus(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    ranks, chunks = options.ranks or max(2, torch.cuda.device_count()), _dpp_devices.CHUNKS
    microbatches = options.microbatches or 4 * ranks
    layers = options.layers_per_chunk * chunks * ranks
    flags = (
        f"{PRESETS[options.preset]} {COMMON} --seq-length {SHORT if options.preset != 'tiny' else 64} "
        f"--num-layers {layers} --micro-batch-size {options.micro_batch_size} "
        f"--global-batch-size {options.micro_batch_size * microbatches} --lr 0 "
        f"--pipeline-model-parallel-size {ranks} --num-virtual-stages-per-pipeline-rank {chunks} "
        f"{' '.join(options.flags)}"
    )
    what = f"{options.preset} of {layers} layers, {ranks} ranks × {chunks} chunks, {microbatches} microbatches"
    cases = [case for name, case in GPU_CASES.items() if name == "quiet" or name in options.cases]
    planned = _dpp_devices.plan(cases, options.rounds, options.block, replay=options.replay)
    try:
        rows = run_forked(
            ranks, _dpp_devices.run_planned, flags, planned, what, options.limit_seconds,
            timeout=options.limit_seconds + 10,
        )[0]  # fmt: skip
        yield from rows
        alone = run_forked(
            ranks, _dpp_devices.run_alone, flags, 2 * options.block, options.limit_seconds,
            timeout=options.limit_seconds + 10,
        )  # fmt: skip
    except RankFailedError as error:
        failed = {"what": what, "failed": str(error)[-3000:], "ok": False}
        print(json.dumps(failed), flush=True)
        yield failed
        return
    row = _dpp_rows.beside_stock_alone(what, rows[0], alone)
    print(json.dumps(row), flush=True)
    yield row


def _compared(setting: Setting, ratios: str) -> dict[str, Any]:
    runs = {mode: measured(setting, mode) for mode in MODES}
    of_fast_hosts = {mode: predicted_seconds(setting, mode) for mode in MODES}
    predicted = {mode: predicted_seconds(setting, mode, each.host_ns) for mode, each in runs.items()}
    return judged(setting, ratios, runs, of_fast_hosts, predicted)


def judged(
    setting: Setting,
    ratios: str,
    runs: dict[str, Measured],
    of_fast_hosts: dict[str, list[float]],
    predicted: dict[str, list[float]],
) -> dict[str, Any]:
    """A case's row, from what was measured and what the simulator says of each mode: where hosts take nothing, which
    sets the gain to be shown, and with what operations took the hosts."""
    scenario = setting.scenario
    gain, simulated_gain = (_ratio(of, STOCK) for of in (_seconds(runs), of_fast_hosts))
    over_replay = _ratio(_seconds(runs), REPLAY)
    errors = {mode: float(np.mean(runs[mode].seconds) / np.mean(predicted[mode]) - 1) for mode in MODES}
    host_share = max(max(each.host_shares) for each in runs.values())
    must = QUIET_MUST if scenario == QUIET else 1 + (simulated_gain - 1) / 2
    row: dict[str, Any] = {
        **_described(setting, ratios),
        "seeds": setting.seeds,
        **{f"{mode}_ms": round(float(np.mean(runs[mode].seconds)) * 1e3, 1) for mode in MODES},
        "host_share": round(host_share, 3),
    }
    if host_share > HOST_SHARE_LIMIT:
        return {**row, "gain": "not measured: the hosts took more than a tenth of the operations' time"}
    dispatch = runs[DYNAMIC].dispatch_seconds * 1e6
    ok = (
        gain >= must
        and over_replay >= scenario.over_replay
        and max(map(abs, errors.values())) <= PREDICTION_ERROR_LIMIT
        and runs[DYNAMIC].peak <= setting.cap
        and dispatch <= DISPATCH_LIMIT_MICROSECONDS
    )
    return row | {
        "gain": round(gain, 3),
        "gain_simulated": round(simulated_gain, 3),
        "must": round(must, 3),
        "goal": scenario.goal,
        "dynamic_over_replay": round(over_replay, 3),
        "dynamic_over_replay_must": scenario.over_replay,
        "host_microseconds": {mode: round(float(each.host_ns.mean()) / 1e3, 1) for mode, each in runs.items()},
        "prediction_error_ratio": {mode: round(error, 4) for mode, error in errors.items()},
        "peak": runs[DYNAMIC].peak,
        "cap": setting.cap,
        "dispatch_microseconds": round(dispatch, 1),
        "ok": bool(ok),
    }


def _over_slow_links(operation_ms: float, seeds: int) -> dict[str, Any]:
    setting = Setting(
        QUIET, (1.0, 1.0, 1.0), 0.0, operation_ms, 8, seeds, stages=2, chunks=4,
        transfer_ms=TRANSFER_RATIO * operation_ms,
    )  # fmt: skip
    runs = {mode: measured(setting, mode) for mode in (AS_POSTED, DYNAMIC)}
    predicted = {mode: predicted_seconds(setting, mode) for mode in runs}
    gain, predicted_gain = (_ratio(of, AS_POSTED) for of in (_seconds(runs), predicted))
    must = 1 + (predicted_gain - 1) / 2
    return {
        "what": f"2 ranks × 4 chunks, 8 microbatches, a message takes {TRANSFER_RATIO} operations on its link",
        "seeds": seeds,
        "as_posted_ms": round(float(np.mean(runs[AS_POSTED].seconds)) * 1e3, 1),
        "as_needed_ms": round(float(np.mean(runs[DYNAMIC].seconds)) * 1e3, 1),
        "gain": round(gain, 3),
        "gain_simulated": round(predicted_gain, 3),
        "must": round(must, 3),
        "ok": bool(gain >= must and runs[DYNAMIC].peak <= setting.cap),
    }


def _described(setting: Setting, ratios: str) -> dict[str, str]:
    source = "measured on one H100" if ratios == MEASURED else "the design's, not measured on a GPU"
    return {
        "what": f"{setting.scenario.name}, {STAGES} ranks × {CHUNKS} chunks, {setting.microbatches} microbatches",
        "ratios": f"{ratios}, split {setting.split_overhead:.0%} longer: {source}",
        "hint": setting.hint,
    }


def _simulated(setting: Setting, ratios: str) -> dict[str, Any]:
    predicted = {mode: predicted_seconds(setting, mode) for mode in MODES}
    return {
        **_described(setting, ratios),
        "seeds": setting.seeds,
        "gain": round(_ratio(predicted, STOCK), 3),
        "goal": setting.scenario.goal,
        "dynamic_over_replay": round(_ratio(predicted, REPLAY), 3),
        "dynamic_over_replay_must": setting.scenario.over_replay,
    }


def predicted_seconds(setting: Setting, mode: str, host_ns: Whole | None = None) -> list[float]:
    return [simulated(setting, mode, seed, host_ns).end_ns / 1e9 for seed in counted_steps(setting)]


def counted_steps(setting: Setting) -> range:
    """Those after the warm-up, which are their draws' seeds."""
    return range(1, 1 + setting.seeds)


def _seconds(runs: dict[str, Measured]) -> dict[str, list[float]]:
    return {mode: each.seconds for mode, each in runs.items()}


def _ratio(seconds: dict[str, Sequence[float]] | dict[str, list[float]], other: str) -> float:
    """How much faster the dynamic order is."""
    return float(np.sum(seconds[other]) / np.sum(seconds[DYNAMIC]))


def _delayed(lane: str, steps: int) -> dict[str, Any]:
    began = time.perf_counter()
    peaks = assert_delays_change_nothing(lane, steps)
    seconds = round(time.perf_counter() - began, 1)
    return {"what": f"random orders and delays over {lane}", "steps": steps, "peaks_of_caps": peaks, "seconds": seconds}


if __name__ == "__main__":
    sys.exit(main())
