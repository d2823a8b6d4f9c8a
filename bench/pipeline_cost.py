"""What a slow stage costs a real pipeline, against what the replay says: `python -m bench.pipeline_cost`.

megatron-core's own schedules run over gloo, one process a rank, with passes that sleep (forward 20 ms, backward 40 ms),
so that ranks do not contend for the processors. One stage of replica 0 is 30 % slower in every second step. Messages
and the host's part of a pass take their time too, which the replay takes for nothing: its cost is an upper one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import torch

from megatronapp.detector.whatif import schedule_graph, step_seconds
from megatronapp.detector.whatif.schedule import BACKWARD, FORWARD
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from tests.support.forked import run_forked
from tests.support.training import TINY, train

SECONDS = {FORWARD: 0.020, BACKWARD: 0.040}
RATIO = 1.3
STEPS, SETTLING = 14, 2
MICROBATCHES = 8
SEQUENCE, BATCH, HIDDEN = 16, 2, 32


class Case(NamedTuple):
    pp: int
    dp: int
    vpp: int
    slow_stage: int


CASES = (
    Case(2, 1, 1, 0), Case(2, 1, 1, 1), Case(2, 2, 1, 1), Case(2, 1, 2, 0), Case(2, 1, 2, 1),
    Case(4, 1, 1, 0), Case(4, 1, 1, 1), Case(4, 1, 1, 3), Case(4, 2, 1, 1),
    Case(4, 1, 2, 0), Case(4, 1, 2, 2), Case(4, 1, 2, 3),
    Case(8, 1, 1, 0), Case(8, 1, 1, 3), Case(8, 1, 1, 7),
)  # fmt: skip


class SleepingPasses(Plugin):
    """Puts sleep in the place of what the model computes."""

    name = "sleeping-passes"
    case = CASES[0]

    def __init__(self, context: PluginContext) -> None:
        self._place = context.placement
        self._step = 0

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        return cls(context)

    def step_begin(self, step: int) -> None:
        self._step = step

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        for chunk in chunks:
            chunk.forward = self._forward(chunk)

    def sleep(self, operation: str) -> None:
        slow = (self._place.pipeline, self._place.data, self._step % 2) == (self.case.slow_stage, 0, 0)
        time.sleep(SECONDS[operation] / self.case.vpp * (RATIO if slow else 1.0))

    def _forward(self, chunk: Any) -> Any:
        weight = next(parameter for parameter in chunk.parameters() if parameter.requires_grad)

        def forward(*_: Any, **__: Any) -> Any:
            received = None if chunk.pre_process else chunk.decoder.input_tensor
            hidden = torch.zeros(SEQUENCE, BATCH, HIDDEN) if received is None else received
            hidden = _Sleep.apply(hidden + weight.sum() * 0, self)  # type: ignore[no-untyped-call]
            return 1.0 + hidden.mean(-1).transpose(0, 1) if chunk.post_process else hidden

        return forward


class _Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, passes: SleepingPasses) -> torch.Tensor:
        ctx.passes = passes
        passes.sleep(FORWARD)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.passes.sleep(BACKWARD)
        return gradient.clone(), None


def main() -> None:
    """Print one JSON object a case."""
    for case in CASES:
        slow, healthy = measured(case)
        replayed_slow, replayed = replayed_seconds(case)
        report = {
            **case._asdict(),
            "cost_ratio": round(slow / healthy, 3),
            "replayed_cost_ratio": round(replayed_slow / replayed, 3),
            "step_seconds": round(healthy, 3),
            "replayed_step_seconds": round(replayed, 3),
            "lost_seconds": round(slow - healthy, 3),
            "replayed_lost_seconds": round(replayed_slow - replayed, 3),
        }
        print(json.dumps(report), flush=True)


def measured(case: Case) -> tuple[float, float]:
    """Median step time in seconds with the slow stage, and without."""
    layout = f"--pipeline-model-parallel-size {case.pp} --num-layers {case.pp * case.vpp}"
    layout += f" --global-batch-size {BATCH * MICROBATCHES * case.dp} --train-iters {STEPS}"
    layout += " --num-layers-per-virtual-pipeline-stage 1" if case.vpp > 1 else ""
    of_ranks = run_forked(case.pp * case.dp, _steps_of, f"{TINY} {layout}", case, timeout=240)
    steps = next(steps for steps in reversed(of_ranks) if steps)[SETTLING:]
    slow, healthy = (statistics.median(seconds for step, seconds in steps if step % 2 == odd) for odd in (0, 1))
    return slow, healthy


def _steps_of(flags: str, case: Case) -> list[tuple[int, float]]:
    SleepingPasses.case = case
    return [(report.step, report.step_seconds) for report in train(flags, plugins=(SleepingPasses,)).steps]


def replayed_seconds(case: Case) -> tuple[float, float]:
    """The same by replay."""
    graph = schedule_graph(case.pp, case.vpp, MICROBATCHES)
    durations = np.array([[[SECONDS.get(o.operation, 0.0) / case.vpp]] * 2 for o in graph.operations])
    durations[[o.stage == case.slow_stage for o in graph.operations], 0] *= RATIO
    slow, healthy = step_seconds(graph, durations)
    return float(slow), float(healthy)


if __name__ == "__main__":
    main()
