from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from megatronapp.core.trainingjob import Status
from megatronapp.operator.controller import BreakerState, Controller
from megatronapp.operator.metrics import Metrics
from megatronapp.operator.names import Key
from megatronapp.operator.settings import OperatorSettings


def test_a_job_that_is_gone_leaves_the_metrics_and_no_other_does() -> None:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    for key in (Key("team", "gone"), Key("team", "kept"), Key("other", "gone")):
        metrics.note(key, Status(), Status(restarts=2))

    metrics.forget(Key("team", "gone"))

    text = generate_latest(registry).decode()
    assert 'restarts_total{namespace="team",training_job="gone"}' not in text
    for namespace, name in (("team", "kept"), ("other", "gone")):
        labels = {"namespace": namespace, "training_job": name}
        assert registry.get_sample_value("megatronapp_job_restarts_total", labels) == 2


async def test_a_job_that_was_deleted_is_forgotten_when_it_is_looked_at() -> None:
    registry = CollectorRegistry()
    metrics, key = Metrics(registry), Key("team", "gone")
    metrics.note(key, Status(), Status(restarts=1))
    cache: Any = SimpleNamespace(job=lambda key: None, forget=lambda key: None)
    executor: Any = None
    controller = Controller(cache, executor, OperatorSettings(), metrics, BreakerState(lambda message: None))

    await controller.reconcile(key)

    assert "training_job=" not in generate_latest(registry).decode()
