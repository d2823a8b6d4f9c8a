"""The native transport between two ranks on one GPU: all that two GPUs show, save for the way between them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counting devices must not start CUDA: ranks are forks

import torch

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

from megatronapp.rdma import BackpressureError, Config, LaneUnavailableError, Spec, Tag
from tests.gpu import test_transport as between_gpus
from tests.gpu.devices import needs
from tests.gpu.test_transport import CONFIG, ENDED_SECONDS, SECONDS, content, engine
from tests.support.forked import run_forked

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    needs(1),
]

FLAGS = 1024
STAGED = Config(lanes=("tcp",), connect_timeout_seconds=60)


def meet(mine: Any, number: int) -> None:
    """Both ranks have come so far."""
    tag = Tag(9, microbatch=number)
    mine.isend(torch.zeros(1), 1 - mine.rank, tag)
    mine.irecv(Spec((1,), torch.float32), 1 - mine.rank, tag).wait(SECONDS)


def let_streams_wait_while_a_send_is_not_matched() -> float:
    """Seconds of the host for 100 waits. Nothing is loaded or allocated behind them: that may wait for the device."""
    with engine() as mine:
        other, side = 1 - mine.rank, torch.cuda.Stream()  # type: ignore[no-untyped-call]
        large, expected = content(1 << 20, mine.rank), content(1 << 20, other)
        tensors = [torch.full((4096,), i, dtype=torch.uint8, device="cuda") for i in range(100)]
        received = torch.zeros(1 << 20, dtype=torch.uint8, device="cuda")
        receives = [mine.irecv(Spec((4096,), torch.uint8, "cuda"), other, Tag(2, microbatch=i)) for i in range(100)]
        torch.cuda.synchronize()
        unmatched = mine.isend(large, other, Tag(1))
        began = time.monotonic()
        for receive in receives:
            receive.wait_stream(side)
        took = time.monotonic() - began
        meet(mine, 0)
        for i, tensor in enumerate(tensors):
            mine.isend(tensor, other, Tag(2, microbatch=i))
        receive = mine.irecv(received, other, Tag(1))
        assert mine.flush(SECONDS)
        for handle in (receive, unmatched, *receives):
            handle.wait(SECONDS)
        side.synchronize()
        assert all(torch.equal(receive.tensor, tensors[i]) for i, receive in enumerate(receives))
        assert torch.equal(received, expected)
        return took


def pair_host_and_gpu(staged: bool) -> None:
    with engine(STAGED if staged else CONFIG) as mine:
        other, sizes, messages = 1 - mine.rank, (0, 1, 31, 4096, 65_536, (1 << 20) + 17, 8 << 20), 120
        chance = random.Random(17)
        plan = [(chance.choice(sizes), chance.choice("cg"), chance.choice("cg")) for _ in range(messages)]
        streams = [torch.cuda.Stream() for _ in range(4)]  # type: ignore[no-untyped-call]
        content(1 << 20, 0).sum(dtype=torch.int64).item()  # kernels are loaded now: later that may wait for the device
        order = random.Random(mine.rank).sample([(way, i) for way in "sr" for i in range(messages)], 2 * messages)
        sends, receives, sums = [], {}, {}
        for way, i in order:
            size, source, target = plan[i]
            if way == "s":
                tensor = content(size, 1000 * mine.rank + i)
                sends.append(mine.isend(tensor.cpu() if source == "c" else tensor, other, Tag(1, microbatch=i)))
            else:
                device = "cpu" if target == "c" else "cuda"
                receives[i] = mine.irecv(Spec((size,), torch.uint8, device), other, Tag(1, microbatch=i))
        for i in [i for i, receive in receives.items() if receive.cuda and i % 2]:
            receives[i].wait_stream(streams[i % 4])
            with torch.cuda.stream(streams[i % 4]):
                sums[i] = receives[i].tensor.sum(dtype=torch.int64)
        for handle in [*sends, *receives.values()]:
            handle.wait(SECONDS)
        torch.cuda.synchronize()
        for i, receive in receives.items():
            expected = content(plan[i][0], 1000 * other + i)
            assert torch.equal(receive.tensor.cuda(), expected), (i, plan[i])
            assert i not in sums or int(sums[i]) == int(expected.sum(dtype=torch.int64)), (i, plan[i])


def send_more_than_there_are_flags() -> None:
    with engine() as mine:
        count = FLAGS + 200
        other = 1 - mine.rank
        tensor = content(64, mine.rank)
        sends = [mine.isend(tensor, other, Tag(1, microbatch=i)) for i in range(count)]
        meet(mine, 0)
        held = [mine.irecv(Spec((64,), torch.uint8, "cuda"), other, Tag(2, microbatch=i)) for i in range(FLAGS)]
        with pytest.raises(BackpressureError, match="1024 receives of GPU memory are open"):
            mine.irecv(Spec((64,), torch.uint8, "cuda"), other, Tag(2, microbatch=FLAGS))
        assert all(handle.cancel() for handle in held)
        for i in range(count):
            receive = mine.irecv(Spec((64,), torch.uint8, "cuda"), other, Tag(1, microbatch=i))
            receive.wait(SECONDS)
            assert torch.equal(receive.tensor, content(64, other))
        for send in sends:
            send.wait(SECONDS)


def capture_a_graph() -> None:
    """A stream that is captured is refused; messages that move meanwhile leave the capture whole."""
    with engine() as mine:
        other = 1 - mine.rank
        receives = [mine.irecv(Spec((1 << 20,), torch.uint8, "cuda"), other, Tag(1, microbatch=i)) for i in range(50)]
        sent = content(1 << 20, mine.rank)
        sends = [mine.isend(sent, other, Tag(1, microbatch=i)) for i in range(10)]
        counter = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(50):
                counter += 1
                time.sleep(0.001)  # messages move on the progress thread
            for call in (
                lambda: mine.isend(sent, other, Tag(2)),
                lambda: mine.irecv(Spec((1 << 20,), torch.uint8, "cuda"), other, Tag(2)),
                lambda: receives[0].wait_stream() if not receives[0].done() else mine.isend(sent, other, Tag(2)),
            ):
                with pytest.raises(LaneUnavailableError, match="being captured into a CUDA graph"):
                    call()
        graph.replay()
        sends += [mine.isend(sent, other, Tag(1, microbatch=i)) for i in range(10, 50)]
        for handle in [*sends, *receives]:
            handle.wait(SECONDS)
        torch.cuda.synchronize()
        assert int(counter) == 50
        assert all(torch.equal(receive.tensor, content(1 << 20, other)) for receive in receives)


@pytest.mark.parametrize(
    "scenario",
    [
        between_gpus.exchange_sizes,
        between_gpus.exchange_dtypes,
        between_gpus.follow_streams,
        between_gpus.exchange_in_any_order,
        between_gpus.exchange_through_host_memory,
        between_gpus.refuse_what_is_wrong,
        send_more_than_there_are_flags,
        capture_a_graph,
    ],
)
def test_between_two_ranks_on_one_gpu(scenario: Callable[[], Any]) -> None:
    run_forked(2, scenario, timeout=ENDED_SECONDS)


def test_host_does_not_wait_for_streams() -> None:
    """It waited for a second each as long as an earlier send was not matched."""
    assert max(run_forked(2, let_streams_wait_while_a_send_is_not_matched, timeout=ENDED_SECONDS)) < 50


@pytest.mark.parametrize("staged", [False, True], ids=["cuda_ipc", "staged"])
def test_one_end_may_be_on_a_gpu_and_the_other_not(staged: bool) -> None:
    run_forked(2, pair_host_and_gpu, staged, timeout=ENDED_SECONDS)
