"""Whose words are taken: a hang is over when something moves, whatever anybody says."""

from __future__ import annotations

from typing import Any

import pytest

from megatronapp.core.bus import MemoryBus, Topic
from megatronapp.core.findings import Cause, Finding, Kind
from megatronapp.detector.refutations import Refutations
from megatronapp.v1 import findings_pb2

RUN = "run-1"


class Kept:
    """Stands for the detector's outbox, and the store behind it."""

    def __init__(self, finding: Finding) -> None:
        self._finding = finding

    async def get(self, finding: str) -> Finding | None:
        return self._finding if finding == self._finding.id else None

    async def send(self) -> None:
        """Nothing waits to be sent."""


@pytest.mark.parametrize(("kind", "refuted"), [(Kind.SLOW_GPU, 1), (Kind.HANG, 0)])
async def test_a_hang_is_never_refuted_also_by_a_word_that_no_gateway_has_let_pass(kind: Kind, refuted: int) -> None:
    bus, heard = MemoryBus(), list[Finding]()
    finding = Finding(id="some", run=RUN, kind=kind, cause=Cause.COMPUTE)
    outbox: Any = Kept(finding)
    word = findings_pb2.Refutation(finding=finding.id)
    await bus.publish(Topic.REFUTATIONS, RUN, word.SerializeToString())

    await Refutations(bus, outbox, heard.append).read_again({RUN})

    assert len(heard) == refuted
