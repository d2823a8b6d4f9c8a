"""What a job asks for beside Kubernetes' own kinds, and whether the installation allows it. Pure."""

from __future__ import annotations

from megatronapp.core.trainingjob import Spec


def unsupported(spec: Spec, allowed: frozenset[str]) -> str:
    """What to do about a wish that the operator has no rights for; "" when there is none."""
    wishes = {"scheduling.gang": spec.scheduling.gang, "backend": spec.backend}
    for key, wish in wishes.items():
        if wish in {"Coscheduling", "Volcano", "JobSet"} and wish not in allowed:
            value = f"operator.backends.{wish.lower()}"
            return f"{key} {wish} is switched off in this installation: have {value} set, or leave {key} out"
    return ""
