"""What a job asks for beside Kubernetes' own kinds, and whether the installation allows it. Pure."""

from __future__ import annotations

from megatronapp.core.trainingjob import Spec


def unsupported(spec: Spec, allowed: frozenset[str]) -> str:
    """What to do about a wish that the operator has no rights for; "" when there is none."""
    requested = {"scheduling.gang": spec.scheduling.gang, "backend": spec.backend}
    for key, request in requested.items():
        if request in {"Coscheduling", "Volcano", "JobSet"} and request not in allowed:
            value = f"operator.backends.{request.lower()}"
            return f"{key} {request} is switched off in this installation: have {value} set, or leave {key} out"
    return ""
