"""Who makes others wait, of logs of jobs that are simulated: the right rank, or nobody."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from megatronapp.detector.formats import late_ranks, layout, megatrace, own_work
from tests.unit.detector.formats.megatrace_files import Job
from tests.unit.detector.formats.megatrace_runs import Run, write_run

LAYOUTS = [
    Job(dp=2),
    Job(dp=4),
    Job(tp=4),
    Job(tp=2, dp=2),
    Job(pp=2, dp=2),
    Job(tp=2, pp=2),
    Job(tp=2, dp=2, pp=2),
    Job(pp=4, dp=2),
    Job(tp=2, dp=2, pp=2, pairs=False),
]
TWO_HOSTS = {rank: (rank // 2) * 0.7 for rank in range(8)}


def found(folder, run):
    write_run(folder, run)
    logs = megatrace.read(megatrace.find_logs(folder))
    told = layout.infer(run.job.world, megatrace.traffic_of(logs))
    assert told is not None
    return late_ranks.find(late_ranks.measure(own_work.gather(logs), told))


@pytest.mark.parametrize("job", LAYOUTS, ids=str)
def test_a_slow_rank_is_named_and_nobody_who_waits_for_it(tmp_path, job):
    (slow,) = found(tmp_path, Run(job, slow=lambda rank, share: 1.2 if rank == job.world - 1 else 1.0))

    assert (slow.ranks, slow.certain, slow.ended_ns) == ((job.world - 1,), True, None)
    assert slow.effect_ratio == pytest.approx(1.2, abs=0.05)


def latest_callers(folder):
    """Megatrace's own rule, from its description: of the calls of one `groupHash` and `opCount`, the latest is slow. By
    rank how often."""
    calls = defaultdict(list)
    for rank, log in megatrace.read(megatrace.find_logs(folder)).ranks.items():
        for group, of in log.calls.items():
            for call in of:
                calls[group, call.number].append((call.at_ns, rank))
    return Counter(max(each)[1] for each in calls.values() if len(each) > 1)


@pytest.mark.parametrize("job", LAYOUTS, ids=str)
def test_nobody_is_accused_in_a_clean_run_in_which_megatraces_rule_accuses_somebody(tmp_path, job):
    assert found(tmp_path, Run(job, noise=0.1)) == []
    assert latest_callers(tmp_path).total() > 0


@pytest.mark.parametrize("job", LAYOUTS, ids=str)
@pytest.mark.parametrize("apart", [0.004, 1.7])
def test_clocks_that_differ_are_no_slow_rank(tmp_path, job, apart):
    assert found(tmp_path, Run(job, ahead={rank: rank // 2 * apart for rank in range(8)})) == []


def test_a_slow_rank_is_named_whatever_the_clocks(tmp_path):
    (slow,) = found(tmp_path, Run(Job(tp=2, dp=2), slow=lambda rank, share: 1.3 if rank == 1 else 1.0, ahead=TWO_HOSTS))

    assert slow.ranks == (1,)


def test_two_at_once_are_both_named(tmp_path):
    slow = found(tmp_path, Run(Job(tp=2, dp=2, pp=2), slow=lambda rank, share: 1.3 if rank in {0, 5} else 1.0))

    assert sorted(each.ranks for each in slow) == [(0,), (5,)]


def test_what_began_later_lasts_and_what_passed_has_ended(tmp_path):
    (tmp_path / "later").mkdir()
    (later,) = found(tmp_path / "later", Run(Job(dp=4), slow=lambda rank, share: 1.4 if rank == 2 < 5 * share else 1.0))
    (passed,) = found(
        tmp_path, Run(Job(dp=4), slow=lambda rank, share: 1.5 if rank == 2 and 0.3 < share < 0.6 else 1.0)
    )

    assert (later.ranks, later.ended_ns) == ((2,), None)
    assert passed.ranks == (2,)
    assert passed.ended_ns is not None
    assert passed.began_ns < passed.ended_ns


def test_a_stage_of_one_rank_is_compared_with_its_own_past(tmp_path):
    (slow,) = found(tmp_path, Run(Job(pp=4), slow=lambda rank, share: 1.4 if rank == 2 and share > 0.6 else 1.0))

    assert (slow.ranks, slow.beside_own_past) == ((2,), True)


def test_a_stage_of_one_rank_that_was_never_faster_is_not_accused(tmp_path):
    assert found(tmp_path, Run(Job(pp=4), slow=lambda rank, share: 1.4 if rank == 2 else 1.0)) == []


def test_all_who_slow_down_at_once_have_other_work(tmp_path):
    assert found(tmp_path, Run(Job(pp=4), slow=lambda rank, share: 1.4 if share > 0.6 else 1.0)) == []


def test_a_communicator_whose_transfers_are_slow_is_named_and_none_of_its_ranks_alone(tmp_path):
    job = Job(tp=4, dp=2)

    (slow,) = found(tmp_path, Run(job, transfer={"dp1.0": 0.01}))

    assert (slow.communicator, slow.ranks) == ("dp1.0", (1, 5))


def test_a_constant_lateness_that_a_clock_explains_is_not_certain(tmp_path):
    lines = {rank: [] for rank in range(2)}
    for number in range(400):
        for rank in lines:
            ns = 1_700_000_000 * 10**9 + number * 50_000_000 + rank * 8_000_000
            lines[rank].append(
                f"[save_count 1] [{ns // 10**9}.{ns % 10**9:09}] [Rank {rank}] Fun AllReduce Data 4 stream 0x1 "
                f"opCount {number} groupHash a"
            )
    for rank, own in lines.items():
        (tmp_path / f"rank_{rank}.log").write_text("\n".join(own) + "\n")
    logs = megatrace.read(megatrace.find_logs(tmp_path))

    work = late_ranks.measure(own_work.gather(logs), layout.Layout(1, 2, 1, "config.yaml"))

    assert [slow.certain for slow in late_ranks.find(work)] in ([], [False])
