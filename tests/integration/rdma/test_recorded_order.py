"""The messages of a pipeline that ran in an order of its own, recorded and played again over each lane."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch

from megatronapp.core.pipeline.operations import Operation
from megatronapp.core.pipeline.orders import all_stages
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.pipeline.schedule_csv import read_csv, write_csv
from megatronapp.core.pipeline.simulator.links import Links, wire
from megatronapp.core.pipeline.simulator.run import dynamic, run
from megatronapp.core.pipeline.simulator.times import Variation, equal_times
from megatronapp.rdma import Engine, Tag
from tests.support.engines import HOST_LANES, engines, in_parallel

LAYOUT = Layout(stages=3, chunks=2, microbatches=6, split=True)
AHEAD = 4
VALUES = 4096


def recorded() -> list[list[Operation]]:
    """By stage, as a run leaves it in its file: operations differ, and some messages were late."""
    late = Variation(jitter_cv=0.3, late_ratio=0.2, late_ns=3000)
    durations, lateness = late.draw(LAYOUT, equal_times(LAYOUT, 1000, 1300, 700), np.random.default_rng(17))
    hint = dynamic("", LAYOUT, all_stages("interleaved-zb", LAYOUT), [7] * LAYOUT.stages)
    wiring = wire(LAYOUT, Links(latency_ns=20))
    done = run(LAYOUT, hint, durations, wiring, late=lateness * wiring.crosses(LAYOUT))
    return read_csv(write_csv(LAYOUT, done.orders()))[1]


def sources() -> dict[tuple[int, int, int], int]:
    """The stage that sends what (stage, kind, chunk) needs."""
    found = {}
    for stage in range(LAYOUT.stages):
        for kind in LAYOUT.kinds:
            for chunk in range(LAYOUT.chunks):
                target = LAYOUT.following(stage, kind, chunk)
                if target is not None and target[0] != stage:
                    found[target] = stage
    return found


def content(stage: int, operation: Operation) -> torch.Tensor:
    """What an operation needs."""
    seed = LAYOUT.number(operation) * LAYOUT.stages + stage
    return torch.randn(VALUES, generator=torch.Generator().manual_seed(seed))


def tag(operation: Operation) -> Tag:
    return Tag(operation.kind, chunk=operation.chunk, microbatch=operation.microbatch)


def play(engine: Engine, stage: int, order: Sequence[Operation]) -> int:
    """A stage's operations as they stand, receives posted some ahead. How many messages came."""
    senders = sources()
    needed = [each for each in order if (stage, each.kind, each.chunk) in senders]
    posted = {}
    for operation in order:
        done = sum(each in posted for each in needed)
        for each in needed[done : needed.index(operation) + AHEAD if operation in needed else done]:
            posted[each] = engine.irecv(torch.empty(VALUES), senders[stage, each.kind, each.chunk], tag(each))
        if operation in posted:
            posted[operation].wait(60)
            assert torch.equal(posted[operation].tensor, content(stage, operation)), f"stage {stage}, {operation}"
        following = LAYOUT.following(stage, operation.kind, operation.chunk)
        if following is not None and following[0] != stage:
            target = Operation(following[1], following[2], operation.microbatch)
            engine.isend(content(following[0], target), following[0], tag(target))
    return len(needed)


@pytest.mark.parametrize("lane", HOST_LANES)
def test_a_recorded_order_is_played_again_and_each_message_is_the_one_that_is_needed(lane: str) -> None:
    orders = recorded()
    assert orders != all_stages("interleaved-zb", LAYOUT), "it was chosen while it ran"

    with engines(lane, LAYOUT.stages) as world:
        came = in_parallel([partial(play, each, stage, orders[stage]) for stage, each in enumerate(world)])

    assert sum(came) == len(sources()) * LAYOUT.microbatches
