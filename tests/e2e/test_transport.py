"""The native transport for long: ten thousand messages in random orders, a hundred deaths, a cut network."""

from __future__ import annotations

import os
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
from tests.integration.rdma.test_death import Pair, nothing_is_left, stream_for_ever
from tests.integration.rdma.test_training import INTERLEAVED, changes_no_bit
from tests.support.engines import HOST_LANES, engines, require_lane

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

MESSAGES = 10_000  # of each lane
AT_ONCE = 100
WORLDS = (2, 3, 4)
STEPS = -(-MESSAGES // len(WORLDS) // AT_ONCE)
LARGEST = 32 << 20
DEATHS = 100
ROOT = Path(__file__).parents[2]


def shape_of(chance: random.Random) -> tuple[int, ...]:
    """Mostly small; a few of up to 32 MiB."""
    size = chance.choice([0, 1, 17, 4096, 65_537, chance.randrange(1 << 18)])
    if chance.random() < 0.002:
        size = chance.choice([LARGEST, chance.randrange(LARGEST)])
    return (size // 16, 16) if size % 16 == 0 and size else (size,)


def content(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    width = torch.empty(0, dtype=dtype).element_size()
    count = torch.Size(shape).numel() // width
    raw = torch.randint(0, 2, (count * width,), dtype=torch.uint8, generator=generator)
    return raw.view(dtype)


@pytest.mark.parametrize("lane", HOST_LANES)
@pytest.mark.parametrize("ranks", WORLDS)
def test_ten_thousand_messages_in_random_orders(lane: str, ranks: int) -> None:
    chance = random.Random(ranks)
    with engines(lane, ranks) as world:
        pairs = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
        for step in range(STEPS):
            exchange(world, [(*chance.choice(pairs), i) for i in range(AT_ONCE)], step, chance)


def exchange(world: list[Engine], messages: list[tuple[int, int, int]], step: int, chance: random.Random) -> None:
    plan = {key: (shape_of(chance), chance.choice(DTYPES), chance.getrandbits(30)) for key in messages}
    sent = {key: content(*what) for key, what in plan.items()}
    handles = []
    received = {}
    for way, key in chance.sample([(way, key) for way in "sr" for key in plan], 2 * len(plan)):
        source, target, i = key
        tag = Tag(1, microbatch=i, round=step)
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
def test_a_hundred_deaths_are_known_within_a_second_and_leave_nothing(lane: str, tmp_path: Path) -> None:
    require_lane(lane)
    for seed in range(DEATHS // len(HOST_LANES) + 1):
        with nothing_is_left(lane) as pairs:
            pair = Pair(tmp_path, lane, "streams")
            pairs.append(pair)
            threading.Timer(random.Random(seed).uniform(0, 0.3), pair.signal, [signal.SIGKILL]).start()
            pair.learns_of_the_death(lambda mine=pair: stream_for_ever(mine.engine, 1))  # type: ignore[misc]
            del pair


@pytest.mark.parametrize("lane", ["tcp", "ucx"])
def test_stopped_peer_is_lost_after_silence(lane: str, tmp_path: Path) -> None:
    require_lane(lane)
    with nothing_is_left(lane) as pairs:
        pairs.append(Pair(tmp_path, lane, "receives", heartbeat_seconds=0.2, dead_after_seconds=1.0))
        receive = pairs[0].engine.irecv(Spec((5,), torch.uint8), 1, Tag(1))
        pairs[0].signal(signal.SIGSTOP)
        with pytest.raises(PeerLostError, match="nothing was heard of it"):
            receive.wait(10)
        del receive


@pytest.mark.parametrize("lane", ["shm", "tcp"])
def test_lane_is_measured(lane: str) -> None:
    measured = speed(lane)  # type: ignore[arg-type]

    assert measured.bytes_per_second > 0
    assert measured.half_round_trip_seconds > 0


def test_native_transport_changes_no_bit_without_overlap() -> None:
    changes_no_bit(f"{INTERLEAVED} --no-overlap-p2p-communication")


NAMESPACES = Path(__file__).with_name("transport_namespaces.py")
CONTAINERS = Path(__file__).with_name("transport_containers.py")


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


@pytest.mark.parametrize("lane", ["shm", "tcp"])
def test_between_two_containers_of_a_pod_and_a_death(lane: str) -> None:
    probe = ["unshare", "--pid", "--mount", "--fork", "--mount-proc", "true"]
    if os.geteuid() != 0:
        probe[1:1] = ["--user", "--map-root-user"]
    if shutil.which("unshare") is None or subprocess.run(probe, check=False, capture_output=True).returncode:
        pytest.skip("needs util-linux and the right to make namespaces of processes and mounts")
    done = subprocess.run(
        [sys.executable, str(CONTAINERS), lane],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert f"rank 0: {lane}" in done.stdout
    assert "all bytes were right; rank 1 is lost: its process has ended" in done.stdout
