"""Steps out of messages that come late, twice, in another order, from new processes, or not at all."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.trace.membership import Membership, Process
from megatronapp.detector.assemble import MAX_PATIENCE_SECONDS, MAX_WAITING, Assembler
from megatronapp.detector.engine import Engines
from megatronapp.detector.members import KEPT_NUMBERS, Member
from megatronapp.detector.steps import StepTable
from megatronapp.v1 import trace_pb2
from tests.support.detecting import Verdicts, detect
from tests.support.simulated import GPU, Fault, Job, Layout

SECOND = 1_000_000_000


class Assembling(Assembler):
    """With the ranks' processes looked up, as the engine does."""

    def __init__(self) -> None:
        super().__init__()
        self.membership = Membership()

    def apply(self, message: trace_pb2.RankMessage) -> list[StepTable]:
        process = self.membership.apply(message)
        return self.feed(process, message) if process else []


def assembler(job: Job) -> Assembling:
    made = Assembling()
    for hello in job.hellos():
        made.apply(hello)
    return made


def feed(made: Assembling, messages: list[trace_pb2.RankMessage]) -> list[StepTable]:
    return [table for message in messages for table in made.apply(message)]


def test_a_step_is_out_when_its_last_rank_has_sent_it() -> None:
    job = Job(Layout(pp=2, dp=2, tp=2))
    made, messages = assembler(job), job.step(1)

    assert feed(made, messages[:-1]) == []
    (table,) = feed(made, messages[-1:])
    assert table.missing == ()
    assert np.isfinite(table.duration).all()
    assert [str(n) for n in sorted(set(table.ranks.pipeline.tolist()))] == ["0", "1"]
    assert {group.kind for group in table.communicators} == {"dp"}


def test_what_nccl_told_each_rank_is_in_the_step() -> None:
    job = Job(Layout(pp=1, dp=2))
    made, messages = assembler(job), job.step(1)
    messages[1].message.summary.nccl.add(operation="all_reduce", count=3)

    (table,) = feed(made, messages)

    assert [(rank, [tally.count for tally in sent]) for rank, sent in table.nccl] == [(1, [3])]


def test_orders_are_those_of_the_first_replica_of_which_all_stages_told() -> None:
    job = Job(Layout(pp=2, dp=2))
    made, messages = assembler(job), job.step(1)
    placements = {each.identity.rank: each.message.hello.placement for each in job.hellos()}
    for message in messages:
        place = placements[message.identity.rank]
        if (place.data, place.pipeline) != (0, 1):
            message.message.summary.order = bytes([place.data, place.pipeline])

    (table,) = feed(made, messages)

    assert table.orders == (bytes([1, 0]), bytes([1, 1]))


def test_ranks_of_another_role_are_no_peers_and_keep_their_own_stage() -> None:
    job = Job(Layout(pp=2, dp=2, tp=1))
    made = Assembling()
    for hello in job.hellos():
        if hello.message.hello.placement.data == 1:
            hello.message.hello.placement.role = "forward"
        made.apply(hello)

    (table,) = feed(made, job.step(1))

    forward = table.ranks.data == 1
    assert not set(table.ranks.pipeline[forward]) & set(table.ranks.pipeline[~forward])
    assert table.ranks.stage[forward].tolist() == table.ranks.stage[~forward].tolist() == [0, 1]


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_order_within_a_step_and_repeats_do_not_matter(seed: int) -> None:
    straight, shuffled = Job(seed=1), Job(seed=1)
    one, other = assembler(straight), assembler(shuffled)
    mixed = random.Random(seed)

    for step in range(1, 4):
        (expected,) = feed(one, straight.step(step))
        messages = shuffled.step(step) * 2
        mixed.shuffle(messages)
        (table,) = feed(other, messages)
        assert table.step == expected.step
        assert np.array_equal(table.duration, expected.duration)
        assert table.rows.cpu.sum() == expected.rows.cpu.sum()


def test_a_lost_summary_does_not_hold_up_later_steps() -> None:
    job = Job()
    made = assembler(job)
    feed(made, job.step(1))

    tables = feed(made, job.step(2)[1:] + job.step(3))

    assert [(t.step, t.missing) for t in tables] == [(2, (0,)), (3, ())]


def test_a_rank_that_stays_away_is_waited_for_a_few_times_only() -> None:
    job = Job()
    made = assembler(job)
    for step in range(1, 6):
        feed(made, job.step(step)[1:])
        made.expire(job.clock_ns + 60 * SECOND)

    (table,) = feed(made, job.step(6)[1:])

    assert table.missing == (0,)


def test_what_comes_after_its_step_is_counted_and_dropped() -> None:
    job = Job()
    made = assembler(job)
    first = job.step(1)
    feed(made, first[1:])
    made.expire(job.clock_ns + 60 * SECOND)

    assert feed(made, first[:1]) == []
    assert made.late == 1


def test_a_message_that_makes_no_sense_is_counted() -> None:
    job = Job()
    made, messages = assembler(job), job.step(1)
    messages[0].message.summary.count = b"123"

    (table,) = feed(made, messages)

    assert table.missing == (0,)
    assert made.invalid == 1


def test_recall_survives_a_fifth_of_lost_summaries_and_a_missing_rank() -> None:
    job = Job(Layout(pp=2, dp=4), GPU, (Fault("compute", (1,), 40, 1.1),), seed=3)
    verdicts, lost = Verdicts(detect(job, 0).engine), random.Random(4)
    for step in range(1, 60):
        kept = [m for m in job.step(step) if m.identity.rank != 6 and lost.random() > 0.2]
        verdicts.feed(step, kept)
        verdicts.said += [(step, f) for f in verdicts.engine.tick(job.clock_ns + 5 * SECOND)]

    assert verdicts.paged_ranks() == {1}


def test_a_clock_that_jumps_changes_nothing() -> None:
    job = Job(seed=5)
    verdicts = detect(job, 30)
    job.clock_ns += 3600 * SECOND
    for step in range(31, 50):
        verdicts.feed(step, job.step(step))

    assert verdicts.paged() == []


def test_a_summary_costs_no_look_at_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, looks = Assembler._expected, [0]

    def counted(assembler: Assembler) -> list[int]:
        looks[0] += 1
        return expected(assembler)

    monkeypatch.setattr(Assembler, "_expected", counted)
    job, steps = Job(Layout(pp=2, dp=32)), 5

    verdicts = detect(job, steps)

    assert verdicts.engine.newest is not None
    assert verdicts.engine.newest.step == steps
    assert looks[0] <= 2 * steps


def test_a_new_attempt_drops_what_comes_late_of_the_last() -> None:
    engines, job = Engines(), Job(seed=6)
    for message in job.hellos() + Job(seed=6, attempt=2).hellos():
        engines.feed(message)

    assert engines.feed(job.step(1)[0]) == []
    assert engines.running[job.run].attempt == 2


def member() -> Member:
    return Member(Process(trace_pb2.Identity()), {})


@given(numbers=st.lists(st.integers(1, KEPT_NUMBERS), max_size=60))
def test_a_repeated_number_is_known_whatever_the_order(numbers: list[int]) -> None:
    known, one = set[int](), member()

    for number in numbers:
        assert one.repeats(number) == (number in known)
        known.add(number)


def test_what_is_kept_of_numbers_stays_small_and_forgets_the_oldest() -> None:
    one = member()
    for number in range(1, 5 * KEPT_NUMBERS, 3):
        assert not one.repeats(number)
        assert sys.getsizeof(one.seen) < 200

    assert not one.repeats(2**64 - 1)
    assert sys.getsizeof(one.seen) < 200
    assert one.repeats(2**64 - 1)
    assert not one.repeats(1)


def test_a_world_that_is_only_claimed_costs_a_number() -> None:
    """Of a step of one rank that says it is one of a million: nothing is as long as the claim."""
    job = Job()
    made = Assembling()
    (hello, *_), (summary, *_) = job.hellos(), job.step(1)
    hello.message.hello.placement.sizes.world = 1 << 20

    assert feed(made, [hello, summary]) == []
    (table,) = made.expire(job.clock_ns + 60 * SECOND)

    assert (table.missing, table.unheard) == ((), (1 << 20) - 1)


def summary_of(job: Job, rank: int, step: int, duration_ns: int = SECOND) -> trace_pb2.RankMessage:
    summary = trace_pb2.StepSummary(step=step, duration_ns=duration_ns)
    return job._wrap(rank, summary=summary)


def test_a_rank_that_is_silent_keeps_few_steps_waiting() -> None:
    job = Job(Layout(pp=1, dp=2))
    made = assembler(job)
    for rank in (0, 1):
        feed(made, [summary_of(job, rank, 1, duration_ns=10**17)])

    steps = [table.step for table in feed(made, [summary_of(job, 0, step) for step in range(2, 3 * MAX_WAITING)])]

    assert len(steps) >= 2 * MAX_WAITING - 2
    assert steps == sorted(steps)


@pytest.mark.parametrize(("duration_ns", "waits_seconds"), [(10**17, MAX_PATIENCE_SECONDS), (60 * SECOND, 119)])
def test_a_step_waits_twice_the_last_ones_duration_within_reason(duration_ns: int, waits_seconds: float) -> None:
    job = Job(Layout(pp=1, dp=2))
    made = assembler(job)
    feed(made, [summary_of(job, rank, 1, duration_ns) for rank in (0, 1)])
    second = summary_of(job, 0, 2)
    feed(made, [second])

    assert made.expire(second.received_unix_ns + int(waits_seconds * SECOND)) == []
    (table,) = made.expire(second.received_unix_ns + int((MAX_PATIENCE_SECONDS + 1) * SECOND))
    assert (table.step, table.missing) == (2, (1,))


def test_one_rank_that_is_far_ahead_does_not_make_the_others_late() -> None:
    job = Job(Layout(pp=1, dp=4))
    made = assembler(job)
    feed(made, [*job.step(1), summary_of(job, 0, 10**12)])

    assert made.expire(job.clock_ns + 3600 * SECOND) == []
    (table,) = feed(made, job.step(2))
    assert (table.step, made.late, made.far) == (2, 0, 1)


def test_steps_far_ahead_do_not_push_out_those_that_wait_for_their_last_ranks() -> None:
    job = Job(Layout(pp=1, dp=4))
    made = assembler(job)
    second = [*feed(made, job.step(1)), *job.step(2)][1:]

    assert feed(made, second[:-1] + [summary_of(job, 0, 10**12 + i) for i in range(MAX_WAITING + 5)]) == []
    (table,) = feed(made, second[-1:])
    assert (table.step, table.missing) == (2, ())


def test_a_job_that_goes_on_far_ahead_is_believed_when_two_ranks_tell() -> None:
    job = Job(Layout(pp=1, dp=2))
    made = assembler(job)
    feed(made, job.step(1))

    (table,) = feed(made, [summary_of(job, rank, 10**6) for rank in (0, 1)])

    assert (table.step, table.missing) == (10**6, ())


def test_steps_that_the_job_takes_again_come_again() -> None:
    job = Job(Layout(pp=1, dp=4))
    made = assembler(job)
    first = [table.step for step in range(1, 31) for table in feed(made, job.step(step))]

    again = [table for step in range(21, 41) for table in feed(made, job.step(step))]

    assert first == list(range(1, 31))
    assert [(table.step, table.missing) for table in again] == [(step, ()) for step in range(21, 41)]
    assert made.late == 0


def test_what_waited_as_the_job_went_back_comes_out_first_and_what_is_late_of_it_never() -> None:
    job = Job(Layout(pp=1, dp=4))
    made = assembler(job)
    for step in range(1, 30):
        feed(made, job.step(step))
    *come, late = job.step(30)
    feed(made, come)

    back = [message for step in (21, 22) for message in job.step(step)]
    went = feed(made, [*back[:3], late, *back[3:]])

    assert [(table.step, table.missing) for table in went] == [(30, (3,)), (21, ()), (22, ())]
    assert made.late == 1


def test_one_rank_alone_takes_nobody_back() -> None:
    job = Job(Layout(pp=1, dp=4))
    made = assembler(job)
    for step in range(1, 21):
        feed(made, job.step(step))
    for step in range(5, 21):
        feed(made, job.step(step)[:1])

    tables = [table for step in range(21, 31) for table in feed(made, job.step(step))]

    assert [(table.step, table.missing) for table in tables] == [(step, ()) for step in range(21, 31)]
    assert made.late == 16


def test_a_backlog_of_steps_that_went_out_without_their_rank_is_late_and_no_way_back() -> None:
    job = Job(Layout(pp=1, dp=2))
    made = assembler(job)
    kept = []
    for step in range(1, 21):
        first, second = job.step(step)
        kept.append(second)
        feed(made, [first])
        made.expire(job.clock_ns + 60 * SECOND)

    assert feed(made, kept) == []
    assert made.late == 20


def test_communicators_that_no_rank_goes_by_any_more_are_forgotten() -> None:
    job = Job(Layout(pp=1, dp=2))
    made = assembler(job)
    kept = len(made._communicators)
    (member, _), ranks = made.members.values(), [0, 1]

    for number in range(1000):
        member.name([trace_pb2.Communicator(index=9, id=f"dp:{number}", kind="dp", ranks=ranks)])

    assert len(made._communicators) == kept + 1
    assert member.groups[9].id == "dp:999"
