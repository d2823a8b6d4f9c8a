from __future__ import annotations

import pytest

from megatronapp.collector import jobs, notes
from megatronapp.collector.jobs import Attempt, Jobs, Rank
from megatronapp.core.errors import DataError, ForbiddenError
from megatronapp.core.trace.limits import MAX_COMMUNICATOR_BYTES
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
        process = whole.membership.take(who, trace_pb2.TraceMessage(hello=hello), 1)
        assert process is not None
        whole.rank_of(process)
        process.closed = number > 0

    found = notes.unpack(notes.pack(whole))

    assert {number: rank.process.closed for number, rank in found.ranks.items()} == {0: False, 2: True}


def test_a_note_keeps_the_recipe_once_and_the_devices() -> None:
    whole = attempt("run-1")
    for number in (1, 0, 2):
        who = trace_pb2.Identity(run="run-1", job="team/gpt", attempt=1, rank=number, incarnation=1)
        hello = trace_pb2.Hello(identity=who)
        hello.placement.device_id = f"GPU-{number}"
        hello.recipe.settings.add(name="seed", value="7" * 1000)
        process = whole.membership.take(who, trace_pb2.TraceMessage(hello=hello), 1)
        assert process is not None
        whole.on_hello(whole.rank_of(process), [])

    note = notes.pack(whole)
    found = notes.unpack(note)

    assert note.count(b"7" * 1000) == 1
    assert found.membership.recipe is not None
    assert found.membership.recipe == whole.membership.recipe
    assert [found.ranks[rank].process.placement.device_id for rank in range(3)] == ["GPU-0", "GPU-1", "GPU-2"]


def test_a_process_that_comes_after_a_clock_was_set_back_is_the_newer_one() -> None:
    known, now = Jobs(), 10**18
    whole = attempt("run-1")
    known.add(whole)
    who = [trace_pb2.Identity(run="run-1", job="team/gpt", attempt=1, incarnation=n) for n in (1, 2)]
    first = whole.membership.take(who[0], trace_pb2.TraceMessage(hello=trace_pb2.Hello(identity=who[0])), now)
    assert first is not None
    whole.rank_of(first)

    arrived = known.arrival_of_hello(who[1], now - 3600 * 10**9)
    whole.membership.take(who[1], trace_pb2.TraceMessage(hello=trace_pb2.Hello(identity=who[1])), arrived)

    assert whole.membership.ranks[0].identity == who[1]


def test_lost_events_that_add_up_to_more_than_a_number_holds_are_cut() -> None:
    whole = attempt("run-1")
    whole.dropped = {(0, 1): 2**64 - 1, (0, 2): 2**64 - 1}

    assert notes.job_record(whole).dropped == 2**63 - 1
