"""The same simulations through the rule that this detector is meant to beat: MegaScan's stages A to C.

Re-implemented from its description: an event is a hit when a rank's backward is > 1.1 x the mean of its data-parallel
peers, or its all_reduce < 0.9 x theirs; more than 5 hits make a suspect (A, B); a suspect that waits less than 0.9 x
the others in more than 40 % of its reductions is abnormal (C). One rank at most.
"""

from __future__ import annotations

import numpy as np

from megatronapp.core.trace.columns import summary_columns
from tests.support.detecting import detect
from tests.support.simulated import CPU, GPU, NAMES, Fault, Job, Layout

STEPS, ONSET = 42, 28


def megascan(job: Job, steps: int) -> set[int]:
    layout = job.layout
    backward, reduce = np.zeros((2, steps, layout.world))
    for step in range(steps):
        for message in job.step(step + 1):
            columns = summary_columns(message.message.summary)
            for series, name in ((backward, "backward"), (reduce, "all_reduce")):
                rows = columns["name"] == NAMES.index(name)
                series[step, message.identity.rank] = columns["duration_sum_ns"][rows].astype(float).sum()
    peers = {r: [q for q in range(layout.world) if q != r and layout.place(q)[::2] == layout.place(r)[::2]]
             for r in range(layout.world)}  # fmt: skip
    suspects = []
    for rank, others in peers.items():
        if not others:
            continue
        longer = backward[:, rank] > 1.1 * backward[:, others].mean(axis=1)
        shorter = reduce[:, rank] < 0.9 * reduce[:, others].mean(axis=1)
        if longer.sum() + shorter.sum() > 5 and shorter.mean() > 0.4:
            suspects.append((shorter.mean(), rank))
    return {max(suspects)[1]} if suspects else set()


def cases() -> list[tuple[dict[str, object], set[int]]]:
    found: list[tuple[dict[str, object], set[int]]] = []
    for seed in (0,):
        one = (Fault("compute", (1,), ONSET, 1.08),)
        two = (Fault("compute", (1,), ONSET, 1.3), Fault("compute", (5,), ONSET, 1.3))
        found += [
            ({"layout": Layout(pp=2, dp=3), "seed": seed}, set()),
            ({"layout": Layout(pp=2, dp=3), "seed": seed, "sequence_spread": 0.4}, set()),
            ({"layout": Layout(pp=2, dp=3), "seed": seed, "faults": one}, {1}),
            ({"layout": Layout(pp=2, dp=3), "seed": seed, "faults": two}, {1, 5}),
            ({"layout": Layout(pp=4, dp=1), "seed": seed, "faults": one}, {1}),
            ({"layout": Layout(pp=2, dp=2), "seed": seed, "noise": CPU, "on_cpu": True}, set()),
        ]
    return found


def f1(found: list[set[int]], truth: list[set[int]]) -> float:
    right = sum(len(f & t) for f, t in zip(found, truth, strict=True))
    return 2 * right / (sum(map(len, found)) + sum(map(len, truth)))


def test_it_is_better_than_the_predecessors_rule() -> None:
    jobs = [{"noise": GPU, **fields} for fields, _ in cases()]
    truth = [ranks for _, ranks in cases()]

    ours = [detect(Job(**fields), STEPS).paged_ranks() for fields in jobs]  # type: ignore[arg-type]
    theirs = [megascan(Job(**fields), STEPS) for fields in jobs]  # type: ignore[arg-type]

    assert f1(ours, truth) == 1.0
    assert f1(theirs, truth) < 0.8
