"""What the evidence of a finding that stays open shows."""

from __future__ import annotations

from tests.support.detecting import detect
from tests.support.simulated import GPU, Fault, Job, Layout

ONSET, LAST = 36, 220


def test_the_beginning_stays_in_view_however_long_a_finding_is_open() -> None:
    job = Job(Layout(), GPU, (Fault("compute", (1,), ONSET, 1.1),), seed=1)

    verdicts = detect(job, LAST)

    (finding,) = verdicts.open()
    for evidence in finding.evidence:
        steps = evidence.steps
        assert steps[0] < ONSET
        assert steps[-1] > LAST - 15
        assert list(steps) == sorted(set(steps))
        assert len(steps) == len(evidence.values) == len(evidence.expected) < 160
    beside_peers = finding.evidence[0]
    before = [value for step, value in zip(beside_peers.steps, beside_peers.values, strict=True) if step < ONSET]
    assert max(before) < 1.05
    assert min(beside_peers.values[len(before) :]) > 1.05
