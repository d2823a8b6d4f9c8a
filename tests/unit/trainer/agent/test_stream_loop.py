"""What the streams of a node's ranks share."""

from __future__ import annotations

import grpc

from megatronapp.trainer.agent.stream import StreamLoop

AWAY, REFUSED = grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED


def test_why_a_collector_can_not_be_reached_is_said_once_for_all_ranks() -> None:
    loop = StreamLoop()
    met = (("a:1", AWAY), ("a:1", AWAY), ("b:1", AWAY), ("a:1", REFUSED), ("a:1", AWAY), ("a:1", REFUSED))
    try:
        assert [loop.is_news(*each) for each in met] == [True, False, True, True, False, False]
    finally:
        loop.close()
