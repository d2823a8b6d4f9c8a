"""How a job's owner is told that the operator can't look after it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from megatronapp.core.trainingjob import Status
from megatronapp.operator.reconcile_error import UnreadableError, with_error, without_error
from megatronapp.operator.snapshots import Unreadable, format_time
from tests.unit.operator.samples import NOW

LATER = NOW + timedelta(minutes=5)
OTHER = {"type": "Running", "status": "True", "reason": "FromANewerOperator"}
UNREADABLE = Unreadable("jobs", "team", "gpt-1", 7, "ValueError: label x")


def condition_of(status: dict[str, Any] | None) -> dict[str, Any]:
    assert status is not None
    found: dict[str, Any] = next(c for c in status["conditions"] if c["type"] == "ReconcileError")
    return found


def test_an_unexpected_error_is_a_condition_beside_what_was_there() -> None:
    found = with_error({"phase": "?", "conditions": [OTHER]}, 3, OverflowError("too far"), NOW)

    assert found is not None
    assert found["phase"] == "?"
    assert OTHER in found["conditions"]
    condition = condition_of(found)
    assert (condition["status"], condition["reason"]) == ("True", "UnexpectedError")
    assert "OverflowError: too far" in condition["message"]
    assert condition["lastTransitionTime"] == format_time(NOW)


def test_telling_it_is_no_news_until_the_spec_is_changed() -> None:
    """Else each write would be an event, and each event another look."""
    first = with_error({}, 3, ValueError("at 0x7f01"), NOW)
    assert first is not None

    assert with_error(first, 3, ValueError("at 0x7f02"), LATER) is None
    again = condition_of(with_error(first, 4, ValueError("at 0x7f02"), LATER))
    assert again["lastTransitionTime"] == format_time(NOW)
    assert again["observedGeneration"] == 4


def test_an_object_that_can_not_be_read_is_named() -> None:
    condition = condition_of(with_error({}, 1, UnreadableError((UNREADABLE,)), NOW))

    assert condition["reason"] == "UnreadableObject"
    assert condition["message"].startswith("jobs/gpt-1 can't be read (ValueError: label x); correct or delete it")


def test_it_is_cleared_once() -> None:
    failed = with_error({}, 3, ValueError("x"), NOW) or {}

    mended = without_error(failed, 3, LATER)

    assert (condition_of(mended)["status"], condition_of(mended)["reason"]) == ("False", "Reconciled")
    assert without_error(mended or {}, 3, LATER) is None
    assert without_error({}, 3, LATER) is None


def test_the_model_knows_the_condition() -> None:
    found = with_error({}, 3, ValueError("x" * 5000), NOW)

    assert len(Status.model_validate(found).conditions[0].message) < 1200
