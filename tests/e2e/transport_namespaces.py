"""Two ranks, each in a network namespace of its own, joined by a cable that is cut at the end.

python tests/e2e/transport_namespaces.py tcp
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from megatronapp.rdma import Config, Engine, PeerLostError, Spec, Tag

ADDRESSES = ("10.97.0.1", "10.97.0.2")
LINK_SECONDS = 10
"""The kernel tells that a cable is up up to a second later, and UCX asks once."""
SIZES = (0, 1, 4096, 65_537, 1 << 20, 9 << 20)


def rank(number: int, store: str, lane: str) -> None:
    config = Config(
        lanes=(lane,),  # type: ignore[arg-type]
        require=(lane,),  # type: ignore[arg-type]
        address=ADDRESSES[number],
        heartbeat_seconds=0.2,
        dead_after_seconds=2,
        connect_timeout_seconds=60,
    )
    other = 1 - number
    engine = Engine(number, 2, store, config=config)
    engine.connect([other])
    print(f"rank {number}: {engine.lanes()[other]}", flush=True)
    for step in range(20):
        pairs = []
        for i, size in enumerate(SIZES):
            tensor = torch.full((size,), (step + i + number) % 251, dtype=torch.uint8)
            send = engine.isend(tensor, other, Tag(1, microbatch=i, round=step))
            pairs.append((send, engine.irecv(Spec((size,), torch.uint8), other, Tag(1, microbatch=i, round=step)), i))
        for send, receive, i in reversed(pairs):
            receive.wait(60)
            assert (receive.tensor == (step + i + other) % 251).all()
            send.wait(60)
    print("all bytes were right", flush=True)
    waiting = engine.irecv(Spec((1,), torch.uint8), other, Tag(2, round=20))
    Path(f"{store}.ready{number}").touch()
    try:
        waiting.wait(30)
    except PeerLostError as lost:
        print(lost, flush=True)
    engine.abort()
    os._exit(0)  # UCX would wait for a peer that can't be reached


def main() -> int:
    lane = sys.argv[1]
    names = [f"megatronapp-{os.getpid()}-{i}" for i in range(2)]
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store"
        try:
            join(names)
            command = ["ip", "netns", "exec"]
            ranks = [
                subprocess.Popen([*command, name, sys.executable, __file__, lane, str(i), store])
                for i, name in enumerate(names)
            ]
            while not all(Path(f"{store}.ready{i}").exists() for i in range(2)):
                time.sleep(0.1)
                if any(process.poll() for process in ranks):
                    return 1
            ip("-n", names[0], "link", "set", "eth0", "down")
            return max(process.wait(60) for process in ranks)
        finally:
            for name in names:
                subprocess.run(["ip", "netns", "delete", name], check=False)


def join(names: list[str]) -> None:
    for name in names:
        ip("netns", "add", name)
    ip("link", "add", "eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1])
    for name, address in zip(names, ADDRESSES, strict=True):
        ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
    end = time.monotonic() + LINK_SECONDS
    while not all("state UP" in ip("-n", name, "-o", "link", "show", "eth0") for name in names):
        if time.monotonic() > end:
            raise TimeoutError(f"the cable between {names} does not come up")
        time.sleep(0.05)


def ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    if len(sys.argv) > 2:
        rank(int(sys.argv[2]), sys.argv[3], sys.argv[1])
    else:
        sys.exit(main())
