"""Who holds everybody up, from frontiers and heartbeats alone."""

from __future__ import annotations

from megatronapp.core.findings import Cause, Finding, Kind, State
from megatronapp.detector.engine import Engine
from megatronapp.detector.signals.frontier import Position, Side, blame
from megatronapp.v1 import trace_pb2
from tests.support.simulated import CPU, Job, Layout

SECOND = 1_000_000_000
GROUP = {"dp:0-1": (0, 1), "dp:2-3": (2, 3), "p2p:0-2": (0, 2), "p2p:1-3": (1, 3)}


def test_a_rank_that_never_entered_is_blamed_on_its_host() -> None:
    frontiers = {0: {"dp:0-1": Position(7, 7, 6, "all_reduce")}, 1: {"dp:0-1": Position(6, 6, 6)}}

    (found,) = blame(frontiers, GROUP)

    assert (found.rank, found.side, found.sequence, found.waiting) == (1, Side.HOST, 7, (0,))


def test_a_rank_whose_device_does_not_come_to_it_is_blamed_on_its_device() -> None:
    frontiers = {0: {"dp:0-1": Position(9, 7, 6, "all_reduce")}, 1: {"dp:0-1": Position(9, 6, 6)}}

    (found,) = blame(frontiers, GROUP)

    assert (found.rank, found.side) == (1, Side.DEVICE)


def test_waiting_is_walked_back_over_p2p_to_the_first_blocker() -> None:
    frontiers = {
        0: {"p2p:0-2": Position(4, 4, 4), "dp:0-1": Position(2, 2, 2)},
        1: {"dp:0-1": Position(3, 3, 2, "all_reduce")},
        2: {"p2p:0-2": Position(5, 5, 4, "forward_recv"), "dp:2-3": Position(2, 2, 2)},
        3: {"dp:2-3": Position(3, 3, 2, "all_reduce")},
    }

    (found,) = blame(frontiers, GROUP)

    assert (found.rank, found.waiting) == (0, (1, 2, 3))


def test_two_ranks_that_stopped_are_both_named() -> None:
    frontiers = {
        0: {"dp:0-1": Position(3, 3, 2, "all_reduce")},
        1: {"dp:0-1": Position(2, 2, 2)},
        2: {"dp:2-3": Position(3, 3, 2, "all_reduce")},
        3: {"dp:2-3": Position(2, 2, 2)},
    }

    assert [found.rank for found in blame(frontiers, GROUP)] == [1, 3]


def test_an_operation_that_all_are_in_is_the_networks() -> None:
    frontiers = {r: {"dp:0-1": Position(3, 3, 2, "all_reduce")} for r in (0, 1)}

    assert {found.side for found in blame(frontiers, GROUP)} == {Side.NETWORK}


class Beating:
    """A job of two replicas whose heartbeats the test writes."""

    def __init__(self) -> None:
        self.job = Job(Layout(pp=1, dp=2), CPU, on_cpu=True)
        self.engine = Engine(self.job.run, "test/simulated", 1)
        self.said: list[Finding] = []
        for hello in self.job.hellos():
            self.engine.feed(hello)

    def beat(self, done: tuple[int, int], entered: tuple[int, int], **fields: object) -> None:
        self.job.clock_ns += SECOND
        for rank in (0, 1):
            frontier = trace_pb2.Frontier(
                communicator=1, peer=-1, enqueued=entered[rank], started=entered[rank], completed=done[rank]
            )
            beat = self.job.heartbeat(rank, 1 + max(done) // 4, [frontier], **fields)
            self.said += self.engine.feed(beat)

    def train(self, seconds: int) -> None:
        for second in range(seconds):
            self.beat((second, second), (second, second))


def test_a_hang_is_named_within_ten_seconds_and_resolved_when_things_move() -> None:
    job = Beating()
    job.train(20)
    for _ in range(8):
        job.beat((20, 20), (21, 20))

    (finding,) = {f.id: f for f in job.said}.values()
    assert (finding.kind, finding.cause, finding.ranks, finding.page) == (Kind.HANG, Cause.HOST_CPU, (1,), True)
    job.beat((21, 21), (21, 21))
    assert job.said[-1].state is State.RESOLVED


def test_a_thread_that_computes_without_end_hangs_on_the_compute_side() -> None:
    job = Beating()
    job.train(20)
    for second in range(8):
        used = second * SECOND
        job.beat((20, 20), (21, 20), activity="forward", clock_ns=second * SECOND + 1, thread_cpu_ns=used)

    assert {(f.cause, f.ranks) for f in job.said} == {(Cause.COMPUTE, (1,))}


def test_silence_of_all_ranks_is_no_hang() -> None:
    job = Beating()
    job.train(20)
    job.job.clock_ns += 600 * SECOND
    job.beat((20, 20), (20, 20))
    job.engine.tick(job.job.clock_ns + 600 * SECOND)

    assert job.said == []


def test_a_long_checkpoint_is_no_hang() -> None:
    job = Beating()
    job.train(20)
    for _ in range(60):
        job.beat((20, 20), (20, 20), phase=trace_pb2.PHASE_CHECKPOINT)

    assert job.said == []


def test_a_job_that_ends_in_good_order_is_no_hang() -> None:
    job = Beating()
    job.train(20)
    for _ in range(60):
        job.beat((20, 20), (20, 20), closing=True)

    assert job.said == []


def test_a_rank_that_died_is_blamed() -> None:
    job = Beating()
    job.train(20)
    lost = job.job.heartbeat(1, 5, [])
    job.engine.feed(trace_pb2.RankMessage(identity=lost.identity, received_unix_ns=job.job.clock_ns, lost=True))
    for _ in range(9):
        job.job.clock_ns += SECOND
        frontier = trace_pb2.Frontier(communicator=1, peer=-1, enqueued=20, started=20, completed=19)
        job.said += job.engine.feed(job.job.heartbeat(0, 5, [frontier]))

    assert {(f.kind, f.ranks) for f in job.said} == {(Kind.HANG, (1,))}
