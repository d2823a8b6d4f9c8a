"""From the first slow step to the verdict, 5 % slower at the noise of GPUs; goal: 1 step + 2 s."""

from __future__ import annotations

import json
import time

import numpy as np

from bench.scale.layout import Layout
from megatronapp.detector.engine import Engine
from tests.support.simulated import GPU, Fault, Job

ONSET, RUNS = 40, 20


def main() -> None:
    steps, seconds, wrong = [], [], 0
    for seed in range(RUNS):
        job = Job(Layout(pp=2, dp=4), GPU, (Fault("compute", (3,), ONSET, 1.05),), seed=seed)
        engine = Engine(job.run, "bench/latency", 1)
        for message in job.hellos():
            engine.feed(message)
        for step in range(1, ONSET + 10):
            messages = job.step(step)
            begin = time.perf_counter()
            found = [f for message in messages for f in engine.feed(message)]
            if any(f.ranks == (3,) for f in found):
                steps.append(step - ONSET + 1)
                seconds.append(time.perf_counter() - begin)
                break
            wrong += len(found)
    print(
        json.dumps(
            {
                "runs": RUNS,
                "found": len(steps),
                "wrong": wrong,
                "slow_steps_until_verdict_median": float(np.median(steps)),
                "slow_steps_until_verdict_max": max(steps),
                "seconds_after_the_steps_last_message_max": round(max(seconds), 3),
            }
        )
    )


if __name__ == "__main__":
    main()
