"""A rank that trains nothing, with NCCL's operations at its agent: a hundred collectives that end, then one of which a
channel has begun, and a message. `python -m tests.support.nccl_rank`: says so to the agent that its environment names,
and stands."""

from __future__ import annotations

import time

from megatronapp import nccl
from megatronapp.trainer.plugins.scan.agent_link import AgentPlace, find_agent
from tests.support.rank_writer import HELLO, RankWriter
from tests.unit.nccl.stand_in import Nccl

RANK = 3
READY = "ready"
COMPLETED, ENQUEUED = 100, 102
OPEN = (
    "AllReduce 101 (rank 1 of 2 in data): enqueued, begun on the device, not ended",
    "Send 1 with rank 0 (rank 1 of 2 in data): enqueued, not begun on the device, not ended",
)
"""What an agent tells of such a rank that has died."""


def play(place: AgentPlace) -> RankWriter:
    segment = nccl.open_segment(1 << 16, 8)
    nccl.ask_for(nccl.Level.TIMES)
    assert place.path is not None
    writer = RankWriter(place.path, rank=RANK, place=place, operations_fd=segment)
    communicator = Nccl(nccl.LIBRARY, 5).communicator(77, ranks=2, rank=1, name=b"data")
    for _ in range(COMPLETED):
        communicator.run(communicator.enqueue(b"AllGather"), 1, 2)
    communicator.channel(communicator.enqueue(b"AllReduce", 123), 0, 5)
    communicator.message(b"Send", 0)
    return writer


if __name__ == "__main__":
    identity = HELLO.identity
    writer = play(find_agent(identity.run, identity.attempt, first_of_node=False))
    print(READY if writer.link.connected else "no agent", flush=True)
    time.sleep(60)
