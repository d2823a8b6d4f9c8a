from __future__ import annotations

import pytest

from megatronapp.collector import jobs, notes
from megatronapp.collector.jobs import Attempt, Jobs, Rank
from megatronapp.collector.received import from_record
from megatronapp.core.errors import DataError, ForbiddenError
from megatronapp.core.trace.limits import MAX_COMMUNICATOR_BYTES, MAX_KEPT_HEARTBEAT_BYTES
from megatronapp.core.trace.membership import Process
from megatronapp.v1 import trace_pb2


def attempt(run: str, job: str = "team/gpt", number: int = 1) -> Attempt:
    return Attempt(run, job, number, 1, 1)


def test_the_owner_of_an_expired_run_is_known_for_the_newest_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MAX_OWNERS", 2)
    known = Jobs({"older": "team/a"})
    for number in range(4):
        known.add(attempt(f"run-{number}"))

    known.forget([(f"run-{number}", 1) for number in range(3)])

    assert known.owners == {"run-1": "team/gpt", "run-2": "team/gpt", "run-3": "team/gpt"}
    with pytest.raises(ForbiddenError):
        known.check_owner(trace_pb2.Identity(run="run-1", job="team/other"))
    known.check_owner(trace_pb2.Identity(run="run-0", job="team/other"))


def test_communicators_take_bounded_memory_and_may_be_named_again() -> None:
    rank = Rank(Process(trace_pb2.Identity()))
    large = trace_pb2.Communicator(index=1, id="x" * (MAX_COMMUNICATOR_BYTES - 100))

    for _ in range(3):
        rank.learn([large])
    with pytest.raises(DataError, match="32 MiB"):
        rank.learn([trace_pb2.Communicator(index=2, id="y" * 200)])

    assert list(rank.communicators) == [1]


def test_a_note_leaves_out_a_rank_that_can_not_be_and_keeps_the_others() -> None:
    whole = attempt("run-1")
    for number, sizes in enumerate((4, 2**32 - 1, 4)):
        who = trace_pb2.Identity(run="run-1", job="team/gpt", attempt=1, rank=number, incarnation=1)
        hello = trace_pb2.Hello(identity=who)
        hello.placement.sizes.world = sizes
        process = whole.membership.take(who, trace_pb2.TraceMessage(hello=hello), "hello", 1)
        assert process is not None
        whole.rank_of(process)
        process.closed = number > 0

    found = notes.unpack(notes.pack(whole))

    assert {number: rank.process.closed for number, rank in found.ranks.items()} == {0: False, 2: True}


@pytest.mark.parametrize("part", ["job", "rank"])
def test_a_note_with_a_part_larger_than_any_memory_is_one_error(part: str) -> None:
    before = b"" if part == "job" else notes.pack(attempt("run-1"))

    with pytest.raises(DataError, match="the note of an attempt can't be read"):
        notes.unpack(before + b"\x80" * 9 + b"\x01")  # 2 ** 63 bytes


def test_a_note_keeps_the_recipe_once_and_the_devices() -> None:
    whole = attempt("run-1")
    for number in (1, 0, 2):
        who = trace_pb2.Identity(run="run-1", job="team/gpt", attempt=1, rank=number, incarnation=1)
        hello = trace_pb2.Hello(identity=who)
        hello.placement.device_id = f"GPU-{number}"
        hello.recipe.settings.add(name="seed", value="7" * 1000)
        process = whole.membership.take(who, trace_pb2.TraceMessage(hello=hello), "hello", 1)
        assert process is not None
        whole.on_hello(whole.rank_of(process), [])

    note = notes.pack(whole)
    found = notes.unpack(note)

    assert note.count(b"7" * 1000) == 1
    assert found.membership.recipe is not None
    assert found.membership.recipe == whole.membership.recipe
    assert [found.ranks[rank].process.placement.device_id for rank in range(3)] == ["GPU-0", "GPU-1", "GPU-2"]


def beat(seq: int, completed: int, step: int = 3, **fields: object) -> trace_pb2.TraceMessage:
    position = trace_pb2.Frontier(communicator=1, enqueued=9, started=9, completed=completed, peer=-1)
    told = trace_pb2.Heartbeat(step=step, phase=trace_pb2.PHASE_STEP, frontiers=[position], **fields)  # type: ignore[arg-type]
    return trace_pb2.TraceMessage(seq=seq, heartbeat=told)


def heard(whole: Attempt, *messages: trace_pb2.TraceMessage, first_step: int = 1, incarnation: int = 1) -> Attempt:
    """The attempt, after rank 0's Hello and these messages, one a second; 100 s from incarnation to incarnation."""
    who = trace_pb2.Identity(run=whole.run, job=whole.job, attempt=whole.attempt, rank=0, incarnation=incarnation)
    hello = trace_pb2.Hello(identity=who, schedule=trace_pb2.Schedule(first_step=first_step, total_steps=400))
    for second, message in enumerate([trace_pb2.TraceMessage(hello=hello), *messages], 100 * incarnation - 99):
        said = trace_pb2.RankMessage(identity=who, message=message, received_unix_ns=second * 10**9)
        whole.take(from_record(said.SerializeToString()))
    return whole


def test_operations_without_a_record_are_counted_once_also_after_a_restart() -> None:
    beats = [beat(number, 8, operations_lost=lost) for number, lost in enumerate((4, 9, 9), start=1)]
    whole = heard(attempt("run-1"), *beats[:2])
    again = notes.unpack(notes.pack(whole))
    who = trace_pb2.Identity(run="run-1", job="team/gpt", attempt=1, rank=0, incarnation=1)
    last = trace_pb2.RankMessage(identity=who, message=beats[2], received_unix_ns=9 * 10**9)

    lost = again.take(from_record(last.SerializeToString()))

    assert whole.ranks[0].operations_lost == 9
    assert (lost.events, lost.operations) == (0, 0)


def test_a_note_keeps_since_when_a_rank_stands_where_and_how_it_has_ended() -> None:
    messages = [beat(1, 7), beat(2, 8), beat(3, 8), beat(4, 8), beat(5, 8, closing=True)]

    found = notes.unpack(notes.pack(heard(attempt("run-1"), *messages)))

    rank = found.ranks[0]
    assert rank.since is not None
    assert rank.newest is not None
    assert (rank.since.seq, rank.since.unix_ns, rank.newest.seq, rank.newest.unix_ns) == (2, 3 * 10**9, 5, 6 * 10**9)
    assert (rank.newest.heartbeat.phase, rank.process.closed) == (trace_pb2.PHASE_STEP, True)
    assert rank.newest.heartbeat.frontiers[0].completed == 8
    assert notes.pack(found) == notes.pack(heard(attempt("run-1"), *messages))


def test_a_note_leaves_out_the_frontiers_of_a_heartbeat_that_is_too_large() -> None:
    large = beat(1, 7)
    large.heartbeat.frontiers.extend([large.heartbeat.frontiers[0]] * (1 << 14))

    note = notes.pack(heard(attempt("run-1"), large))

    assert len(note) < MAX_KEPT_HEARTBEAT_BYTES
    assert [rank.newest and rank.newest.seq for rank in notes.unpack(note).ranks.values()] == [1]


def test_the_goodbye_of_an_earlier_versions_note_tells_no_phase() -> None:
    whole = heard(attempt("run-1"))
    whole.ranks[0].process.closed = True

    found = notes.unpack(notes.pack(whole))

    assert (found.ranks[0].process.closed, found.ranks[0].newest) == (True, None)


def test_evaluations_outlive_a_restart_and_a_later_attempt_does_its_own_again() -> None:
    def at(seq: int, *steps: int, loss: float) -> trace_pb2.TraceMessage:
        found = [trace_pb2.Evaluation(split="valid", step=step, loss=loss) for step in steps]
        return beat(seq, 7, evaluations=found)

    known = Jobs()
    for each in (
        heard(attempt("run-1"), at(1, 10, loss=3.0), at(2, 20, 30, loss=2.0)),
        heard(attempt("run-1", number=2), at(1, 30, loss=1.5), first_step=21),
        attempt("run-1", number=3),
    ):
        known.add(notes.unpack(notes.pack(each)))

    told = [(each.step, each.loss) for each in known.evaluations(known.get("run-1"))]
    assert told == [(10, 3.0), (20, 2.0), (30, 1.5)]
    assert [each.step for each in known.evaluations(known.get("run-1", 1))] == [10, 20, 30]


def test_a_process_that_comes_after_a_clock_was_set_back_is_the_newer_one() -> None:
    known, now = Jobs(), 10**18
    whole = attempt("run-1")
    known.add(whole)
    who = [trace_pb2.Identity(run="run-1", job="team/gpt", attempt=1, incarnation=n) for n in (1, 2)]
    first = whole.membership.take(who[0], trace_pb2.TraceMessage(hello=trace_pb2.Hello(identity=who[0])), "hello", now)
    assert first is not None
    whole.rank_of(first)

    arrived = known.arrival_of_hello(who[1], now - 3600 * 10**9)
    whole.membership.take(who[1], trace_pb2.TraceMessage(hello=trace_pb2.Hello(identity=who[1])), "hello", arrived)

    assert whole.membership.ranks[0].identity == who[1]


def test_lost_events_that_add_up_to_more_than_a_number_holds_are_cut() -> None:
    whole = attempt("run-1")
    whole.dropped = 2**65

    assert notes.job_record(whole).dropped == 2**63 - 1


def test_lost_events_are_counted_once_over_a_restart_and_add_up_over_processes() -> None:
    whole = heard(attempt("run-1"), beat(1, 5, dropped=5))

    found = notes.unpack(notes.pack(whole))
    heard(found, beat(2, 6, dropped=7))
    heard(found, beat(1, 1, dropped=1), incarnation=2)

    assert (whole.dropped, found.dropped) == (5, 8)
