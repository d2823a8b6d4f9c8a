"""The condition that tells the owner of a job why the operator can't look after it. Pure.

It works on the status as it stands in the object: the status itself may be what can't be read.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from megatronapp.core.errors import MegatronAppError
from megatronapp.core.trainingjob import Condition, ConditionType, Reason
from megatronapp.operator.snapshots import Unreadable, format_time

MAX_MESSAGE = 1024


class UnreadableError(MegatronAppError):
    """Something that belongs to the job can't be read: nothing is decided from half of what is there."""

    def __init__(self, found: tuple[Unreadable, ...]) -> None:
        super().__init__("; ".join(one.text for one in found))


def with_error(status: dict[str, Any], generation: int, error: Exception, now: datetime) -> dict[str, Any] | None:
    """None when it is told already: for one generation and reason the first message stays, so that telling it is not
    news by itself."""
    reason = Reason.UNREADABLE_OBJECT if isinstance(error, UnreadableError) else Reason.UNEXPECTED_ERROR
    before = _condition(status)
    if (before.get("status"), before.get("reason"), before.get("observedGeneration")) == ("True", reason, generation):
        return None
    since = str(before.get("lastTransitionTime", "")) if before.get("status") == "True" else format_time(now)
    return _with(
        status, True, reason, f"{_text(error)}. It is tried again, at last every few minutes", since, generation
    )


def without_error(status: dict[str, Any], generation: int, now: datetime) -> dict[str, Any] | None:
    """None when there was none."""
    if _condition(status).get("status") != "True":
        return None
    return _with(
        status, False, Reason.RECONCILED, "the operator looks after the job again", format_time(now), generation
    )


def _text(error: Exception) -> str:
    if isinstance(error, MegatronAppError):
        return str(error)[:MAX_MESSAGE]
    return f"the operator can't look after the job: {type(error).__name__}: {error}"[:MAX_MESSAGE]


def _condition(status: dict[str, Any]) -> dict[str, Any]:
    kind = ConditionType.RECONCILE_ERROR
    return next((found for found in status.get("conditions") or () if found.get("type") == kind), {})


def _with(
    status: dict[str, Any], true: bool, reason: Reason, message: str, since: str, generation: int
) -> dict[str, Any]:
    condition = Condition(
        type=ConditionType.RECONCILE_ERROR,
        status="True" if true else "False",
        reason=reason,
        message=message,
        last_transition_time=since,
        observed_generation=generation,
    ).model_dump(mode="json", by_alias=True)
    others = [found for found in status.get("conditions") or () if found.get("type") != condition["type"]]
    return {**status, "conditions": [*others, condition]}
