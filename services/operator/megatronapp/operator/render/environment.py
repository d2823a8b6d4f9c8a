"""The environment of a pod: torchrun's variables and the platform's."""

from __future__ import annotations

from typing import Any

from megatronapp.core.trainingjob.reserved import TOKEN_FOLDER
from megatronapp.operator.render.plan import Plan

MASTER_PORT = 29500
INDEX_ANNOTATION = "batch.kubernetes.io/job-completion-index"


def environment(plan: Plan) -> list[dict[str, Any]]:
    """What launcher and trainer read (architecture's names), then the user's own, which can't shadow it; nor can
    `envFrom`, over which Kubernetes lets `env` win."""
    own = [variable.model_dump(by_alias=True, exclude_none=True, exclude_unset=True) for variable in plan.spec.env]
    return [*platform_environment(plan), *own]


def platform_environment(plan: Plan) -> list[dict[str, Any]]:
    return [*_torchrun(plan), *_render_settings(plan)]


def _torchrun(plan: Plan) -> list[dict[str, Any]]:
    """A static rendezvous at the first pod: the world's size holds for the whole attempt."""
    return [
        _value("PET_NNODES", plan.nodes),
        _value("PET_NPROC_PER_NODE", plan.spec.proc_per_node),
        _field("PET_NODE_RANK", f"metadata.annotations['{INDEX_ANNOTATION}']"),
        _value("PET_MASTER_ADDR", f"{plan.name}-0.{plan.service}"),
        _value("PET_MASTER_PORT", MASTER_PORT),
        _value("PET_MAX_RESTARTS", 0),
    ]


def _render_settings(plan: Plan) -> list[dict[str, Any]]:
    variables = {
        "MEGATRONAPP_RUN_ID": plan.job.metadata.uid,
        "MEGATRONAPP_JOB": plan.full_name,
        "MEGATRONAPP_ATTEMPT": plan.attempt,
        "MEGATRONAPP_FIRST_NODE_RANK": plan.first_node or "",
        "MEGATRONAPP_TOKEN_FILE": f"{TOKEN_FOLDER}/token",
        "MEGATRONAPP_COLLECTOR_ADDRESS": plan.platform.collector_of(plan.job.metadata.uid),
        **_tls(plan),
        "MEGATRONAPP_GATEWAY_ADDRESS": plan.platform.gateway_address,
        "MEGATRONAPP_CHECKPOINT_DIR": _checkpoints(plan),
    }
    found = [_value(name, value) for name, value in variables.items() if value != ""]
    return [*found, _field("MEGATRONAPP_NODE_NAME", "spec.nodeName")]


def _tls(plan: Plan) -> dict[str, str]:
    """Where the agent finds the certificates: beside the token."""
    if not plan.platform.collector_tls_secret:
        return {}
    files = {"MEGATRONAPP_COLLECTOR_CA_FILE": "ca.crt"}
    if plan.platform.collector_mutual_tls:
        files |= {
            "MEGATRONAPP_COLLECTOR_CLIENT_CERTIFICATE_FILE": "tls.crt",
            "MEGATRONAPP_COLLECTOR_CLIENT_KEY_FILE": "tls.key",
        }
    return {name: f"{TOKEN_FOLDER}/{file}" for name, file in files.items()}


def _checkpoints(plan: Plan) -> str:
    mount = plan.spec.checkpoint_mount.rstrip("/")
    return f"{mount}/{plan.full_name}" if mount else ""


def _value(name: str, value: object) -> dict[str, Any]:
    return {"name": name, "value": str(value)}


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
