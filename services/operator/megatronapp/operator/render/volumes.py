"""A pod's volumes, each with where it is mounted."""

from __future__ import annotations

from typing import Any

import yaml

from megatronapp.core.trainingjob.reserved import TOKEN_FOLDER, TOKEN_VOLUME
from megatronapp.core.trainingjob.spec import Storage
from megatronapp.operator.names import DOMAIN
from megatronapp.operator.render.plan import Plan

SCENARIO_ANNOTATION = f"{DOMAIN}/fault-scenario"
SCENARIO_FOLDER = "/etc/megatronapp/faults"
SCENARIO = "scenario.yaml"
TOKEN_SECONDS = 3600
SHARED_MEMORY = "/dev/shm"  # noqa: S108  # of the container alone
TMP = "/tmp"  # noqa: S108
ATTACH_VOLUME = "megatronapp-attach"
ATTACH_FOLDER = "/opt/megatronapp-attach"
"""What ranks need of ours in an image that is not, and where their agent listens."""

Mounted = tuple[dict[str, Any], dict[str, Any]]
"""A volume and its mount, without the name that both share."""


def volumes(plan: Plan) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The pod's volumes and the container's mounts."""
    found: dict[str, Mounted] = {
        "shared-memory": (
            {"emptyDir": {"medium": "Memory", "sizeLimit": plan.spec.shared_memory.size}},
            {"mountPath": SHARED_MEMORY},
        ),
        "tmp": ({"emptyDir": {}}, {"mountPath": TMP}),
        TOKEN_VOLUME: token(plan),
        **_attached(plan),
        **_scenario(plan),
        **{f"storage-{volume.name}": _claim(volume) for volume in plan.spec.storage},
    }
    return (
        [{"name": name, **volume} for name, (volume, _) in found.items()],
        [{"name": name, **mount} for name, (_, mount) in found.items()],
    )


def scenario_file(plan: Plan) -> str:
    """Where the ranks find the fault scenario; "" without one."""
    return f"{SCENARIO_FOLDER}/{SCENARIO}" if _scenario(plan) else ""


def scenario_annotation(plan: Plan) -> dict[str, str]:
    """An inline scenario travels as an annotation: no object of its own is needed to make a file of it."""
    scenario = plan.spec.plugins.faults.scenario
    if scenario is None or not scenario.faults:
        return {}
    return {SCENARIO_ANNOTATION: yaml.safe_dump(scenario.model_dump(mode="json", exclude_defaults=True))}


def token(plan: Plan) -> Mounted:
    """A token that names the job and its run: it is worth nothing for another one, nor at the API server. Beside it
    the certificates for TLS, which the kubelet replaces as it does the token."""
    audience = f"megatronapp/{plan.full_name}/{plan.job.metadata.uid}"
    source = {"serviceAccountToken": {"audience": audience, "expirationSeconds": TOKEN_SECONDS, "path": "token"}}
    return {"projected": {"sources": [source, *_certificates(plan)]}}, {"mountPath": TOKEN_FOLDER, "readOnly": True}


def _certificates(plan: Plan) -> list[dict[str, Any]]:
    platform = plan.platform
    if not platform.collector_tls_secret:
        return []
    files = ("ca.crt", "tls.crt", "tls.key") if platform.collector_mutual_tls else ("ca.crt",)
    items = [{"key": file, "path": file} for file in files]
    return [{"secret": {"name": platform.collector_tls_secret, "items": items}}]


def _attached(plan: Plan) -> dict[str, Mounted]:
    mount = {"mountPath": ATTACH_FOLDER, "readOnly": True}
    return {ATTACH_VOLUME: ({"emptyDir": {}}, mount)} if plan.spec.attach else {}


def _claim(volume: Storage) -> Mounted:
    source = {"persistentVolumeClaim": {"claimName": volume.claim_name, "readOnly": volume.read_only}}
    return source, {"mountPath": volume.mount_path, "readOnly": volume.read_only}


def _scenario(plan: Plan) -> dict[str, Mounted]:
    mount = {"mountPath": SCENARIO_FOLDER, "readOnly": True}
    key = plan.spec.plugins.faults.scenario_from
    if key is not None:
        items = [{"key": key.key, "path": SCENARIO}]
        return {"fault-scenario": ({"configMap": {"name": key.name, "items": items}}, mount)}
    if scenario_annotation(plan):
        field = {"fieldPath": f"metadata.annotations['{SCENARIO_ANNOTATION}']"}
        return {"fault-scenario": ({"downwardAPI": {"items": [{"path": SCENARIO, "fieldRef": field}]}}, mount)}
    return {}
