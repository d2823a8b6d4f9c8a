"""Runs simulated jobs through the detector."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest
from _pytest.mark import ParameterSet

from megatronapp.core.findings import Finding, State
from megatronapp.detector.engine import Engine
from megatronapp.v1 import trace_pb2
from tests.support.simulated import Job


@dataclass
class Verdicts:
    """What an engine said, with the step of the message that made it say so."""

    engine: Engine
    said: list[tuple[int, Finding]] = field(default_factory=list)

    def opened(self) -> dict[str, tuple[int, Finding]]:
        """First word on each finding, by id."""
        first: dict[str, tuple[int, Finding]] = {}
        for step, finding in self.said:
            first.setdefault(finding.id, (step, finding))
        return first

    def paged(self) -> list[Finding]:
        """Last word on each finding that ever paged."""
        last = {finding.id: finding for _, finding in self.said if finding.page}
        return list(last.values())

    def paged_ranks(self) -> set[int]:
        return {rank for finding in self.paged() for rank in finding.ranks}

    def open(self) -> list[Finding]:
        return [f for f in self.engine.ledger.open if f.state is State.OPEN]

    def feed(self, step: int, messages: Iterable[trace_pb2.RankMessage]) -> None:
        for message in messages:
            self.said += [(step, finding) for finding in self.engine.feed(message)]


def seeds(count: int, *, at_once: int = 1) -> list[ParameterSet]:
    """Of simulated jobs that are alike but for their noise: the first run with `make test`, the rest with `make scale`.

    Each of them shows a defect of the rules; all of them show a rate.
    """
    return [pytest.param(seed, marks=[pytest.mark.scale] if seed >= at_once else []) for seed in range(count)]


def detect(job: Job, steps: int) -> Verdicts:
    """The verdicts on a job of so many steps."""
    verdicts = Verdicts(Engine(job.run, "test/simulated", job.attempt))
    verdicts.feed(0, job.hellos())
    for step in range(1, steps + 1):
        verdicts.feed(step, job.step(step))
    return verdicts
