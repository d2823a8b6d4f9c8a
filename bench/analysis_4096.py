"""How long one step of 4,096 ranks takes to analyse, from complete table to verdict; goal 66 ms."""

from __future__ import annotations

import json
import time

import numpy as np

from bench.scale.layout import Layout
from megatronapp.detector.engine import Engine
from tests.support.simulated import GPU, Fault, Job

STEPS, ONSET = 34, 26


def main() -> None:
    job = Job(Layout(pp=8, dp=64, tp=8), GPU, (Fault("compute", (77,), ONSET, 1.05),), seed=1)
    engine = Engine(job.run, "bench/4096", 1)
    judged: list[float] = []
    observe = engine.judge.observe

    def timed(*arguments, **named):  # type: ignore[no-untyped-def]  # noqa: ANN002, ANN003, ANN202
        begin = time.perf_counter()
        found = observe(*arguments, **named)
        judged.append(time.perf_counter() - begin)
        return found

    engine.judge.observe = timed  # type: ignore[method-assign]
    findings = [f for message in job.hellos() for f in engine.feed(message)]
    decoded = []
    for step in range(1, STEPS + 1):
        messages = job.step(step)
        begin = time.perf_counter()
        findings += [f for message in messages for f in engine.feed(message)]
        decoded.append(time.perf_counter() - begin - judged[-1])
    print(
        json.dumps(
            {
                "ranks": job.layout.world,
                "analysis_milliseconds_median": round(1e3 * float(np.median(judged)), 1),
                "analysis_milliseconds_p90": round(1e3 * float(np.quantile(judged, 0.9)), 1),
                "intake_milliseconds_a_step": round(1e3 * float(np.median(decoded)), 1),
                "found": sorted({rank for f in findings for rank in f.ranks}),
            }
        )
    )


if __name__ == "__main__":
    main()
