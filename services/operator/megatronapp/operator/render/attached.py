"""`spec.attach`: MegaScan, and MegaScope if asked for, on the user's own command, in an image with no word of ours.

An init container lays what a rank needs onto a volume. The agent is a sidecar, under its own interpreter, which sees
the ranks' processes and ends after them.
"""

from __future__ import annotations

import json
from typing import Any

from megatronapp.core.trainingjob.reserved import TOKEN_VOLUME
from megatronapp.operator.render.plan import Plan
from megatronapp.operator.render.volumes import ATTACH_FOLDER, ATTACH_VOLUME, TMP, token

START_FOLDER = f"{ATTACH_FOLDER}/start"
SOCKET = f"{ATTACH_FOLDER}/agent.sock"
IN_FRONT = f'export PYTHONPATH="{START_FOLDER}${{PYTHONPATH:+:$PYTHONPATH}}"; exec "$0" "$@"'
"""An image may have a PYTHONPATH of its own, which only a process in it knows."""
AGENT_RESOURCES = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}


def command(plan: Plan) -> list[str]:
    """The user's, as Python in it finds our start hook."""
    return ["/bin/sh", "-c", IN_FRONT, *plan.spec.command]


def environment(plan: Plan) -> list[dict[str, Any]]:
    if not plan.spec.attach:
        return []
    flags = [*plan.spec.plugins.scan.flags, *plan.spec.plugins.scope.flags]
    return [
        {"name": "MEGATRONAPP_ATTACH", "value": json.dumps(flags)},
        {"name": "MEGATRONAPP_AGENT_SOCKET", "value": SOCKET},
    ]


def pod_fields(plan: Plan, variables: list[dict[str, Any]], security: dict[str, Any]) -> dict[str, Any]:
    """What an attached pod has beside any other. `variables`: the platform's own."""
    if not plan.spec.attach:
        return {}
    ours = {
        "image": plan.platform.trainer_image,
        "imagePullPolicy": plan.spec.image_pull_policy,
        "workingDir": TMP,
        "securityContext": security,
        "resources": AGENT_RESOURCES,
    }
    folder, tmp = {"name": ATTACH_VOLUME, "mountPath": ATTACH_FOLDER}, {"name": "tmp", "mountPath": TMP}
    lay = {
        "name": "megatronapp-attach",
        "command": ["python", "-m", "megatronapp.trainer.attach.light", ATTACH_FOLDER],
        "volumeMounts": [folder],
    }
    agent = {
        "name": "megatronapp-agent",
        "restartPolicy": "Always",
        "command": ["python", "-m", "megatronapp.trainer.agent", "--serve", SOCKET],
        "env": variables,
        "volumeMounts": [folder, tmp, {"name": TOKEN_VOLUME, **token(plan)[1]}],
    }
    found = [{key: value for key, value in {**ours, **each}.items() if value} for each in (lay, agent)]
    return {"initContainers": found, "shareProcessNamespace": True}
