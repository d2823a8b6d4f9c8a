"""In what order a forward rank receives weights, and how many at once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from megatronapp.core.pipeline.partition import Mode, Partition
from megatronapp.core.pipeline.placement import Layout
from megatronapp.trainer.plugins.fbd import weights
from megatronapp.trainer.plugins.fbd.roles import Grid, Roles
from megatronapp.trainer.plugins.fbd.weights import EMBEDDING, Parameter, Receiving
from megatronapp.trainer.sharding import Shard

LAYERS, WIDTH = 3, 4


class FakeLink:
    """Of rank 0, which runs forward; keeps which layers' receives were posted."""

    def __init__(self) -> None:
        self.roles = Roles.of(2, Grid(tensor=1, pipeline=1), Grid(tensor=1, pipeline=1))
        self.place, self.twins = self.roles.place(0), (self.roles.place(1),)
        self.posted: list[int] = []
        self.turns: set[int] = set()
        self.waited: list[str] = []

    def receive(self, tensor: torch.Tensor, twin: Any, kind: Any, *, turn: int, **tag: Any) -> int:
        self.turns.add(turn)
        self.posted.append(tag["microbatch"])
        return len(self.posted)

    def wait_there(self, handle: int) -> None:
        self.waited.append(f"host {handle}")

    def wait_received(self, handle: int) -> None:
        self.waited.append(f"stream {handle}")


def receiving(link: Any) -> Receiving:
    partition = Partition.of(LAYERS, Layout(stages=1, microbatches=2), 1, Mode.LINEARS)
    parameters = [
        Parameter(layer, layer, f"layer {layer}", torch.zeros(WIDTH), Shard(length=WIDTH), split=False)
        for layer in range(LAYERS + 1)
    ]
    return Receiving(link, partition, parameters)


def test_what_fits_is_received_at_once_in_the_order_of_first_use() -> None:
    link = FakeLink()

    receiving(link).post(turn=0)

    assert link.posted == [0, 1, 2, 3]


def test_no_more_is_on_its_way_than_the_engine_keeps_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "AHEAD_BYTES", 1)
    link = FakeLink()
    coming = receiving(link)

    coming.post(turn=0)
    begun = list(link.posted)
    coming.wait(EMBEDDING)
    moved_up = list(link.posted)
    coming.wait(2)

    assert (begun, moved_up) == ([0], [0, 1])
    assert link.posted == [0, 1, 2]  # the first layer's were not waited for


def test_what_moves_up_later_is_received_from_the_turn_in_which_it_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "AHEAD_BYTES", 1)
    link = FakeLink()
    coming = receiving(link)

    coming.post(turn=7)
    coming.finish()

    assert link.posted == [0, 1, 2, 3]
    assert link.turns == {7}


def test_a_host_that_would_run_far_ahead_waits_for_each_layers() -> None:
    link = FakeLink()
    coming = receiving(link)
    coming.post(turn=0)

    coming.wait_for_first()
    coming.on_host = True
    coming.wait(EMBEDDING)
    coming.on_host = False
    coming.wait(1)

    assert link.waited == ["host 1", "host 1", "stream 1", "stream 2"]
