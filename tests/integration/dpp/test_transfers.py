"""Of messages that wait for a link, the one that its receiver needs first goes first."""

from __future__ import annotations

import argparse
from collections import defaultdict
from typing import Any

import pytest

from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.orders import all_stages
from megatronapp.core.pipeline.placement import Layout
from megatronapp.core.trace.message_id import Direction
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import PluginContext
from megatronapp.trainer.plugins.dpp import DppPlugin
from megatronapp.trainer.plugins.dpp.plugin import IN_FLIGHT_BYTES
from tests.support.forked import run_forked
from tests.support.training import TINY, train

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

LAYOUT = Layout(stages=2, chunks=2, microbatches=4, split=True)
FLAGS = (
    f"{TINY} --pipeline-model-parallel-size {LAYOUT.stages} --num-virtual-stages-per-pipeline-rank {LAYOUT.chunks} "
    f"--micro-batch-size 1 --global-batch-size {LAYOUT.microbatches} --train-iters 1 --use-dpp "
    "--dpp-policy interleaved-zb"
)
Sent = tuple[int, Operation]
"""(priority, the operation of the receiver that needs it)"""


class Listening(DppPlugin):
    """Keeps what was sent, and how many bytes may be under way at once."""

    sent: list[Sent]
    in_flight_bytes: int | None

    def __init__(self, args: argparse.Namespace, context: PluginContext) -> None:
        super().__init__(args, context)
        engine: Any = self._pipeline.transport.engine  # type: ignore[attr-defined]
        Listening.sent, Listening.in_flight_bytes = [], engine.config.in_flight_bytes
        isend, stage = engine.isend, context.placement.pipeline

        def listening(tensor: Any, peer: int, tag: Any, *, priority: int = 0) -> Any:
            forward = tag.kind == Direction.FORWARD
            part = LAYOUT.part(stage, tag.chunk) + 1 if forward else LAYOUT.part(peer, tag.chunk)
            operation = Operation(Kind.FORWARD if forward else Kind.BACKWARD, LAYOUT.place(part)[1], tag.microbatch)
            Listening.sent.append((priority, operation))
            return isend(tensor, peer, tag, priority=priority)

        engine.isend = listening


def what_was_sent(flags: str) -> tuple[list[Sent], int | None]:
    train(flags, plugins=(Listening,))
    return Listening.sent, Listening.in_flight_bytes


def test_the_sooner_its_receiver_needs_it_the_sooner_a_message_goes() -> None:
    ranks = run_forked(LAYOUT.stages, what_was_sent, FLAGS, timeout=120)

    needed = all_stages("interleaved-zb", LAYOUT)
    for rank, (sent, in_flight_bytes) in enumerate(ranks):
        by_priority: defaultdict[int, list[Operation]] = defaultdict(list)
        for priority, operation in sent:
            by_priority[priority].append(operation)
        first_to_last = [
            operation for priority in sorted(by_priority, reverse=True) for operation in by_priority[priority]
        ]
        assert first_to_last == [operation for operation in needed[1 - rank] if operation in first_to_last]
        assert len(first_to_last) == len(by_priority) == 3 * LAYOUT.microbatches
        assert in_flight_bytes == IN_FLIGHT_BYTES
