"""MegaFBD against stock on the same backward devices, and against what the planner predicts: `python -m bench.fbd`.

`--only cpu`: forward and backward ranks run real schedules, the real engine between the worlds and the host's real part
of a step; what a device would compute is slept. F, dgrad and wgrad take the same. *Input* is compared with full
recompute, *linears* with none, on 3 backward devices with 1 forward device added and on 4 with 2. A row whose hosts
take more than a tenth of the passes' time says 'not measured': with *linears* R is a tenth of F, so that operations
have to be many times as long as the host's part of R.

`--only delays`: steps in which passes and messages are late at random, with the fewest slots and more: none hangs or
differs from megatron-core's gradients.

`--only gpu`: on real devices, beside stock on the same backward devices with no and with full recompute, and on all of
them. `linears`: without a pipeline, 1 + 1 GPUs; `shared`: *input* on a pipeline of two GPUs, with a forward rank on the
first of them; `3+1`, `2+2`: *input* on four GPUs. Losses must be those of full recompute to the bit, which kernels have
to repeat: with `--attention-backend flash` add `--deterministic-mode`. The planner predicts each from the times of one
GPU and of the link. Each row tells what devices and hosts were busy with. Further flags are the trainer's.
`--kernels` prints, in place of rows, what devices run within R, B, W and the other lanes, from torch's profiler.

Prints one JSON object a row, and exits with 1 when a measured row misses what it must show.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from bench._fbd_devices import COMPARISONS, Devices, kernels, rows
from bench._model import PRESETS
from bench._slept_worlds import Setting, disaggregated, stock
from megatronapp.core.pipeline.bounds import one_f1b_cost
from megatronapp.core.pipeline.partition import Mode
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.support.delayed_worlds import CASES, assert_delays_change_nothing

CLUSTERS = ((Mode.INPUT, 3, 1, 1.0), (Mode.INPUT, 4, 2, 1.0), (Mode.LINEARS, 3, 1, 1.5), (Mode.LINEARS, 4, 2, 1.0))
"""Mode, backward devices, forward devices and their speed: one alone must be faster to feed three in *linears*."""
MUST = {Mode.INPUT: 1.20, Mode.LINEARS: 1.25}
GOAL = {Mode.INPUT: 1.28, Mode.LINEARS: 1.40}
HOST_SHARE_LIMIT = 0.1
ON_CPU_COUNT = 4
SHORT = ("--seq-length", "1024")
"""On GPUs: megatron-core's own attention writes its scores to memory, which long sequences are slow by."""
PREDICTION_ERROR_LIMIT = 0.05


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fbd", description=__doc__)
    parser.add_argument("--only", choices=("cpu", "delays", "gpu"), help="default: the first two")
    parser.add_argument("--operation-ms", type=float, default=60.0, help="F of one stage (default %(default)s)")
    parser.add_argument("--microbatches", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3, help="measured ones (default %(default)s)")
    parser.add_argument("--delayed-steps", type=int, default=250, help="of each of the cases (default %(default)s)")
    parser.add_argument(
        "--rows", nargs="+", choices=COMPARISONS, default=["linears"], help="on GPUs (default: linears)", metavar="ROW"
    )
    parser.add_argument(
        "--preset", choices=PRESETS, help="the model on GPUs (default: 1b-wide for linears, else 1b-pipeline)"
    )
    parser.add_argument("--limit-seconds", type=float, default=500.0, help="on GPUs, for all (default %(default)s)")
    parser.add_argument("--on-cpu", action="store_true", help="rows for GPUs on CPU ranks: whether they run at all")
    parser.add_argument("--micro-batch-size", type=int, default=2, help="on GPUs (default %(default)s)")
    parser.add_argument("--kernels", action="store_true", help="on GPUs: what devices run, in place of rows")
    options, flags = parser.parse_known_args()
    if flags and options.only != "gpu":
        parser.error(f"unknown: {' '.join(flags)}")
    options.flags = flags
    if options.kernels:
        return _print_kernels(options)
    missed = 0
    for row in _rows(options):
        missed += row.get("ok") is False
        print(json.dumps(row), flush=True)
    return 1 if missed else 0


def _rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if options.only == "gpu":
        yield from _on_gpus(options)
        return
    if options.only != "delays":
        for mode, stages, devices, speed in CLUSTERS:
            yield _compared(
                Setting(mode, stages, devices, speed, options.operation_ms, options.microbatches, options.steps)
            )
    if options.only != "cpu":
        for name in CASES:
            yield _delayed(name, options.delayed_steps)


def _compared(setting: Setting) -> dict[str, Any]:
    recomputes = setting.mode is Mode.INPUT
    alone, beside = stock(setting, recomputes=recomputes), disaggregated(setting)
    pass_seconds = setting.operation_seconds * (3 + recomputes)
    predicted_stock = one_f1b_cost(setting.stages, setting.microbatches, pass_seconds, 0.0)
    predicted = setting.planned().step_ns / 1e9
    host_share = max(alone.host_share, beside.host_share)
    row: dict[str, Any] = {
        "what": f"{setting.mode}, {setting.stages} backward + {setting.devices} forward devices of speed "
        f"{setting.speed:g}, {setting.microbatches} microbatches, against {'full' if recomputes else 'no'} recompute",
        "stock_ms": round(alone.step_seconds * 1e3, 1),
        "fbd_ms": round(beside.step_seconds * 1e3, 1),
        "host_share": round(host_share, 3),
    }
    if host_share > HOST_SHARE_LIMIT:
        return {**row, "gain": "not measured: the hosts took more than a tenth of the passes' time"}
    gain, error = alone.step_seconds / beside.step_seconds, beside.step_seconds / predicted - 1
    return row | {
        "gain": round(gain, 3),
        "gain_planned": round(predicted_stock / predicted, 3),
        "must": MUST[setting.mode],
        "goal": GOAL[setting.mode],
        "prediction_error_ratio": round(error, 4),
        "ok": gain >= MUST[setting.mode] and abs(error) <= PREDICTION_ERROR_LIMIT,
    }


def _on_gpus(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counting must not start CUDA here
    count = ON_CPU_COUNT if options.on_cpu else torch.cuda.device_count()
    for names in _alike(options.rows):
        needed = max(way.devices for name in names for way in COMPARISONS[name].ways.values())
        if count < needed:
            yield {"what": f"{', '.join(names)} on GPUs", "skipped": f"needs {needed} GPUs"}
            continue
        yield from rows(_devices(options, names, count), names)


def _devices(options: argparse.Namespace, names: list[str], count: int = 2) -> Devices:
    return Devices(
        preset=options.preset or ("1b-wide" if "linears" in names else "1b-pipeline"), count=count,
        microbatches=options.microbatches, batch=options.micro_batch_size, steps=options.steps,
        flags=(*SHORT, *options.flags), limit_seconds=options.limit_seconds,
    )  # fmt: skip


def _print_kernels(options: argparse.Namespace) -> int:
    for names in _alike(options.rows):
        for line in kernels(_devices(options, names), names):
            print(line, flush=True)
    return 0


def _alike(names: list[str]) -> list[list[str]]:
    """Those that share a model, and so their stock's runs."""
    pipelines = [name for name in names if name != "linears"]
    return [each for each in (["linears"] * ("linears" in names), pipelines) if each]


def _delayed(name: str, steps: int) -> dict[str, Any]:
    began = time.perf_counter()
    assert_delays_change_nothing(name, steps)
    return {"what": f"random delays, {name}", "steps": steps, "seconds": round(time.perf_counter() - began, 1)}


if __name__ == "__main__":
    sys.exit(main())
