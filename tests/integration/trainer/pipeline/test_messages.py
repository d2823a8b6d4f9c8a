"""Both ends of every message call it the same, over torch and over the native transport: shown by the bytes themselves.

Each tensor travels with what its sender calls it, in elements of its own; the receiver compares. So the losses stay as
they are, and are compared, too.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any, Self

import pytest
import torch

from megatronapp.core.trace.message_id import Direction, MessageId
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.pipeline.identity import Pass
from megatronapp.trainer.pipeline.port import Handle, Message, Post, Transport
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from tests.support.forked import run_forked
from tests.support.training import TINY, train

STEPS, BATCHES = 3, 2
EVALUATED = f"--train-iters {STEPS} --eval-interval 2 --eval-iters {BATCHES}"
TWO = "--pipeline-model-parallel-size 2"
FOUR = "--pipeline-model-parallel-size 4 --num-layers 8"
VIRTUAL = "--num-virtual-stages-per-pipeline-rank 2"
NO_OVERLAP = "--no-overlap-p2p-communication"
NATIVE = "--p2p-transport native"
LAYOUTS = {
    "1F1B, 2 stages": (2, 1, TWO),
    "1F1B, 4 stages": (4, 1, FOUR),
    "interleaved, 2 stages": (2, 2, f"{TWO} {VIRTUAL}"),
    "interleaved, 2 stages, no overlap": (2, 2, f"{TWO} {VIRTUAL} {NO_OVERLAP}"),
    "interleaved, 4 stages": (4, 2, f"{FOUR} {VIRTUAL}"),
    "interleaved, 4 stages, no overlap": (4, 2, f"{FOUR} {VIRTUAL} {NO_OVERLAP}"),
}
WITHOUT_WHEEL = pytest.mark.skipif(find_spec("megatronapp.rdma") is None, reason="pip install native/rdma")
TRANSPORTS = [pytest.param("", id="torch"), pytest.param(NATIVE, id="native", marks=WITHOUT_WHEEL)]

DIGIT_BITS, DIGITS = 12, 7
Name = tuple[int, int, int, MessageId]
"""(step, source, destination, what the schedule calls it)"""


@dataclass
class ObservedMessages:
    """The messages of one rank."""

    sent: list[Name] = field(default_factory=list)
    received: list[Name] = field(default_factory=list)
    labelled: list[Name] = field(default_factory=list)
    """By the bytes that came."""
    events: Counter[str] = field(default_factory=Counter)
    losses: list[float] = field(default_factory=list)


def digits(step: int, name: MessageId) -> torch.Tensor:
    number = step << 42 | name.pack()
    return torch.tensor([float(number >> DIGIT_BITS * i & (1 << DIGIT_BITS) - 1) for i in range(DIGITS)])


def number_of(tail: torch.Tensor) -> tuple[int, MessageId]:
    number = sum(int(digit) << DIGIT_BITS * i for i, digit in enumerate(tail.tolist()))
    return number >> 42, MessageId.unpack(number & (1 << 42) - 1)


class LabelledReceive:
    def __init__(self, handle: Handle, post: Post, wire: torch.Tensor, on_label: Any) -> None:
        self._handle, self._post, self._wire, self._on_label = handle, post, wire, on_label
        self.is_completed = handle.is_completed

    def wait(self) -> None:
        self._handle.wait()
        on_label, self._on_label = self._on_label, lambda step, name: None
        on_label(*number_of(self._wire[-DIGITS:]))
        self._post.tensor.data.copy_(self._wire[:-DIGITS].view_as(self._post.tensor))


class Labelling:
    """A transport around another that sends each message's name behind its tensor."""

    def __init__(self, inner: Transport, rank: int, observed: ObservedMessages) -> None:
        self._inner, self._rank, self._observed = inner, rank, observed
        self.errors, self.ordered = inner.errors, inner.ordered
        self.begin, self.end, self.close = inner.begin, inner.end, inner.close

    def post(self, posts: Sequence[Post], *, batch: bool) -> list[Handle]:
        labelled = [post._replace(tensor=self._wire(post)) for post in posts]
        handles = self._inner.post(labelled, batch=batch)
        return [
            handle
            if post.message.sends
            else LabelledReceive(handle, post, wire.tensor, self._on_label_of(post.message))
            for handle, post, wire in zip(handles, posts, labelled, strict=True)
        ]

    def _wire(self, post: Post) -> torch.Tensor:
        message, flat = post.message, post.tensor.detach().reshape(-1)
        if message.sends:
            self._observed.sent.append((message.step, self._rank, message.peer, message.id))
            return torch.cat([flat, digits(message.step, message.id)])
        self._observed.received.append((message.step, message.peer, self._rank, message.id))
        return torch.empty(flat.numel() + DIGITS)

    def _on_label_of(self, message: Message) -> Any:
        def on_label(step: int, name: MessageId) -> None:
            self._observed.labelled.append((step, message.peer, self._rank, name))

        return on_label


observed = ObservedMessages()


class Watcher(Plugin):
    """Labels all messages, and counts what an observer is notified of."""

    name = "watcher"

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        assert context.pipeline is not None
        context.pipeline.transport = Labelling(context.pipeline.transport, context.identity.rank, observed)
        watcher = cls()
        context.pipeline.observe(watcher)
        return watcher

    def posting(self, messages: Sequence[Message]) -> None:
        observed.events["posting"] += len(messages)

    def posted(self, messages: Sequence[Message], handle: Handle) -> None:
        observed.events["posted"] += len(messages)

    def waiting(self, messages: Sequence[Message]) -> None:
        observed.events["waiting"] += len(messages)

    def ended(self, messages: Sequence[Message]) -> None:
        observed.events["ended"] += len(messages)

    def idling(self) -> None:
        """How often depends on how busy the host is."""


def watched(flags: str) -> ObservedMessages:
    observed.losses = train(flags, plugins=(Watcher,)).losses
    return observed


def plain(flags: str) -> list[float]:
    return train(flags).losses


@cache
def stock_losses(stages: int, flags: str) -> list[float]:
    """Without a watcher; once for all transports."""
    return run_forked(stages, plain, flags)[-1]


def expected(stages: int, chunks: int) -> list[Name]:
    """Of the run: training steps, an evaluation of two batches after step 2 and one, of the test set, after step 3."""
    microbatches = 4
    names = []
    for step, batches in ((1, 0), (2, BATCHES), (3, BATCHES)):
        for batch in range(1 + batches):
            plan = Pass(
                stages=stages,
                chunks=chunks,
                microbatches=microbatches,
                group=stages if chunks > 1 else microbatches,
                forward_only=batch > 0,
                first=batch * microbatches,
            )
            for stage in range(stages):
                after, before = (stage + 1) % stages, (stage - 1) % stages
                names += [(step, stage, after, name) for name in plan.sends(stage, Direction.FORWARD)]
                names += [(step, stage, before, name) for name in plan.sends(stage, Direction.BACKWARD)]
    return sorted(names)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(
    "layout",
    [pytest.param(each, marks=() if each == "interleaved, 2 stages" else pytest.mark.long) for each in LAYOUTS],
)
def test_both_ends_call_every_message_the_same_and_no_two_alike(layout: str, transport: str) -> None:
    stages, chunks, options = LAYOUTS[layout]
    flags = f"{TINY} {EVALUATED} {options}"

    ranks = run_forked(stages, watched, f"{flags} {transport}")

    sent = sorted(name for rank in ranks for name in rank.sent)
    assert sent == sorted(name for rank in ranks for name in rank.received)
    assert sent == expected(stages, chunks)
    assert len(set(sent)) == len(sent)
    for rank in ranks:
        assert sorted(rank.labelled) == sorted(rank.received)
        assert rank.events["posting"] == rank.events["posted"] == len(rank.sent) + len(rank.received)
        assert len(rank.received) <= rank.events["waiting"] == rank.events["ended"] <= rank.events["posted"]
    assert ranks[-1].losses == stock_losses(stages, flags)
