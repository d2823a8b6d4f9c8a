"""A finding's effect is one number: in its words, its metric, and the page's words, whose tests read the same table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from megatronapp.core.findings import Finding, Kind
from megatronapp.core.metrics import job_labels
from megatronapp.detector.engine import Engine, Engines
from megatronapp.detector.exposition import Exposition
from megatronapp.detector.rules.base import percent
from tests.support.simulated import Fault, Job

TABLE = Path(__file__).resolve().parents[2] / "services/ui/test/data/effects.json"
SLOW, SINCE, STEPS = 3, 20, 45


@pytest.mark.parametrize("row", json.loads(TABLE.read_text()), ids=lambda row: str(row["ratio"]))
def test_an_effect_is_written_as_the_page_writes_it(row: dict[str, float | str]) -> None:
    assert percent(float(row["ratio"])) == row["text"]


def judged() -> tuple[CollectorRegistry, Engine, Finding]:
    """A job with a slow rank, and what was found."""
    registry, engines, job = CollectorRegistry(), Engines(), Job(faults=(Fault("compute", (SLOW,), SINCE, 1.25),))
    Exposition(registry, engines, 16)
    for message in (*job.hellos(), *(message for step in range(1, STEPS + 1) for message in job.step(step))):
        engines.feed(message)
    engine = engines.running[job.run]
    return registry, engine, next(finding for finding in engine.ledger.open if finding.kind is Kind.SLOW_GPU)


def test_a_findings_words_and_metrics_tell_its_own_numbers() -> None:
    registry, engine, finding = judged()

    who = job_labels(engine.job) | {"rank": str(SLOW), "node": finding.node}
    shown = {evidence.signal: evidence.text for evidence in finding.evidence}

    assert f"computes {percent(finding.effect_ratio)} slower" in finding.summary
    assert percent(finding.effect_ratio) in shown["compute_effect"]
    for signal in shown:
        effect = registry.get_sample_value("megatronapp_rank_effect_ratio", who | {"signal": signal})
        assert effect == finding.effect_ratio
    assert registry.get_sample_value("megatronapp_rank_slowdown_ratio", who) == finding.cost_ratio
    assert registry.get_sample_value("megatronapp_job_slowdown_ratio", job_labels(engine.job)) == finding.cost_ratio
