"""Hangs in which network ports tell whose sends stand."""

from __future__ import annotations

from megatronapp.core.findings import Kind
from megatronapp.v1 import trace_pb2
from tests.support.beating import SECOND, Beating


def all_in(job: Beating, outstanding: dict[int, int], seconds: int = 9) -> None:
    """All are in a collective that does not end; what their ports had outstanding when they sent last."""
    frontier = trace_pb2.Frontier(communicator=1, peer=-1, enqueued=21, started=21, completed=20)
    for _ in range(seconds):
        job.job.clock_ns += SECOND
        for rank in range(job.job.layout.world):
            port = trace_pb2.PortSends(
                port=f"host_mlx5_{rank} port 0", operation=9, outstanding_bytes=outstanding.get(rank, 0)
            )
            stack = trace_pb2.Stack(state="sleeping", text="in its wait", ports=[port])
            job.said += job.engine.feed(job.job.heartbeat(rank, 6, [frontier], stack=stack))


def test_of_a_collective_that_does_not_end_those_are_named_whose_sends_stand() -> None:
    job = Beating(replicas=4)
    job.train(20)
    all_in(job, {2: 4 << 19})

    (finding,) = {f.id: f for f in job.said}.values()
    assert (finding.kind, finding.ranks) == (Kind.HANG, (2,))
    assert (
        "A send of rank 2 through host_mlx5_2 port 0 does not end, in operation 9 or behind it: 2097152 bytes are "
        "outstanding." in finding.summary
    )


def test_where_no_send_stands_all_members_of_what_does_not_end_are_named() -> None:
    job = Beating(replicas=4)
    job.train(20)
    all_in(job, {})

    (finding,) = {f.id: f for f in job.said}.values()
    assert finding.ranks == (0, 1, 2, 3)
    assert "outstanding" not in finding.summary
