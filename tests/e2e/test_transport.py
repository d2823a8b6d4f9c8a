"""The native transport for long: ten thousand messages in random orders, a hundred deaths, a cut network."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

from megatronapp.rdma import Engine, PeerLostError, Spec, Tag
from megatronapp.rdma.measure import speed
from megatronapp.rdma.tensors import DTYPES
from tests.integration.transport.test_death import Pair, shared_files, stream_for_ever
from tests.support.engines import HOST_LANES, engines, require_lane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

MESSAGES = 10_000
AT_ONCE = 100
LARGEST = 32 << 20


def shape_of(chance: random.Random) -> tuple[int, ...]:
    """Mostly small; a few of up to 32 MiB."""
    size = chance.choice([0, 1, 17, 4096, 65_537, chance.randrange(1 << 18)])
    if chance.random() < 0.002:
        size = chance.randrange(LARGEST)
    return (size // 16, 16) if size % 16 == 0 and size else (size,)


def content(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    width = torch.empty(0, dtype=dtype).element_size()
    count = torch.Size(shape).numel() // width
    raw = torch.randint(0, 2, (count * width,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype)


@pytest.mark.parametrize("lane", HOST_LANES)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ten_thousand_messages_in_random_orders(lane: str, ranks: int) -> None:
    chance = random.Random(ranks)
    with engines(lane, ranks) as world:
        pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
        for step in range(MESSAGES // 3 // AT_ONCE):
            exchange(world, [(*chance.choice(pairs), i) for i in range(AT_ONCE)], step, chance)


def exchange(world: list[Engine], messages: list[tuple[int, int, int]], step: int, chance: random.Random) -> None:
    plan = {key: (shape_of(chance), chance.choice(DTYPES), chance.getrandbits(30)) for key in messages}
    sent = {key: content(*what) for key, what in plan.items()}
    handles = []
    received = {}
    for way, key in chance.sample([(way, key) for way in "sr" for key in plan], 2 * len(plan)):
        source, target, i = key
        tag = Tag(1, microbatch=i, step=step)
        if way == "s":
            handles.append(world[source].isend(sent[key], target, tag))
        else:
            received[key] = world[target].irecv(Spec(tuple(sent[key].shape), sent[key].dtype), source, tag)
    for key in chance.sample(list(plan), len(plan)):
        received[key].wait(60)
        assert torch.equal(received[key].tensor.view(torch.uint8), sent[key].view(torch.uint8)), key
    for handle in handles:
        handle.wait(60)


@pytest.mark.parametrize("lane", HOST_LANES)
def test_a_hundred_deaths_leave_nothing(lane: str, tmp_path: Path) -> None:
    require_lane(lane)
    before = shared_files()
    for seed in range(34):
        pair = Pair(tmp_path, lane, "streams")
        threading.Timer(random.Random(seed).uniform(0, 0.3), pair.signal, [signal.SIGKILL]).start()
        try:
            with pytest.raises(PeerLostError, match="rank 1 is lost"):
                stream_for_ever(pair.engine, 1)
        finally:
            pair.close()
    assert shared_files() <= before


@pytest.mark.parametrize("lane", ["shm", "tcp"])
def test_lane_is_measured(lane: str) -> None:
    measured = speed(lane)  # type: ignore[arg-type]

    assert measured.bytes_per_second > 0
    assert measured.half_round_trip_seconds > 0


NAMESPACES = Path(__file__).with_name("transport_namespaces.py")


@pytest.mark.parametrize("lane", ["tcp", "ucx"])
def test_between_two_network_namespaces_and_a_cut(lane: str) -> None:
    require_lane(lane)
    if (
        shutil.which("ip") is None
        or subprocess.run(["ip", "netns", "list"], check=False, capture_output=True).returncode
    ):
        pytest.skip("needs iproute2 and the right to make network namespaces")
    done = subprocess.run(
        [sys.executable, str(NAMESPACES), lane], capture_output=True, text=True, timeout=300, check=False
    )
    if "Operation not permitted" in done.stderr:
        pytest.skip("no right to make network namespaces")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "all bytes were right" in done.stdout
    assert "is lost: nothing was heard of it" in done.stdout
