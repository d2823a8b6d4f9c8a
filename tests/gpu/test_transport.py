"""The native transport between two GPUs and more: CUDA IPC and the copy engine, in stream order."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counting devices must not start CUDA: ranks are forks

import torch
import torch.distributed as dist

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

from megatronapp.rdma import (
    CancelledError,
    Config,
    Engine,
    MismatchError,
    PeerLostError,
    Spec,
    Tag,
    TagError,
    TransferTimeoutError,
    neighbours,
)
from megatronapp.rdma.tensors import DTYPES
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from tests.gpu.devices import needs
from tests.support.forked import run_forked
from tests.support.training import TINY, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    needs(2),
]

SECONDS, WATCHED_SECONDS, ENDED_SECONDS = 120.0, 150, 180.0
"""What hangs is ended: a wait, a rank (which says where it stands), all ranks. Nothing here is about speed: beside
other work on the machine each may take ten times as long as alone."""
PATIENT = Config(lanes=("tcp",), connect_timeout_seconds=SECONDS, dead_after_seconds=SECONDS)
"""Whose thread gets no processor for long has not died."""
SIZES = (0, 1, 31, 4096, 65_536, (1 << 20) + 17, 8 << 20, 64 << 20)
CONFIG = Config(lanes=("shm", "cuda_ipc"), require=("cuda_ipc",), connect_timeout_seconds=60)


@contextmanager
def engine(config: Config = CONFIG) -> Iterator[Engine]:
    faulthandler.dump_traceback_later(WATCHED_SECONDS, exit=True)  # says where it hangs
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank % torch.cuda.device_count())
    torch.zeros(1, device="cuda")
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), world_size, is_master=rank == 0)
    with Engine(rank, world_size, store, config=config) as made:
        made.connect(range(world_size))
        yield made
    faulthandler.cancel_dump_traceback_later()


def content(size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda", generator=generator)


# ---- what each rank does


def exchange_sizes() -> str:
    with engine() as mine:
        other = 1 - mine.rank
        for step in range(3):  # the later ones find the memory opened
            for i, size in enumerate(SIZES):
                tag = Tag(1, microbatch=i, round=step)
                receive = mine.irecv(Spec((size,), torch.uint8, "cuda"), other, tag)
                send = mine.isend(content(size, 100 * mine.rank + i), other, tag)
                receive.wait_stream()
                assert torch.equal(receive.tensor, content(size, 100 * other + i)), size
                receive.wait(SECONDS)
                send.wait(SECONDS)
        return str(mine.lanes()[other])


def exchange_through_host_memory() -> str:
    """As between two hosts."""
    with engine(PATIENT) as mine:
        other = 1 - mine.rank
        slow = torch.randn(4096, 4096, device="cuda")
        for step in range(3):  # the later ones find the host memory there
            posted = []
            for i, size in enumerate(SIZES):
                tag = Tag(1, microbatch=i, round=step)
                receive = mine.irecv(Spec((size,), torch.uint8, "cuda"), other, tag)
                buffer = torch.zeros(size, dtype=torch.uint8, device="cuda")
                slow = (slow @ slow).clamp_(-1, 1)
                buffer.copy_(content(size, 100 * mine.rank + i))  # still to come when it is sent
                posted.append((receive, mine.isend(buffer, other, tag)))
            for i, (receive, _) in reversed(list(enumerate(posted))):
                receive.wait_stream()
                assert torch.equal(receive.tensor, content(SIZES[i], 100 * other + i)), i
            for receive, send in posted:
                receive.wait(SECONDS)
                send.wait(SECONDS)
        return str(mine.lanes()[other])


def exchange_dtypes() -> int:
    with engine() as mine:
        other = 1 - mine.rank
        for i, dtype in enumerate(DTYPES):
            sent = (content(2 * 3 * 16, i) % 2).view(2, 3, 16).view(dtype)
            receive = mine.irecv(Spec(tuple(sent.shape), dtype, "cuda"), other, Tag(1, microbatch=i))
            send = mine.isend(sent, other, Tag(1, microbatch=i))
            receive.wait(SECONDS)
            assert torch.equal(receive.tensor.view(torch.uint8), sent.view(torch.uint8)), dtype
            send.wait(SECONDS)
        return len(DTYPES)


def follow_streams() -> None:
    """No host waits: the work that fills a buffer, the copy, and the work that reads it are ordered by streams."""
    with engine() as mine:
        other, size = 1 - mine.rank, 4 << 20
        slow = torch.randn(4096, 4096, device="cuda")
        side = torch.cuda.Stream()
        results = []
        handles = []
        for i in range(8):
            buffer = torch.full((size,), -1, dtype=torch.int32, device="cuda")
            for _ in range(4):
                slow = (slow @ slow).clamp_(-1, 1)
            buffer.fill_(1000 * mine.rank + i)  # still to come when it is sent
            handles.append(mine.isend(buffer, other, Tag(1, microbatch=i)))
            receive = mine.irecv(Spec((size,), torch.int32, "cuda"), other, Tag(1, microbatch=i))
            with torch.cuda.stream(side):
                receive.wait_stream(side)
                results.append((receive.tensor == 1000 * other + i).all())
            handles.append(receive)
        torch.cuda.synchronize()
        assert all(bool(result) for result in results)
        for handle in handles:
            handle.wait(SECONDS)


def exchange_in_any_order(messages: int = 300) -> None:
    with engine() as mine:
        other, chance = 1 - mine.rank, random.Random(7)
        sizes = [chance.choice(SIZES[:-1]) for _ in range(messages)]
        posting = random.Random(mine.rank).sample([(way, i) for way in "sr" for i in range(messages)], 2 * messages)
        sends, receives = {}, {}
        for way, i in posting:
            if way == "s":
                sends[i] = mine.isend(content(sizes[i], 1000 * mine.rank + i), other, Tag(1, microbatch=i))
            else:
                receives[i] = mine.irecv(Spec((sizes[i],), torch.uint8, "cuda"), other, Tag(1, microbatch=i))
        for i in random.Random(mine.rank + 2).sample(range(messages), messages):
            receives[i].wait_stream()
            assert torch.equal(receives[i].tensor, content(sizes[i], 1000 * other + i)), i
        for handle in [*sends.values(), *receives.values()]:
            handle.wait(SECONDS)
        assert mine.arrived(1) == []


def exchange_between_all(messages: int = 60) -> set[str]:
    """Every rank with every other, in orders of their own, all at once."""
    with engine() as mine:
        others = [rank for rank in range(mine.world_size) if rank != mine.rank]
        chance = random.Random(mine.rank)
        plan = [(way, other, i) for way in "sr" for other in others for i in range(messages)]
        sends, receives = [], {}
        for way, other, i in chance.sample(plan, len(plan)):
            if way == "s":
                size, seed = message_between(mine.rank, other, i)
                sends.append(mine.isend(content(size, seed), other, Tag(1, microbatch=i)))
            else:
                size, _ = message_between(other, mine.rank, i)
                receives[other, i] = mine.irecv(Spec((size,), torch.uint8, "cuda"), other, Tag(1, microbatch=i))
        for (other, i), receive in chance.sample(sorted(receives.items(), key=lambda item: item[0]), len(receives)):
            receive.wait_stream()
            assert torch.equal(receive.tensor, content(*message_between(other, mine.rank, i))), (other, i)
        for handle in [*sends, *receives.values()]:
            handle.wait(SECONDS)
        return {str(route) for route in mine.lanes().values()}


def message_between(source: int, target: int, number: int) -> tuple[int, int]:
    """Its size and the seed of its content."""
    seed = (source * 16 + target) * 1000 + number
    return random.Random(seed).choice(SIZES[:-1]), seed


def exchange_around_a_ring(rounds: int = 6) -> None:
    """As pipeline stages do, with large tensors both ways at once."""
    with engine() as mine:
        beside = neighbours(range(mine.world_size), mine.rank)
        for step in range(rounds):
            tag = Tag(1, round=step)
            receives = [(other, mine.irecv(Spec((64 << 20,), torch.uint8, "cuda"), other, tag)) for other in beside]
            sends = [mine.isend(content(64 << 20, 100 * mine.rank + other), other, tag) for other in beside]
            for other, receive in receives:
                receive.wait_stream()
                assert torch.equal(receive.tensor, content(64 << 20, 100 * other + mine.rank)), (step, other)
            for handle in [*sends, *(receive for _, receive in receives)]:
                handle.wait(SECONDS)


def refuse_what_is_wrong() -> None:
    with engine() as mine:
        other = 1 - mine.rank
        if mine.rank == 0:
            wrong = mine.isend(torch.zeros(4, device="cuda"), 1, Tag(1))
            mixed = mine.isend(torch.zeros(4, device="cuda"), 1, Tag(2))
        else:
            wrong = mine.irecv(Spec((5,), torch.float32, "cuda"), 0, Tag(1))
            mixed = mine.irecv(Spec((4,), torch.float32, "cpu"), 0, Tag(2))
        with pytest.raises(MismatchError, match=r"float32 \[4\] on cuda.*float32 \[5\] on cuda"):
            wrong.wait(SECONDS)
        mixed.wait(SECONDS)  # one end on a GPU, the other not
        with pytest.raises(TagError, match="used already"):
            mine.isend(torch.zeros(1, device="cuda"), other, Tag(1)) if mine.rank == 0 else mine.irecv(
                Spec((1,), torch.float32, "cuda"), other, Tag(1)
            )
        with pytest.raises(ValueError, match="not contiguous"):
            mine.isend(torch.zeros(4, 4, device="cuda").t(), other, Tag(3))
        back = mine.irecv(Spec((3,), torch.float32, "cuda"), other, Tag(4))
        with pytest.raises(TransferTimeoutError):
            back.wait(0.05)
        back.cancel()
        with pytest.raises(CancelledError):
            back.wait(SECONDS)
        back.wait_stream()  # a stream is not held up by what was taken back
        torch.cuda.synchronize()
        last = mine.irecv(Spec((1,), torch.float32, "cuda"), other, Tag(5))
        mine.isend(torch.zeros(1, device="cuda"), other, Tag(5)).wait(SECONDS)
        last.wait(SECONDS)  # neither leaves while the other still takes back


def exchange_memory_of_expandable_segments() -> bool:
    torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    with engine() as mine:
        other = 1 - mine.rank
        receive = mine.irecv(torch.zeros(1 << 20, device="cuda"), other, Tag(1))
        send = mine.isend(torch.full((1 << 20,), float(mine.rank + 1), device="cuda"), other, Tag(1))
        receive.wait(SECONDS)
        send.wait(SECONDS)
        return bool((receive.tensor == other + 1).all())


def train_rank(flags: str) -> list[float]:
    return train(f"{TINY} --train-iters 20 --deterministic-mode --bf16 {flags}").losses


# ---- tests


@pytest.mark.parametrize(
    "scenario",
    [exchange_sizes, exchange_dtypes, follow_streams, exchange_in_any_order, refuse_what_is_wrong],
)
def test_between_two_gpus(scenario: Callable[[], Any]) -> None:
    run_forked(2, scenario, timeout=ENDED_SECONDS)


def test_between_hosts_memory_goes_through_the_host() -> None:
    assert run_forked(2, exchange_through_host_memory, timeout=ENDED_SECONDS) == ["tcp+staged"] * 2


@pytest.mark.parametrize("ranks", [pytest.param(ranks, marks=needs(ranks)) for ranks in (2, 4, 8)])
def test_between_all_gpus(ranks: int) -> None:
    assert run_forked(ranks, exchange_between_all, timeout=ENDED_SECONDS) == [{"shm+cuda_ipc"}] * ranks


@pytest.mark.parametrize("ranks", [pytest.param(ranks, marks=needs(ranks)) for ranks in (4, 8)])
def test_around_a_ring_of_gpus(ranks: int) -> None:
    run_forked(ranks, exchange_around_a_ring, timeout=ENDED_SECONDS)


@pytest.mark.parametrize("connections", ["1", "8"])
def test_streams_follow_with_few_hardware_queues(connections: str) -> None:
    run_forked(
        2, exchange_in_any_order, timeout=ENDED_SECONDS, environment={"CUDA_DEVICE_MAX_CONNECTIONS": connections}
    )


def test_memory_of_expandable_segments_is_received_into() -> None:
    assert run_forked(2, exchange_memory_of_expandable_segments, timeout=ENDED_SECONDS) == [True, True]


PIPELINE = "--pipeline-model-parallel-size"
LAYOUTS = [
    (2, f"{PIPELINE} 2"),
    (2, f"{PIPELINE} 2 --num-layers-per-virtual-pipeline-stage 1"),
    (4, f"{PIPELINE} 4"),
    (4, f"{PIPELINE} 2 --num-layers-per-virtual-pipeline-stage 1"),  # and two pipelines beside each other
]


@pytest.mark.parametrize(("ranks", "layout"), [pytest.param(*each, marks=needs(each[0])) for each in LAYOUTS])
def test_training_has_the_losses_of_the_stock_communicator(ranks: int, layout: str) -> None:
    environment = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "NCCL_ALGO": "Ring"}
    stock = run_forked(ranks, train_rank, layout, timeout=200, environment=environment)[-1]
    native = run_forked(ranks, train_rank, f"{layout} --p2p-transport native", timeout=200, environment=environment)[-1]

    assert len(native) == 20
    assert native == stock


def victim(store: str) -> None:
    torch.cuda.set_device(1)
    torch.zeros(1, device="cuda")
    engine = Engine(1, 2, store, config=CONFIG)
    engine.connect([0])
    time.sleep(600)


def survivor(store: str, victim_pid: int) -> dict[str, Any]:
    """A stream waits for a gradient that never comes; the update behind it must not be believed."""
    torch.cuda.set_device(0)
    engine = Engine(0, 2, store, config=CONFIG)
    engine.connect([1])
    parameter = torch.ones(1024, device="cuda")
    gradient = engine.irecv(Spec((1024,), torch.float32, "cuda"), 1, Tag(2))
    sent = engine.isend(torch.ones(1024, device="cuda"), 1, Tag(1))
    gradient.wait_stream()
    sent.wait_stream()
    reached = torch.cuda.Event()
    reached.record()
    time.sleep(0.2)
    held = not reached.query()
    killed = time.monotonic()
    os.kill(victim_pid, signal.SIGKILL)
    torch.cuda.synchronize()
    released_seconds = time.monotonic() - killed
    try:
        engine.check()
        parameter -= gradient.tensor
        error = ""
    except PeerLostError as lost:
        error = str(lost)
    unchanged = bool((parameter == 1).all())
    engine.abort()
    engine.close()
    return {"held": held, "released_seconds": released_seconds, "error": error, "unchanged": unchanged}


def _report(action: Callable[..., Any], pipe: Any, *args: Any) -> None:
    pipe.send(action(*args))


def test_stream_is_let_go_when_the_peer_dies(tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    store = str(tmp_path / "store")
    receiver, sender = context.Pipe(duplex=False)
    dying = context.Process(target=victim, args=(store,))
    dying.start()
    living = context.Process(target=_report, args=(survivor, sender, store, dying.pid))
    living.start()
    try:
        assert receiver.poll(90), "the survivor hangs"
        found = receiver.recv()
    finally:
        for process in (dying, living):
            process.kill()
            process.join()

    assert found["held"]
    assert found["released_seconds"] < 1.0
    assert found["error"] == "rank 1 is lost: its process has ended"
    assert found["unchanged"]
