"""A pass is over when the GPU has been given all that was sent: a thread that stays in the driver later can't do it."""

from __future__ import annotations

from typing import Any

import pytest

rdma = pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

from megatronapp.trainer.pipeline.native import NativeTransport, hand_over  # noqa: E402


class HoldingEngine:
    """Holds a send back for so many looks; a peer may be lost at the next one."""

    def __init__(self, held: int, lost: bool = False) -> None:
        self.held, self.lost = held, lost

    def flush(self) -> bool:
        self.held -= self.held > 0
        return not self.held

    def check(self) -> None:
        if self.lost:
            raise rdma.PeerLostError(1, "its process has ended")

    def poll(self) -> list[Any]:
        return []


def test_a_pass_ends_when_nothing_that_was_sent_is_held_back() -> None:
    engine = HoldingEngine(held=3)

    NativeTransport(engine).end()  # type: ignore[arg-type]

    assert not engine.held


def test_a_send_that_is_held_back_for_a_lost_peer_ends_with_its_name() -> None:
    with pytest.raises(rdma.PeerLostError, match="rank 1"):
        hand_over(HoldingEngine(held=3, lost=True))  # type: ignore[arg-type]
