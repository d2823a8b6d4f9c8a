"""The pod of one node: a container that starts the node's ranks, without privileges."""

from __future__ import annotations

from typing import Any

from megatronapp.core.trainingjob.reserved import TOKEN_VOLUME, TRAINER_CONTAINER
from megatronapp.operator.render import attached, gang
from megatronapp.operator.render.environment import environment, platform_environment
from megatronapp.operator.render.overlay import overlaid
from megatronapp.operator.render.placement import affinity, node_selector, tolerations, topology_annotations
from megatronapp.operator.render.plan import Plan
from megatronapp.operator.render.volumes import TMP, scenario_annotation, scenario_file, token, volumes

CONTAINER = TRAINER_CONTAINER
LAUNCHER = ("python", "-m", "megatronapp.trainer.jobs.pod", "-m", "megatronapp.trainer")
USER = 65532
SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
NETWORKS = "k8s.v1.cni.cncf.io/networks"


def pod_template(plan: Plan) -> dict[str, Any]:
    """What the spec asks for, then the user's overlay, then the platform's own once more: the model has refused an
    overlay that would change it, and here it could not."""
    template = {
        "metadata": {
            "labels": {**plan.spec.labels, **_labels(plan)},
            "annotations": {**plan.spec.annotations, **_annotations(plan)},
        },
        "spec": _pod_spec(plan),
    }
    return overlaid(overlaid(template, plan.spec.pod_template), _platforms(plan))


def _platforms(plan: Plan) -> dict[str, Any]:
    """By what a pod is known, finds the others and speaks."""
    volume, mount = token(plan)
    own = {"name": TOKEN_VOLUME}
    env = [*platform_environment(plan), *attached.environment(plan)]
    container = {"name": CONTAINER, "env": env, "volumeMounts": [{**own, **mount}]}
    return {
        "metadata": {"labels": _labels(plan)},
        "spec": {**_fixed(plan), "volumes": [{**own, **volume}], "containers": [container]},
    }


def _labels(plan: Plan) -> dict[str, str]:
    return {**gang.pod_labels(plan), **plan.labels()}


def _fixed(plan: Plan) -> dict[str, Any]:
    return {"restartPolicy": "Never", "subdomain": plan.service}


def _annotations(plan: Plan) -> dict[str, str]:
    rdma = plan.spec.rdma
    networks = {NETWORKS: ",".join(rdma.networks)} if rdma and rdma.networks else {}
    return {**networks, **topology_annotations(plan), **gang.pod_annotations(plan), **scenario_annotation(plan)}


def _pod_spec(plan: Plan) -> dict[str, Any]:
    spec, (pod_volumes, mounts) = plan.spec, volumes(plan)
    found = {
        **_fixed(plan),
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "serviceAccountName": spec.service_account_name,
        "priorityClassName": spec.scheduling.priority_class_name,
        "schedulerName": gang.scheduler(plan),
        "terminationGracePeriodSeconds": spec.termination_grace_period_seconds,
        "imagePullSecrets": [secret.model_dump() for secret in spec.image_pull_secrets],
        "nodeSelector": node_selector(plan),
        "tolerations": tolerations(plan),
        "affinity": affinity(plan),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": pod_volumes,
        **attached.pod_fields(plan, platform_environment(plan), SECURITY),
        "containers": [_container(plan, mounts)],
    }
    return {key: value for key, value in found.items() if value not in ("", [], {})}


def _container(plan: Plan, mounts: list[dict[str, Any]]) -> dict[str, Any]:
    spec = plan.spec
    found = {
        "name": CONTAINER,
        "image": plan.image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": attached.command(plan) if spec.attach else spec.command or list(LAUNCHER),
        "args": spec.args if spec.command else spec.trainer_args(scenario_file(plan)),
        "workingDir": "" if spec.attach else TMP,
        "env": [*attached.environment(plan), *environment(plan)],
        "envFrom": spec.env_from,
        "resources": _resources(plan),
        "volumeMounts": mounts,
        "securityContext": {
            **SECURITY,
            "capabilities": {"drop": ["ALL"], **({"add": ["IPC_LOCK"]} if spec.rdma else {})},
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    return {key: value for key, value in found.items() if value not in (None, "", [], {})}


def _resources(plan: Plan) -> dict[str, Any]:
    limits: dict[str, Any] = dict(plan.spec.resources.limits)
    if plan.spec.rdma:
        limits[plan.spec.rdma.resource_name] = plan.spec.rdma.count
    found = {"limits": limits, "requests": dict(plan.spec.resources.requests)}
    return {key: value for key, value in found.items() if value}
