"""Nobody coordinates: beside weights and inputs a step has one message to each forward rank, its number."""

from __future__ import annotations

import argparse
from collections import Counter
from typing import Any, Self

import pytest

from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.fbd import FbdPlugin
from megatronapp.trainer.plugins.fbd.link import Link
from megatronapp.trainer.plugins.fbd.pending import Kind
from megatronapp.trainer.plugins.fbd.roles import Role
from tests.support.disaggregated import Case
from tests.support.forked import run_forked
from tests.support.varied_orders import trained

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")

STEPS, MICROBATCHES = 3, 4
CASE = Case("--micro-batch-size 1 --global-batch-size 4", forward_pipeline=1)


class Counting(Plugin):
    """What its rank sends to the other world, by kind."""

    name = "counting"
    sent: Counter[Kind]

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        cls.sent = sent = Counter()
        send = Link.send

        def counted(link: Link, tensor: Any, twin: Any, kind: Kind, **of: int) -> Any:
            sent[kind] += 1
            return send(link, tensor, twin, kind, **of)

        Link.send = counted  # type: ignore[method-assign]
        return cls()


def sent_by_a_rank(flags: str, *plugins: type[Plugin]) -> Counter[Kind]:
    trained(flags, *plugins, steps=STEPS)
    return Counting.sent


def test_a_step_has_no_message_but_its_number_weights_and_inputs() -> None:
    every = run_forked(CASE.ranks, sent_by_a_rank, CASE.asked, Counting, FbdPlugin)

    forward = [every[rank] for rank in CASE.roles.ranks(Role.FORWARD)]
    backward = sum((every[rank] for rank in CASE.roles.ranks(Role.BACKWARD)), Counter())
    assert forward == [Counter({Kind.INPUT: STEPS * MICROBATCHES})]
    assert set(backward) == {Kind.GO, Kind.WEIGHTS}
    assert backward[Kind.GO] == STEPS + 1  # and that there is no other
