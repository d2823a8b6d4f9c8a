"""Two ranks as in two containers of one pod: processes, mounts, /dev/shm and host name of their own, one network.

python tests/e2e/transport_containers.py shm
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from megatronapp.rdma import Engine, PeerLostError, Spec, Tag
from megatronapp.rdma.rendezvous import pid_namespace
from tests.support.engines import lane_config

SIZES = (0, 1, 4096, 65_537, 1 << 20, 9 << 20)
SHARED_MEMORY_BYTES = "64k"  # what is left of /dev/shm to each: not enough for anything


def rank(number: int, store: str, lane: str) -> None:
    other = 1 - number
    assert os.getpid() == 1
    Path(f"{store}.namespace{number}").write_text(pid_namespace())
    engine = Engine(number, 2, store, config=lane_config(lane, connect_timeout_seconds=60))
    engine.connect([other])
    print(f"rank {number}: {engine.lanes()[other]}", flush=True)
    for step in range(10):
        receives = [
            engine.irecv(Spec((size,), torch.uint8), other, Tag(1, microbatch=i, round=step))
            for i, size in enumerate(SIZES)
        ]
        for i, size in enumerate(SIZES):
            tensor = torch.full((size,), (step + i + number) % 251, dtype=torch.uint8)
            engine.isend(tensor, other, Tag(1, microbatch=i, round=step))
        for i, receive in reversed(list(enumerate(receives))):
            receive.wait(60)
            assert (receive.tensor == (step + i + other) % 251).all()
    engine.irecv(Spec((1,), torch.uint8), other, Tag(2, round=10))
    Path(f"{store}.ready{number}").touch()
    while not engine.failed():
        time.sleep(0.01)
    print(f"all bytes were right; {PeerLostError(other, engine.failed()[other])}", flush=True)


def main() -> int:
    lane = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/store"
        survivor, victim = (container(i, store, lane) for i in range(2))
        try:
            while not all(Path(f"{store}.ready{i}").exists() for i in range(2)):
                time.sleep(0.05)
                if survivor.poll() is not None or victim.poll() is not None:
                    return 1
            assert len({Path(f"{store}.namespace{i}").read_text() for i in range(2)}) == 2
            victim.kill()  # and with it, by the kernel, the rank that it holds
            killed = time.monotonic()
            status = survivor.wait(30)
            print(f"known after {time.monotonic() - killed:.2f} s, with the time to end", flush=True)
            return status
        finally:
            for process in (survivor, victim):
                process.kill()
                process.wait()


def container(number: int, store: str, lane: str) -> subprocess.Popen[bytes]:
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    apart = ["unshare", *as_root, "--pid", "--mount", "--ipc", "--uts", "--fork", "--mount-proc", "--kill-child"]
    own_memory = f'mount -t tmpfs -o size={SHARED_MEMORY_BYTES} tmpfs /dev/shm && exec "$@"'
    command = [sys.executable, __file__, lane, str(number), store]
    return subprocess.Popen([*apart, "sh", "-c", own_memory, "sh", *command])


if __name__ == "__main__":
    if len(sys.argv) > 2:
        rank(int(sys.argv[2]), sys.argv[3], sys.argv[1])
    else:
        sys.exit(main())
