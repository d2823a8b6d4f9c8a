"""The status of a job whose spec the model refuses, though the server took it. Pure."""

from __future__ import annotations

from datetime import datetime

from megatronapp.core.trainingjob import Condition, ConditionType, Reason, Status
from megatronapp.operator.snapshots import format_time

MAX_MESSAGE = 1024


def invalid_spec(status: Status, generation: int, message: str, now: datetime) -> Status:
    """What is running runs on; nothing is made until the spec is right."""
    before = next((c for c in status.conditions if c.type is ConditionType.INVALID_TEMPLATE), None)
    since = before.last_transition_time if before and before.status == "True" else format_time(now)
    condition = Condition(
        type=ConditionType.INVALID_TEMPLATE,
        status="True",
        reason=Reason.SPEC_REFUSED,
        message=message[:MAX_MESSAGE],
        last_transition_time=since,
        observed_generation=generation,
    )
    others = [c for c in status.conditions if c.type is not ConditionType.INVALID_TEMPLATE]
    return status.model_copy(update={"conditions": [*others, condition], "observed_generation": generation})
