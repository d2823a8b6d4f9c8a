"""What splitting W from B costs on one device: `python -m bench.split_cost`, on a GPU with `--preset 1b-wide`.

One rank without a pipeline. Steps of three kinds in a drawn order: megatron-core's own schedule; its passes one after
the other with W in B; the same with W behind each B, as MegaDPP runs it where nothing else can run. The times of F, B
and W are the device's, and are what `megatronapp plan --forward-ms … --dgrad-ms … --wgrad-ms … --split-overhead …`
takes. Prints one JSON object, and exits with 1 where the split costs more than 3 %.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from statistics import median, quantiles
from typing import Any, Self

import torch
from megatron.core.pipeline_parallel import schedules
from megatron.core.utils import get_model_config, get_model_type

from bench._model import COMMON, PRESETS
from megatronapp.trainer.pipeline.schedule import process_groups
from megatronapp.trainer.pipeline.wgrad import DeferredWgrad
from megatronapp.trainer.plugins.base import Plugin, PluginContext, ScheduleFunction

STOCK, WHOLE, SPLIT = "stock", "whole", "split"
KINDS = (STOCK, WHOLE, SPLIT)
WARM_UP_ROUNDS = 3
LIMIT_RATIO = 0.03


class Clock:
    """Seconds between moments of the device: events where it is a GPU, else the host's time."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event: Any = torch.cuda.Event
        return torch.cuda.current_stream().record_event(event(enable_timing=True))

    def seconds(self, begin: Any, end: Any) -> float:
        if not self._on_gpu:
            return float(end - begin)
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


class SplitCost(Plugin):
    """Runs steps of KINDS in a drawn order, and keeps what each and its passes took."""

    name = "split-cost"
    seconds: defaultdict[str, list[float]]
    """By kind of step, and by F, B, W of `split` and the whole B of `whole` ("BW")."""

    def __init__(self, device: torch.device) -> None:
        self._clock = Clock(device)
        self._wgrad = DeferredWgrad()
        self._random = random.Random(0)
        self._kinds: list[str] = []
        self._rounds = 0
        self._moments: list[tuple[str, Any, Any]] = []

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        cls.seconds = defaultdict(list)
        return cls(context.device)

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        self._wgrad.install(chunks)

    def schedule(self, function: ScheduleFunction) -> ScheduleFunction:
        def run(**kwargs: Any) -> Any:
            if not self._kinds:
                self._kinds = self._random.sample(KINDS, len(KINDS))
                self._rounds += 1
            kind = self._kinds.pop()
            begin = self._clock.now()
            losses = function(**kwargs) if kind == STOCK else self._step(kind, **kwargs)
            self._keep((kind, begin, self._clock.now()))
            return losses

        return run

    def _keep(self, step: tuple[str, Any, Any]) -> None:
        moments, self._moments = [step, *self._moments], []
        for name, begin, end in moments:
            seconds = self._clock.seconds(begin, end)
            if self._rounds > WARM_UP_ROUNDS:
                self.seconds[name].append(seconds)

    def _timed(self, name: str, call: Callable[[], Any]) -> Any:
        begin = self._clock.now()
        result = call()
        self._moments.append((name, begin, self._clock.now()))
        return result

    def _step(
        self, kind: str, *, forward_step_func: Any, data_iterator: Any, model: Any, num_microbatches: int, **_: Any
    ) -> list[Any]:
        """megatron-core's schedule without a pipeline: F and B of each microbatch, with W behind."""
        chunk = model[0] if isinstance(model, list) else model
        data = data_iterator[0] if isinstance(data_iterator, list) else data_iterator
        config = get_model_config(chunk)
        losses: list[Any] = []

        def forward(number: int) -> Any:
            output, _tokens = schedules.forward_step(
                forward_step_func, data, chunk, num_microbatches, None, losses, config, cp_group_size=1,
                is_first_microbatch=number == 0, current_microbatch=number, is_last_stage=True,
            )  # fmt: skip
            return output

        def backward(output: Any, number: int) -> None:
            with self._wgrad.backward_of(0, number):
                schedules.backward_step(None, output, None, get_model_type(chunk), config)

        with self._wgrad.active() if kind == SPLIT else nullcontext():
            for number in range(num_microbatches):
                output = self._timed("F", partial(forward, number))
                self._timed("BW" if kind == WHOLE else "B", partial(backward, output, number))
                if kind == SPLIT:
                    self._timed("W", partial(self._wgrad.run, 0, number))
        if config.finalize_model_grads_func is not None:
            config.finalize_model_grads_func([chunk], None, pg_collection=process_groups())
        return losses


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.split_cost", description=__doc__)
    parser.add_argument("--preset", choices=PRESETS, default="tiny")
    parser.add_argument("--rounds", type=int, default=30, help="steps of each kind (default %(default)s)")
    options, flags = parser.parse_known_args()
    from megatronapp.trainer.launch import run

    steps = (options.rounds + WARM_UP_ROUNDS) * len(KINDS)
    run([*f"{PRESETS[options.preset]} {COMMON} --train-iters {steps}".split(), *flags], plugins=(SplitCost,))
    medians = {name: median(seconds) for name, seconds in SplitCost.seconds.items()}
    pairs = zip(SplitCost.seconds[SPLIT], SplitCost.seconds[WHOLE], strict=True)
    lower, cost, upper = quantiles(split / whole - 1 for split, whole in pairs)
    row = {
        "what": f"{options.preset}, one rank, {options.rounds} steps of each kind",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        **{f"{name}_ms": round(seconds * 1e3, 3) for name, seconds in sorted(medians.items())},
        "forward_dgrad_wgrad": [round(medians[name] / medians["F"], 3) for name in "FBW"],
        "split_cost_ratio": round(cost, 4),
        "split_cost_quartiles": [round(lower, 4), round(upper, 4)],
        "split_against_stock_ratio": round(medians[SPLIT] / medians[STOCK] - 1, 4),
        "limit_ratio": LIMIT_RATIO,
        "ok": cost <= LIMIT_RATIO,
    }
    print(json.dumps(row), flush=True)
    return 0 if row["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
