"""A small job of which the test writes the heartbeats, second by second."""

from __future__ import annotations

from megatronapp.core.findings import Finding
from megatronapp.detector.engine import Engine
from megatronapp.v1 import trace_pb2
from tests.support.simulated import CPU, Job, Layout

SECOND = 1_000_000_000


class Beating:
    """A job of replicas whose heartbeats the test writes: of the first two, unless it says otherwise."""

    def __init__(self, replicas: int = 2) -> None:
        self.job = Job(Layout(pp=1, dp=replicas), CPU, on_cpu=True)
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

    def stop(
        self,
        done: tuple[int, int],
        entered: tuple[int, int],
        started: tuple[int, int],
        stopped: int,
        seen: trace_pb2.Stack | None = None,
    ) -> None:
        """A second in which a rank's process is stopped, and seen so; the other one's sleeps."""
        seen = seen or trace_pb2.Stack(state="stopped")
        self.job.clock_ns += SECOND
        for rank in (0, 1):
            frontier = trace_pb2.Frontier(
                communicator=1, peer=-1, enqueued=entered[rank], started=started[rank], completed=done[rank]
            )
            stack = seen if rank == stopped else trace_pb2.Stack(state="sleeping", text="in its wait")
            self.said += self.engine.feed(self.job.heartbeat(rank, 1 + max(done) // 4, [frontier], stack=stack))

    def lose(self, rank: int) -> None:
        identity = self.job.heartbeat(rank, 6, []).identity
        gone = trace_pb2.RankMessage(identity=identity, received_unix_ns=self.job.clock_ns, lost=True)
        self.said += self.engine.feed(gone)
