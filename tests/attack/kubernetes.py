"""Objects of a cluster with any value anywhere: the operator's cache, its decisions and its statuses, beside a
TrainingJob that means no harm.

The executor is a stand-in that takes every write, since the API server's own answers are attacked elsewhere
(tests/integration/operator).
"""

from __future__ import annotations

import copy
import random
from collections import Counter
from pathlib import Path
from typing import Any

import yaml
from prometheus_client import CollectorRegistry

from megatronapp.core.errors import MegatronAppError
from megatronapp.core.trainingjob import Spec
from megatronapp.gateway.phases import JobPhases
from megatronapp.operator import json_text
from megatronapp.operator.actions import Create
from megatronapp.operator.api import _refusal
from megatronapp.operator.cache import Cache
from megatronapp.operator.controller import RETRY_ON, BreakerState, Controller
from megatronapp.operator.crd.schema import Schema, structural
from megatronapp.operator.gateway import readable
from megatronapp.operator.informers import InformerCache
from megatronapp.operator.kinds import JOBS, NODES, PODS, SERVICES, TRAINING_JOBS, Kind
from megatronapp.operator.metrics import Metrics
from megatronapp.operator.names import ATTEMPT_LABEL, JOB_LABEL, MANAGED_BY, RUN_LABEL, Key
from megatronapp.operator.observation import Observation
from megatronapp.operator.phases import phase_of_job
from megatronapp.operator.reconcile_error import UnreadableError
from megatronapp.operator.settings import OperatorSettings
from tests.attack.inputs import TEXTS, any_value, as_json, damaged, mutated
from tests.attack.session import Harm

ROOT = Path(__file__).parents[2]
INNOCENT, EVIL = Key("team", "innocent"), Key("team", "evil")
SPEC: Schema = structural(Spec)
NAMES = (
    "a",
    "data",
    "trainer",
    "gpt",
    "MEGATRONAPP_JOB",
    "--tensor-model-parallel-size",
    "2",
    "megatronapp.io/attempt",
)
TEMPLATE = {
    "metadata": {"labels": {"a": "b"}},
    "spec": {
        "containers": [
            {"name": "trainer", "env": [{"name": "A", "value": "b"}], "resources": {"limits": {"cpu": "1"}}}
        ],
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
        "volumes": [{"name": "v", "emptyDir": {}}],
    },
}
STATUS = {
    "phase": "Running", "attempt": 1, "restarts": 1, "startTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
    "conditions": [
        {"type": "PodsReady", "status": "True", "reason": "PodsReady", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    ],
    "excludedNodes": [{"name": "n", "since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z", "reason": "r"}],
}  # fmt: skip


class Executor:
    """Takes everything, and remembers what was created."""

    def __init__(self) -> None:
        self.created: Counter[str] = Counter()

    async def do(self, action: Any, observation: Observation) -> dict[str, Any] | None:
        if isinstance(action, Create):
            as_json(action.body)
            self.created[str(action.body["metadata"]["name"])] += 1
        return None

    async def write_status(self, body: dict[str, Any], before: Any, after: Any) -> dict[str, Any]:
        after.model_dump_json(by_alias=True)
        return {**body, "status": after.model_dump(mode="json", by_alias=True, exclude_none=True)}

    async def replace_status(self, body: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
        return {**body, "status": status}


class Operator:
    name = "operator"
    at_once = 1

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    async def start(self, folder: Path) -> None:
        self._executor = Executor()
        executor: Any = self._executor
        self._informers = InformerCache()
        metrics, settings = Metrics(CollectorRegistry()), OperatorSettings(coscheduling=True, volcano=True, jobset=True)
        cache = Cache(self._informers)
        self._controller = Controller(cache, executor, settings, metrics, BreakerState(lambda message: None))
        self._spec = _spec()
        self._version = 0
        self._informers.event(TRAINING_JOBS, self._training_job(INNOCENT), deleted=False)
        self._informers.event(NODES, _node("good"), deleted=False)

    async def execute(self, chance: random.Random) -> None:
        if chance.random() < 0.2:
            self._text(chance)
            return
        kind, good = self._object(chance)
        body = mutated(chance, good, chance.choice((0.01, 0.05, 0.2)))
        if not isinstance(body, dict):
            return
        try:
            sent = json_text.loads(as_json({**body, "metadata": _metadata(chance, good["metadata"])}))
        except MegatronAppError:
            return  # no server sends half characters
        self._informers.event(kind, sent, deleted=chance.random() < 0.1)
        for known in map(self._controller._cache.job, (EVIL, INNOCENT)):
            if known is not None:
                JobPhases.model_validate({"jobs": [phase_of_job(known)]})
        try:
            await self._controller.reconcile(EVIL)
        except (UnreadableError, *RETRY_ON) as error:
            self.seen[type(error).__name__] += 1
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001  the queue tries again, and the job's own status tells of it
            self.seen[f"told to the job: {type(error).__name__}"] += 1
        else:
            self.seen["reconciled"] += 1
        if chance.random() < 0.05:
            self._forget()

    async def check(self) -> None:
        """A job that means no harm gets its Job made, whatever lies beside it."""
        before = self._executor.created["innocent-1"]
        self._controller._cache._own_jobs.pop(INNOCENT, None)
        self._informers.event(TRAINING_JOBS, self._training_job(INNOCENT), deleted=False)
        await self._controller.reconcile(INNOCENT)
        if self._executor.created["innocent-1"] != before + 1:
            raise Harm("the innocent's Job was not made")

    async def stop(self) -> None:
        """Nothing runs."""

    def _text(self, chance: random.Random) -> None:
        """What the API server or the gateway answer, as bytes and as JSON."""
        good = as_json(self._training_job(EVIL))
        body = damaged(chance, good)
        try:
            json_text.loads(body)
        except MegatronAppError:
            self.seen["no JSON"] += 1
        _refusal(body)
        job = {"run": "a", "attempt": 1, "step": 5, "total_steps": 9, "step_seconds": 0.5, "eta_seconds": 3.0}
        finding = {
            "attempt": 1, "kind": "hang", "cause": "compute", "ranks": [1], "node": "n", "effect_ratio": None,
            "confidence": 1.0, "page": True, "opened_step": 4, "summary": "",
        }  # fmt: skip
        told, found = mutated(chance, job, 0.2), mutated(chance, [finding], 0.2)
        readable({**job, **told} if isinstance(told, dict) else job, found if isinstance(found, list) else [])

    def _forget(self) -> None:
        for kind in (JOBS, PODS, SERVICES, NODES):
            self._informers.listed(kind, [_node("good")] if kind == NODES else [])

    def _object(self, chance: random.Random) -> tuple[Kind, dict[str, Any]]:
        kind = chance.choice((*[TRAINING_JOBS] * 5, JOBS, JOBS, PODS, PODS, SERVICES, NODES))
        if kind == TRAINING_JOBS:
            body = self._training_job(EVIL)
            body["spec"] |= _fields(chance, SPEC)
            if chance.random() < 0.5:
                body["status"] = copy.deepcopy(STATUS)
            return kind, body
        if kind == NODES:
            return kind, _node(f"node-{chance.randrange(5)}")
        return kind, self._child(chance, kind)

    def _training_job(self, key: Key) -> dict[str, Any]:
        self._version += 1
        metadata = {
            "name": key.name, "namespace": key.namespace, "uid": f"run-{key.name}", "generation": 1,
            "resourceVersion": str(self._version), "creationTimestamp": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        body = {"apiVersion": "megatronapp.io/v1alpha1", "kind": "TrainingJob", "metadata": metadata}
        return {**body, "spec": copy.deepcopy(self._spec)}

    def _child(self, chance: random.Random, kind: Kind) -> dict[str, Any]:
        self._version += 1
        attempt = str(chance.randint(1, 3))
        labels = {JOB_LABEL: EVIL.name, RUN_LABEL: "run-evil", ATTEMPT_LABEL: attempt}
        metadata = {
            "name": f"evil-{attempt}", "namespace": EVIL.namespace, "uid": f"uid-{self._version}",
            "resourceVersion": str(self._version), "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app.kubernetes.io/managed-by": MANAGED_BY, **labels},
            "ownerReferences": [{"kind": "TrainingJob", "name": EVIL.name, "uid": "run-evil", "controller": True}],
        }  # fmt: skip
        terminated = {
            "exitCode": 1,
            "reason": "Error",
            "message": "error: it failed",
            "finishedAt": "2026-01-01T00:00:00Z",
        }
        containers = [{"name": "trainer", "restartCount": 1, "ready": True, "state": {"terminated": terminated}}]
        condition = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "m"}
        status = {
            "phase": "Failed",
            "containerStatuses": containers,
            "conditions": [condition],
            "active": 1,
            "ready": 1,
        }
        spec = {"nodeName": "node-1", "completions": 1, "suspend": False, "containers": [{"name": "trainer"}]}
        return {"metadata": metadata, "spec": spec, "status": status}


def _node(name: str) -> dict[str, Any]:
    mark = '{"since": "2026-01-01T00:00:00Z", "until": "2026-01-02T00:00:00Z", "job": "team/evil"}'
    return {
        "metadata": {"name": name, "uid": name, "resourceVersion": "1", "annotations": {"megatronapp.io/slow": mark}},
        "spec": {"taints": [{"key": "megatronapp.io/slow", "effect": "NoSchedule"}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def _fields(chance: random.Random, schema: Schema, share: float = 0.2) -> dict[str, Any]:
    """Some of an object's fields, each with a value that the schema lets through: what the API server accepts."""
    fields: dict[str, Schema] = schema.get("properties", {})
    return {name: _of_schema(chance, field) for name, field in fields.items() if chance.random() < share}


def _of_schema(chance: random.Random, schema: Schema) -> Any:
    if "enum" in schema:
        return chance.choice(schema["enum"])
    kind = schema.get("type")
    if kind == "object" and "properties" in schema:
        required = {name: _of_schema(chance, schema["properties"][name]) for name in schema.get("required", ())}
        return _fields(chance, schema, 0.7) | required
    if kind == "object":
        return {chance.choice(NAMES): any_value(chance) if chance.random() < 0.3 else "a" for _ in range(3)}
    if kind == "array":
        return [_of_schema(chance, schema["items"]) for _ in range(chance.choice((0, 1, 2, 50)))]
    if kind in ("integer", "number"):
        low, high = schema.get("minimum", -(2**31)), schema.get("maximum", 2**31 - 1)
        return chance.choice((low, high, low + 1, min(high, max(low, 1))))
    if kind == "boolean":
        return chance.random() < 0.5
    return chance.choice((*NAMES, *TEXTS[:12]))


def _spec() -> dict[str, Any]:
    documents = yaml.safe_load_all((ROOT / "examples/k8s/gpt-tiny.yaml").read_bytes())
    job = next(each for each in documents if each["kind"] == "TrainingJob")
    return {**job["spec"], "podTemplate": TEMPLATE, "remediation": {"mode": "ExcludeNode"}}


def _metadata(chance: random.Random, good: dict[str, Any]) -> dict[str, Any]:
    """As the API server lets it be: every object has its names, and labels and annotations are texts."""
    found = dict(good)
    for name in ("labels", "annotations"):
        texts = {
            key: chance.choice(TEXTS) if chance.random() < 0.1 else text for key, text in good.get(name, {}).items()
        }
        found[name] = {key: text for key, text in texts.items() if chance.random() > 0.03}
    if chance.random() < 0.05:
        found["ownerReferences"] = []
    if chance.random() < 0.05:
        found["creationTimestamp"] = chance.choice(TEXTS)
    return found
