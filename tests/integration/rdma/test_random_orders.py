"""Messages between several ranks, posted and waited for in orders of their own."""

from __future__ import annotations

import random

import pytest
import torch

from megatronapp.rdma import Engine, Spec, Tag
from tests.support.engines import HOST_LANES, engines

SIZES = (0, 1, 31, 4096, 65_536, 262_144, 262_145, 1 << 20)


def content(size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("lane", HOST_LANES)
def test_random_orders_between_four_ranks(lane: str) -> None:
    with engines(lane, 4) as world:
        random_orders(world, messages=25, seed=4)


def random_orders(world: list[Engine], *, messages: int, seed: int) -> None:
    """Each rank sends each other rank messages of random sizes; both ends post them in orders of their own."""
    chance = random.Random(seed)
    plan = {
        (source, target, i): chance.choice(SIZES)
        for source in range(len(world))
        for target in range(len(world))
        for i in range(messages)
        if source != target
    }
    receives, sends = {}, []
    for key in chance.sample(sorted(plan), len(plan)):
        source, target, i = key
        receives[key] = world[target].irecv(Spec((plan[key],), torch.uint8), source, Tag(1, microbatch=i))
    for source, target, i in chance.sample(sorted(plan), len(plan)):
        tensor = content(plan[source, target, i], hash((source, target, i)))
        sends.append(world[source].isend(tensor, target, Tag(1, microbatch=i)))
    for key in chance.sample(sorted(plan), len(plan)):
        receives[key].wait(60)
        assert torch.equal(receives[key].tensor, content(plan[key], hash(key))), key
    for send in sends:
        send.wait(60)
