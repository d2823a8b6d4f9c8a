"""The plug-in in the NCCL of this machine's PyTorch: what it records against NCCL's own debug log, what the GPU's times
say, and (printed) what it costs.

One GPU is enough: ranks that call themselves different hosts share it, and speak over sockets. With more each has one.
"""

from __future__ import annotations

import os
import re
import statistics
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counting devices must not start CUDA: ranks are forks

import torch
import torch.distributed as dist

from megatronapp.trainer.agent.operations import Completed, Direction, Enqueued, Lane, OperationsReader
from megatronapp.trainer.agent.segment import Segment
from tests.gpu.devices import needs
from tests.support.forked import run_forked

nccl = pytest.importorskip("megatronapp.nccl", reason="the plug-in's wheel is not installed: pip install native/nccl")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    needs(1),
]

RING, LANES = 64 << 20, 256
ROUNDS = 20
SIZES = (1, 1000, 1 << 18, 1 << 22)
"""Elements of 4 bytes: below, at and above what is sent in one piece."""
SETTLED_SECONDS = 20.0
COST_ROUNDS, COST_CALLS = 30, 200
DRIFT, TICK_NS = 1e-4, 2_000
"""By which the two clocks may part, and what the GPU's advances by at once."""

CALL = re.compile(r"NCCL INFO (\w+): opCount \w+ .*count (\d+) datatype (\d+) .*nranks=(\d+)")
LOGGED_BYTES = (1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1)
"""Of NCCL's data types, by number."""
TOLD_BYTES = {"8": 1, "8e4m3": 1, "8e5m2": 1, "16": 2, "32": 4, "64": 8}
Called = tuple[str, int]
"""Function and bytes: NCCL turns some operations into ones of bytes before it tells of them."""


@dataclass(frozen=True)
class Recorded:
    """What a rank has recorded, and what NCCL has logged of it."""

    version: tuple[int, ...]
    enqueued: list[Enqueued]
    completed: list[Completed]
    lanes: dict[int, Lane]
    lost: int
    logged: Counter[Called]
    bracket_ns: int
    """Between two events around the last collective."""


def play(level: str, folder: str) -> Recorded:
    """Collectives of all kinds and messages both ways; then everything that was recorded of them."""
    rank = join(folder)
    reader = OperationsReader(Segment(os.dup(nccl.open_segment(RING, LANES))))
    nccl.ask_for(nccl.Level[level])
    dist.init_process_group("nccl", device_id=device(rank))
    for _ in range(ROUNDS):
        for size in SIZES:
            one_of_each(size, rank)
    bracket_ns = bracketed(torch.ones(SIZES[-1], device=device(rank)))
    torch.cuda.synchronize()
    enqueued, completed = drained(reader)
    lanes, lost = reader.lanes(), reader.lost + reader.implausible + reader.without_lane
    dist.destroy_process_group()
    logged = called(Path(folder) / f"debug.{rank}")
    return Recorded(torch.cuda.nccl.version(), enqueued, completed, lanes, lost, logged, bracket_ns)


def join(folder: str) -> int:
    """Before CUDA and NCCL are begun with."""
    rank = int(os.environ["RANK"])
    os.environ["NCCL_PROFILER_PLUGIN"] = str(nccl.LIBRARY)
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="COLL,P2P", NCCL_DEBUG_FILE=f"{folder}/debug.{rank}")
    if torch.cuda.device_count() < int(os.environ["WORLD_SIZE"]):
        os.environ.update(NCCL_HOSTID=f"host-{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1")
    torch.cuda.set_device(device(rank))
    return rank


def device(rank: int) -> torch.device:
    return torch.device("cuda", rank % torch.cuda.device_count())


def one_of_each(size: int, rank: int) -> None:
    data = torch.ones(size, device=device(rank))
    both = torch.ones(2 * size, device=device(rank))
    dist.all_reduce(data)
    dist.all_gather_into_tensor(both, data)
    dist.reduce_scatter_tensor(data, both)
    dist.broadcast(data, src=1)
    sends, receives = (dist.P2POp(each, data.clone(), 1 - rank) for each in (dist.isend, dist.irecv))
    for work in dist.batch_isend_irecv([sends, receives]):
        work.wait()


def bracketed(data: torch.Tensor) -> int:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    dist.all_reduce(data)
    end.record()
    end.synchronize()
    return int(begin.elapsed_time(end) * 1e6)


def drained(reader: OperationsReader) -> tuple[list[Enqueued], list[Completed]]:
    """All that is recorded, once nothing more comes: NCCL tells of an end a little later than it was."""
    enqueued, completed = list[Enqueued](), list[Completed]()
    deadline = time.monotonic() + SETTLED_SECONDS
    while time.monotonic() < deadline:
        for record in reader.records():
            (enqueued if isinstance(record, Enqueued) else completed).append(record)  # type: ignore[arg-type]
        if enqueued and len(completed) >= len(enqueued):
            break
        time.sleep(0.05)
    return enqueued, completed


def called(log: Path) -> Counter[Called]:
    """From NCCL's debug log; without communicators of one rank, and empty operations."""
    found: Counter[Called] = Counter()
    for name, count, kind, ranks in CALL.findall(log.read_text(errors="replace")):
        if int(ranks) > 1 and int(count):
            found[name, int(count) * LOGGED_BYTES[int(kind)]] += 1
    return found


def recorded(seen: Recorded) -> Counter[Called]:
    width = {each.type: TOLD_BYTES[re.sub(r"^nccl[A-Z][a-z]*", "", each.type)] for each in seen.enqueued}
    return Counter((each.operation, each.count * width[each.type]) for each in seen.enqueued)


@pytest.fixture(scope="module", params=["TIMES", "ALL"])
def level(request: pytest.FixtureRequest) -> str:
    level: str = request.param
    supported, why = nccl.supported_level(torch.cuda.nccl.version(), nccl.Level[level])
    if supported < nccl.Level[level]:
        pytest.skip(why)
    return level


@pytest.fixture(scope="module")
def ranks(level: str, tmp_path_factory: pytest.TempPathFactory) -> list[Recorded]:
    seen = run_forked(2, play, level, str(tmp_path_factory.mktemp("nccl")), timeout=200)
    print(f"\nNCCL {seen[0].version}, {level}: {[len(each.enqueued) for each in seen]} operations")
    return seen


def test_every_operation_of_the_debug_log_is_recorded_exactly_once(ranks: list[Recorded]) -> None:
    for seen in ranks:
        assert seen.logged.total() >= 6 * ROUNDS * len(SIZES)
        assert recorded(seen) == seen.logged
        assert seen.lost == 0
        assert all(lane.lost == 0 for lane in seen.lanes.values())


def test_each_operation_has_one_end_and_its_numbers_have_no_gap(ranks: list[Recorded]) -> None:
    for seen in ranks:
        begun = Counter((each.lane, each.number) for each in seen.enqueued)
        assert set(begun.values()) == {1}
        assert Counter((each.lane, each.number) for each in seen.completed) == begun
        for index, lane in seen.lanes.items():
            numbers = sorted(number for of, number in begun if of == index)
            assert numbers == list(range(1, lane.enqueued + 1))
            assert (lane.completed, lane.oldest) == (lane.enqueued, None)


def test_members_of_a_communicator_number_alike(ranks: list[Recorded]) -> None:
    def collectives(seen: Recorded) -> dict[tuple[int, int], Called]:
        hashes = {i: each.communicator for i, each in seen.lanes.items() if each.direction is Direction.NONE}
        own = (each for each in seen.enqueued if each.lane in hashes)
        return {(hashes[each.lane], each.number): (each.operation, each.count) for each in own}

    assert collectives(ranks[0]) == collectives(ranks[1])
    assert collectives(ranks[0])


def test_times_of_the_gpu_are_sane(ranks: list[Recorded]) -> None:
    for seen in ranks:
        last = dict[int, Completed]()
        for each in sorted(seen.completed, key=lambda each: (each.lane, each.number)):
            assert 0 < each.start_ns < each.end_ns
            assert each.enqueued_ns <= each.launched_ns
            before = last.get(each.lane)
            if before is not None and seen.lanes[each.lane].direction is Direction.NONE:
                assert each.start_ns >= before.start_ns
                assert each.end_ns >= before.end_ns
            last[each.lane] = each


def test_what_the_gpu_did_lies_between_its_call_and_its_being_told(ranks: list[Recorded]) -> None:
    """On one clock of the host for all operations. How late NCCL tells of a start or an end, and of which channel it
    tells first, is a matter of how busy the host is: only that each was over by then says something."""
    for seen in ranks:
        least = max(each.enqueued_ns - each.start_ns for each in seen.completed)
        most = min(min(each.start_seen_ns - each.start_ns, each.end_seen_ns - each.end_ns) for each in seen.completed)
        span_ns = max(each.end_ns for each in seen.completed) - min(each.start_ns for each in seen.completed)
        print(f"\nthe host's clock is {least} to {most} ns before the GPU's, in {span_ns / 1e9:.1f} s")
        assert least <= most + DRIFT * span_ns + TICK_NS


def test_a_kernel_lies_within_events_around_it(ranks: list[Recorded]) -> None:
    for seen in ranks:
        newest = max(seen.completed, key=lambda each: each.enqueued_ns)
        print(f"\nkernel {newest.end_ns - newest.start_ns} ns, events around it {seen.bracket_ns} ns")
        assert newest.end_ns - newest.start_ns <= 1.001 * seen.bracket_ns + 5_000


def test_proxies_tell_what_the_network_waited_for(level: str, ranks: list[Recorded]) -> None:
    if level != "ALL" or torch.cuda.device_count() > 1:
        pytest.skip("only ranks that speak over a network have proxies, which tell at level ALL")
    for seen in ranks:
        assert sum(each.network_bytes for each in seen.completed) > 0
        assert sum(each.waited_for_network_ns for each in seen.completed) > 0


def measure(folder: str) -> dict[str, list[float]]:
    """Seconds of a call in blocks of small all-reduces, by level, in an order that turns."""
    rank = join(folder)
    os.environ.update(NCCL_DEBUG="WARN")
    nccl.open_segment(RING, LANES)
    nccl.ask_for(nccl.Level.OFF)
    dist.init_process_group("nccl", device_id=device(rank))
    data = torch.ones(1024, device=device(rank))
    names = ["OFF", "CALLS", "TIMES"]
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(COST_ROUNDS + 1):
        for name in (*names[turn % 3 :], *names[: turn % 3]):
            nccl.ask_for(nccl.Level[name])
            dist.all_reduce(data)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(COST_CALLS):
                dist.all_reduce(data)
            torch.cuda.synchronize()
            if turn:
                found[name].append((time.perf_counter() - begin) / COST_CALLS)
    dist.destroy_process_group()
    return found


def test_the_mask_can_be_changed_while_nccl_runs_and_what_it_costs_is_told(tmp_path: Path) -> None:
    found: dict[str, list[float]] = run_forked(2, measure, str(tmp_path), timeout=200)[0]

    for name, seconds in found.items():
        off = found["OFF"]
        more = [own / base - 1 for own, base in zip(seconds, off, strict=True)]
        half = 2 * statistics.stdev(more) / len(more) ** 0.5
        usual = statistics.median(seconds) * 1e6
        print(f"\n{name}: {usual:.2f} us a call of 4 KiB, {statistics.mean(more):+.2%} (+-{half:.2%})")
    assert all(len(seconds) == COST_ROUNDS for seconds in found.values())


def test_what_is_recorded_while_off_is_nothing(tmp_path: Path) -> None:
    seen: list[Any] = run_forked(2, switched, str(tmp_path), timeout=200)

    for during_off, after in seen:
        assert during_off == 0
        assert after == 3


def switched(folder: str) -> tuple[int, int]:
    """Records of operations called while nothing was asked for, and of three called after it."""
    rank = join(folder)
    reader = OperationsReader(Segment(os.dup(nccl.open_segment(RING, LANES))))
    nccl.ask_for(nccl.Level.OFF)
    dist.init_process_group("nccl", device_id=device(rank))
    data = torch.ones(1024, device=device(rank))
    for _ in range(5):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    during_off = len(reader.records())
    nccl.ask_for(nccl.Level.TIMES)
    for _ in range(3):
        dist.all_reduce(data)
    torch.cuda.synchronize()
    enqueued, _ = drained(reader)
    dist.destroy_process_group()
    return during_off, len(enqueued)
