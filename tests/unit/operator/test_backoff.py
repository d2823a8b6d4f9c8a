"""How long a job waits between failed attempts, and when it does not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from megatronapp.core.trainingjob import ConditionType, Phase, Reason, Status
from megatronapp.core.trainingjob.status import Condition
from megatronapp.operator.actions import Create, RecordEvent
from megatronapp.operator.moves import Finish, Next, Wait, choose
from megatronapp.operator.observation import Observation
from megatronapp.operator.reconcile import decide
from megatronapp.operator.snapshots import format_time
from tests.unit.operator.samples import NOW, child, observation, pod, training_job
from tests.unit.operator.world import World


def failed(seconds_ago: float, status: Status | None = None, attempt: int = 1, **spec: Any) -> Observation:
    """An attempt whose Job has failed then."""
    status = status or Status(observed_generation=1, attempt=attempt)
    ended = child(attempt, failing=True, failed=True, failed_at=NOW - timedelta(seconds=seconds_ago))
    pods = tuple(pod(index, attempt, phase="Failed", exit_code=1) for index in range(2))
    return observation(training_job(status, **spec), children=(ended,), pods=pods)


def test_the_next_attempt_waits_and_the_status_says_until_when() -> None:
    decision = decide(failed(3))

    starts = format_time(NOW + timedelta(seconds=7))
    (restarting,) = (c for c in decision.status.conditions if c.type is ConditionType.RESTARTING)
    assert decision.status.next_attempt_time == starts
    assert decision.status.phase is Phase.RESTARTING
    assert decision.status.restarts == 0
    assert f"attempt 2 starts at {starts}" in restarting.message
    assert decision.again_seconds == 7.0
    assert not any(isinstance(action, Create) for action in decision.actions)


def test_when_the_time_is_up_it_starts_and_counts() -> None:
    waiting = decide(failed(3)).status

    decision = decide(failed(10, waiting))

    assert isinstance(choose(failed(10, waiting)), Next)
    assert (decision.status.attempt, decision.status.restarts, decision.status.consecutive_failures) == (2, 1, 1)
    assert decision.status.next_attempt_time is None


@pytest.mark.parametrize(("failures", "seconds"), [(0, 10), (1, 20), (2, 40), (4, 160), (5, 300), (900, 300)])
def test_each_failure_in_a_row_doubles_the_wait_up_to_a_limit(failures: int, seconds: int) -> None:
    before = Status(observed_generation=1, attempt=1, consecutive_failures=failures)

    move = choose(failed(0, before))

    assert isinstance(move, Wait)
    assert move.until == NOW + timedelta(seconds=seconds)


def test_a_good_run_makes_the_next_failure_a_first_one() -> None:
    def ran(seconds: int) -> Status:
        since = format_time(NOW - timedelta(seconds=seconds))
        condition = Condition(
            type=ConditionType.RUNNING, status="True", reason=Reason.TRAINING, last_transition_time=since
        )
        return Status(observed_generation=1, attempt=1, consecutive_failures=4, conditions=[condition])

    short, good = choose(failed(0, ran(599))), choose(failed(0, ran(600)))

    assert isinstance(short, Wait)
    assert isinstance(good, Wait)
    assert (short.until - NOW, good.until - NOW) == (timedelta(seconds=160), timedelta(seconds=10))
    assert decide(failed(0, ran(600))).status.consecutive_failures == 0


def test_a_job_may_have_its_own_waits_or_none() -> None:
    own = choose(failed(0, failurePolicy={"backoffSeconds": 3, "maxBackoffSeconds": 2}))

    assert isinstance(own, Wait)
    assert own.until == NOW + timedelta(seconds=2)
    assert isinstance(choose(failed(0, failurePolicy={"backoffSeconds": 0})), Next)


def test_a_changed_spec_is_tried_at_once() -> None:
    before = Status(observed_generation=0, attempt=1)

    assert isinstance(choose(failed(0, before)), Next)


def test_what_the_operator_stopped_goes_on_at_once() -> None:
    moved = observation(
        training_job(Status(observed_generation=1, attempt=1)), children=(child(stopped="Remediation"),)
    )

    assert isinstance(choose(moved), Next)


def test_after_the_last_restart_nothing_is_waited_for() -> None:
    assert isinstance(choose(failed(0, Status(observed_generation=1, attempt=1, restarts=3))), Finish)


def test_a_deadline_does_not_wait_for_the_next_attempt() -> None:
    started = Status(observed_generation=1, attempt=1, start_time=format_time(NOW - timedelta(seconds=61)))

    move = choose(failed(0, started, activeDeadlineSeconds=60))

    assert isinstance(move, Finish)
    assert move.reason is Reason.DEADLINE_EXCEEDED


def test_each_of_several_restarts_for_one_reason_is_an_event_of_its_own() -> None:
    """They follow each other so fast that the job never runs between."""
    told: list[RecordEvent] = []
    status = Status(observed_generation=1, attempt=1)
    for attempt in (1, 2, 3):
        for seconds_ago in (1, 400):
            decision = decide(failed(seconds_ago, status, attempt))
            told += [a for a in decision.actions if isinstance(a, RecordEvent) and a.reason == Reason.RANK_FAILED]
            status = decision.status

    assert [event.message.split(":")[0] for event in told] == ["attempt 1", "attempt 2", "attempt 3"]


def test_restarts_without_a_wait_are_events_too() -> None:
    status, told = Status(observed_generation=1, attempt=1), 0
    for attempt in (1, 2, 3):
        decision = decide(failed(1, status, attempt, failurePolicy={"backoffSeconds": 0}))
        told += sum(isinstance(a, RecordEvent) and a.reason == Reason.RANK_FAILED for a in decision.actions)
        status = decision.status

    assert told == 3


def test_three_restarts_take_as_long_as_their_waits() -> None:
    world = World()
    world.settle()
    began = world.now
    for _ in range(3):
        world.end(world.ranks()[0], 1)
        world.settle()

    assert world.made == ["gpt-1", "gpt-2", "gpt-3", "gpt-4"]
    assert (world.now - began).total_seconds() == 10 + 20 + 40
