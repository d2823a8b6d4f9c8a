"""GPU memory that peers write into: given back when it was received into, and never used for anything else."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import time
from typing import Any

import pytest

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counting devices must not start CUDA: ranks are forks

import torch
import torch.distributed as dist

rdma = pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

from tests.gpu.devices import needs  # noqa: E402
from tests.support.forked import run_forked  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    needs(2),
]

Config, Engine, Spec, Tag = rdma.Config, rdma.Engine, rdma.Spec, rdma.Tag
CONFIG = Config(lanes=("shm", "cuda_ipc"), require=("cuda_ipc",), connect_timeout_seconds=60)
SECONDS = 60.0
GIB = 1 << 30
ROUNDS_OF_MEMORY = 9
MESSAGES = 18
ROUNDS_OF_ABORT = 100
ABORTED_BYTES = 64 << 20
HELD_BACK_CYCLES = 80_000_000  # of the GPU's clock: about 40 ms, in which the sender's copy is queued and does not run
HELD_BACK_SECONDS = 0.1
OLD, NEW = 255, 7


def join() -> tuple[int, dist.TCPStore]:
    faulthandler.dump_traceback_later(380, exit=True)
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(rank)
    torch.zeros(1, device="cuda")
    return rank, dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), 2, is_master=rank == 0)


def used_bytes() -> int:
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    return total - free


def pool_bytes() -> int:
    return int(getattr(rdma, "pool_bytes", lambda: 0)())


# ---- what is received into is given back


def receive_and_free(at_once: int) -> list[dict[str, int]]:
    """18 messages of a GiB, nine times: what the device holds afterwards beyond what torch shows."""
    rank, store = join()
    found = []
    with Engine(rank, 2, store, config=CONFIG) as engine:
        engine.connect([1 - rank])
        before = used_bytes() - torch.cuda.memory_reserved()
        sent = torch.full((GIB,), 3, dtype=torch.uint8, device="cuda") if rank == 1 else None
        for step in range(ROUNDS_OF_MEMORY):
            for first in range(0, MESSAGES, at_once):
                move(engine, sent, step, range(first, first + at_once))
            torch.cuda.empty_cache()
            beyond = used_bytes() - torch.cuda.memory_reserved() - before
            found.append({"beyond": beyond, "pool": pool_bytes()})
        store.set(f"over{rank}", "")
        store.wait([f"over{1 - rank}"])
    return found


def move(engine: Any, sent: torch.Tensor | None, step: int, numbers: range) -> None:
    tags = [Tag(1, microbatch=number, round=step) for number in numbers]
    if sent is not None:
        for handle in [engine.isend(sent, 0, tag) for tag in tags]:
            handle.wait(SECONDS)
        return
    for handle in [engine.irecv(Spec((GIB,), torch.uint8, "cuda"), 1, tag) for tag in tags]:
        handle.wait(SECONDS)
        assert bool((handle.tensor == 3).all())


@pytest.mark.parametrize("at_once", [2, 9])
def test_memory_that_was_received_into_is_given_back(at_once: int) -> None:
    receiver, sender = run_forked(2, receive_and_free, at_once, timeout=300)

    assert max(rank["beyond"] for rank in receiver) < GIB, receiver
    assert max(rank["beyond"] for rank in sender) < GIB, sender
    assert max(rank["pool"] for rank in receiver) <= 512 << 20, receiver


# ---- a late write reaches nothing


def abort_again_and_again(stopped: bool, rounds: int) -> dict[str, int]:
    rank, store = join()
    store.set(f"pid{rank}", str(os.getpid()))
    peer = int(store.get(f"pid{1 - rank}"))
    gc.freeze()  # that what is imported need not be looked through in each round
    before = 0
    changed = wrong = reused = 0
    for number in range(rounds):
        engine = Engine(rank, 2, store, epoch=number, config=CONFIG)
        engine.connect([1 - rank])
        before = before or used_bytes() - torch.cuda.memory_reserved()
        wrong += exchange(engine)  # what was recovered works
        if rank == 1:
            send_late(engine, store, number)
        else:
            bytes_changed, used_again = abort_early(engine, store, number, peer if stopped else None)
            changed += bytes_changed
            reused += used_again
        del engine
        gc.collect()
    torch.cuda.empty_cache()
    store.set(f"over{rank}", "")
    store.wait([f"over{1 - rank}"])
    beyond = used_bytes() - torch.cuda.memory_reserved() - before
    return {"changed": changed, "wrong": wrong, "reused": reused, "beyond": beyond}


def exchange(engine: Any) -> int:
    other = 1 - engine.rank
    receive = engine.irecv(Spec((1 << 20,), torch.uint8, "cuda"), other, Tag(2))
    send = engine.isend(torch.full((1 << 20,), 50 + engine.rank, dtype=torch.uint8, device="cuda"), other, Tag(2))
    receive.wait(SECONDS)
    send.wait(SECONDS)
    return int((receive.tensor != 50 + other).sum())


def send_late(engine: Any, store: dist.TCPStore, number: int) -> None:
    """The copy is given to the GPU, which comes to it when the receiver has given up."""
    tensor = torch.full((ABORTED_BYTES,), OLD, dtype=torch.uint8, device="cuda")
    store.wait([f"posted{number}"])
    torch.cuda._sleep(HELD_BACK_CYCLES)  # type: ignore[no-untyped-call]
    engine.isend(tensor, 0, Tag(1))
    time.sleep(0.01)  # its progress thread matches it
    store.set(f"queued{number}", "")
    store.wait([f"checked{number}"])
    engine.abort("the receiver has given up")
    engine.close()


def abort_early(engine: Any, store: dist.TCPStore, number: int, stop: int | None) -> tuple[int, bool]:
    """How many bytes of a new tensor the late copy changes, and whether it has the memory that was received into."""
    receive = engine.irecv(Spec((ABORTED_BYTES,), torch.uint8, "cuda"), 1, Tag(1))
    if number % 2:
        receive.wait_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]
    store.set(f"posted{number}", "")
    store.wait([f"queued{number}"])
    if stop is not None:
        os.kill(stop, signal.SIGSTOP)
    engine.abort("over")
    with pytest.raises(rdma.EngineClosedError):
        receive.wait(SECONDS)
    engine.close()
    address = receive.tensor.data_ptr()
    del receive, engine
    gc.collect()
    new = torch.full((ABORTED_BYTES,), NEW, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    time.sleep(HELD_BACK_SECONDS)
    changed = int((new != NEW).sum())
    if stop is not None:
        os.kill(stop, signal.SIGCONT)
    store.set(f"checked{number}", "")
    return changed, new.data_ptr() == address


@pytest.mark.parametrize("peer", ["living", "stopped"])
def test_late_copy_changes_nothing_after_an_abort(peer: str) -> None:
    rounds = int(os.environ.get("MEGATRONAPP_ABORTS", ROUNDS_OF_ABORT))

    found = run_forked(2, abort_again_and_again, peer == "stopped", rounds, timeout=350)

    assert [rank["changed"] for rank in found] == [0, 0]
    assert found[0]["reused"] >= rounds // 2  # what no stream of this process writes to is free at once
    assert [rank["wrong"] for rank in found] == [0, 0]
    assert all(rank["beyond"] < GIB for rank in found), found
