"""What the streams of a node's ranks share."""

from __future__ import annotations

from megatronapp.trainer.agent.stream import StreamLoop


def test_that_a_collector_is_away_is_said_once_for_all_ranks() -> None:
    loop = StreamLoop()
    try:
        assert [loop.is_news(address) for address in ("a:1", "a:1", "b:1", "a:1")] == [True, False, True, False]
    finally:
        loop.close()
