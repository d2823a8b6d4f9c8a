"""What witnesses say of a hang: stacks, the flight recorder, NCCL's RAS."""

from __future__ import annotations

from megatronapp.v1 import trace_pb2
from tests.support.beating import SECOND, Beating


def test_the_stack_of_who_is_named_is_told_when_it_comes_and_that_of_nobody_else() -> None:
    job = Beating()
    job.train(20)
    for _ in range(8):
        job.beat((20, 20), (21, 20))
    told_before = len(job.said)
    stack = trace_pb2.Stack(state="stopped", text="in wait", source="faulthandler")

    for _ in range(3):
        job.stop((20, 20), (21, 20), (21, 20), stopped=1, seen=stack)

    (finding,) = job.said[told_before:]
    assert [one.signal for one in finding.evidence] == ["frontier", "stack"]
    assert finding.evidence[1].text == "Rank 1 (stopped), faulthandler\nin wait"
    assert "its process is stopped" in finding.summary


def test_what_the_flight_recorder_says_comes_after_the_stack_and_stays_with_the_next() -> None:
    job = Beating()
    job.train(20)
    for _ in range(8):
        job.beat((20, 20), (21, 20), stack=trace_pb2.Stack(text="in wait", source="py-spy"))
    told_before = len(job.said)

    job.beat((20, 20), (21, 20), stack=trace_pb2.Stack(text="in wait", source="py-spy", recorder="all_reduce 21"))
    for _ in range(3):
        job.beat((20, 20), (21, 20), stack=trace_pb2.Stack(text="in wait", source="py-spy"))

    (finding,) = job.said[told_before:]
    assert [one.signal for one in finding.evidence] == ["frontier", "stack", "flight_recorder"]
    assert finding.evidence[2].text == "Rank 1, PyTorch's flight recorder\nall_reduce 21"


def test_what_nccl_says_of_the_job_is_told_with_whom_it_names_whoever_has_asked() -> None:
    job = Beating()
    job.train(20)
    for _ in range(8):
        job.beat((20, 20), (21, 20))
    told_before = len(job.said)

    report = "Warnings\n#0-0 (27a079b828ff1a75) MISMATCH"
    for second in range(4):
        job.job.clock_ns += SECOND
        for rank, entered in ((0, 21), (1, 20)):
            frontier = trace_pb2.Frontier(communicator=1, peer=-1, enqueued=entered, started=entered, completed=20)
            said = {"stack": trace_pb2.Stack(ras=report)} if (rank, second) == (0, 0) else {}
            job.said += job.engine.feed(job.job.heartbeat(rank, 6, [frontier], **said))

    (finding,) = job.said[told_before:]
    assert finding.ranks == (1,)
    assert finding.evidence[-1].signal == "nccl_ras"
    assert finding.evidence[-1].text == f"NCCL's RAS, of the whole job\n{report}"


def test_a_stack_from_before_the_rank_moved_on_is_forgotten() -> None:
    job = Beating()
    job.train(10)
    job.beat((10, 10), (10, 10), stack=trace_pb2.Stack(text="long ago"))
    job.train(20)
    for _ in range(8):
        job.beat((20, 20), (21, 20))

    (finding,) = {f.id: f for f in job.said}.values()
    assert [one.signal for one in finding.evidence] == ["frontier"]
