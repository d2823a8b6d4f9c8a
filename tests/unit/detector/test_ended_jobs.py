"""A detector runs for months: what it knew of a job goes with the job's last engine."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from megatronapp.core.findings import Finding
from megatronapp.detector.engine import Engine, Engines
from megatronapp.detector.exposition import Exposition
from megatronapp.detector.findings import Moment
from megatronapp.v1 import trace_pb2
from tests.support.suspected import SLOW_GPU

JOB = "team/job"


def hear_of(engines: Engines, run: str) -> Engine:
    identity = trace_pb2.Identity(run=run, job=JOB, attempt=1)
    engines.feed(trace_pb2.RankMessage(identity=identity, message=trace_pb2.TraceMessage(heartbeat={})))
    return engines.running[run]


def find(engine: Engine) -> Finding:
    moment = Moment(20, 20 * 10**9, lambda at: at * 10**9)
    (finding,) = engine.ledger.update("steps", [SLOW_GPU], None, lambda suspicion: suspicion.cost_ratio, moment)
    return finding


def test_the_gate_of_a_job_without_refutations_goes_with_its_last_run() -> None:
    engines = Engines()
    for run in ("run-1", "run-2", "run-3"):
        hear_of(engines, run)
    gate = engines.gates.of(JOB)

    engines.forget("run-1", 0)
    engines.drop("run-2")
    while_one_runs = engines.gates.of(JOB)
    engines.forget("run-3", 0)

    assert while_one_runs is gate
    assert engines.gates.of(JOB) is not gate


def test_what_was_refuted_holds_for_the_job_s_next_run() -> None:
    engines = Engines()
    engine = hear_of(engines, "run-1")
    engines.gates.of(JOB).shut(find(engine))

    engines.drop("run-1")

    assert engines.gates.of(JOB).holds(SLOW_GPU, ())


def test_the_findings_of_a_run_that_goes_on_elsewhere_are_not_remembered() -> None:
    engines = Engines()
    engine = hear_of(engines, "run-1")
    exposition = Exposition(CollectorRegistry(), engines, 16)
    exposition.note(find(engine))

    exposition.forget(engine)

    assert not exposition._seen
