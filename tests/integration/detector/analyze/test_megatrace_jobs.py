"""Megatrace's logs of jobs that stood still: the right rank, or nobody."""

from __future__ import annotations

import random

import pytest

from megatronapp.core.errors import DataError
from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.analyze import analyze
from tests.unit.detector.formats.megatrace_files import Job, stand_still, write_interceptors_logs, write_logs

LAYOUTS = [
    Job(dp=4),
    Job(tp=4),
    Job(tp=2, dp=2),
    Job(pp=2, dp=2),
    Job(tp=2, pp=2),
    Job(tp=2, dp=2, pp=2),
    Job(pp=4, dp=2),
]
FIRST_STEP, LATER = (0.02, 0.24), (0.27, 0.98)
"""Shares of a rank's calls, of four steps."""


def stopped(folder, job, culprit, at, ahead=8, steps=4, hashed=True):
    """Logs of a job one rank of which stops after a share of its calls."""
    programs = [job.program(rank, steps) for rank in range(job.world)]
    called = stand_still(programs, {culprit: int(at * len(programs[culprit]))}, ahead)
    write_logs(folder, programs, called, hashed)
    return programs, called


@pytest.mark.parametrize("job", LAYOUTS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_the_rank_that_stopped_is_named_and_nobody_else(tmp_path, job, seed):
    chance = random.Random(f"{job}/{seed}")
    culprit, at = chance.randrange(job.world), chance.uniform(*LATER)
    stopped(tmp_path, job, culprit, at, ahead=chance.choice((1, 4, 30)))

    (finding,) = analyze(tmp_path).findings

    assert (finding.kind, finding.cause, finding.ranks, finding.page) == (Kind.HANG, Cause.HOST_CPU, (culprit,), True)


@pytest.mark.parametrize("job", LAYOUTS, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_in_the_first_step_communicators_are_not_all_known_and_no_innocent_is_named(tmp_path, job, seed):
    chance = random.Random(f"first/{job}/{seed}")
    culprit, at = chance.randrange(job.world), chance.uniform(*FIRST_STEP)
    stopped(tmp_path, job, culprit, at, ahead=chance.choice((1, 4, 30)))

    assert {finding.ranks for finding in analyze(tmp_path).findings if finding.page} <= {(), (culprit,)}


@pytest.mark.parametrize("seed", range(8))
def test_messages_whose_peer_is_not_known_accuse_no_innocent(tmp_path, seed):
    chance = random.Random(seed)
    job = Job(dp=2, pp=4, pairs=False)
    culprit = chance.randrange(job.world)
    stopped(tmp_path, job, culprit, chance.uniform(*LATER))

    findings = analyze(tmp_path).findings

    assert {finding.ranks for finding in findings} <= {(), (culprit,)}
    assert findings


@pytest.mark.parametrize("job", LAYOUTS, ids=str)
def test_a_job_that_ended_accuses_nobody(tmp_path, job):
    stopped(tmp_path, job, culprit=0, at=1.0)

    assert analyze(tmp_path).findings == ()


def test_a_ring_that_was_overwritten_still_tells_who_stopped(tmp_path):
    stopped(tmp_path, Job(tp=2, dp=2), culprit=3, at=0.95, steps=2000)

    (finding,) = analyze(tmp_path).findings

    assert finding.ranks == (3,)


def test_lines_out_of_order_change_nothing(tmp_path):
    stopped(tmp_path, Job(tp=2, dp=2), culprit=1, at=0.5)
    for log in tmp_path.iterdir():
        lines = log.read_text().splitlines()
        random.Random(log.name).shuffle(lines)
        log.write_text("\n".join(lines) + "\n")

    (finding,) = analyze(tmp_path).findings

    assert finding.ranks == (1,)


def test_a_log_that_was_cut_accuses_nobody(tmp_path):
    stopped(tmp_path, Job(tp=2, dp=2), culprit=0, at=1.0)
    log = tmp_path / "rank_2.log"
    log.write_bytes(log.read_bytes()[:-700])

    assert not any(finding.page and finding.ranks for finding in analyze(tmp_path).findings)


def test_a_log_that_ends_long_before_the_others_is_no_stop(tmp_path):
    programs, called = stopped(tmp_path, Job(dp=2), culprit=0, at=1.0, steps=800)
    write_logs(tmp_path, programs, [called[0], called[1] // 4])

    assert not any(finding.page and finding.ranks for finding in analyze(tmp_path).findings)


def test_a_rank_without_a_log_may_be_the_one_so_that_nobody_is_named(tmp_path):
    stopped(tmp_path, Job(tp=2, dp=2), culprit=1, at=0.5)
    (tmp_path / "rank_1.log").unlink()

    assert not any(finding.page and finding.ranks for finding in analyze(tmp_path).findings)


def test_older_logs_have_no_hash_and_tell_of_one_communicator(tmp_path):
    job = Job(dp=3)
    programs = [[call for call in job.program(rank, 4) if call[0] != "world"] for rank in range(3)]
    write_logs(tmp_path, programs, stand_still(programs, {1: 5}, ahead=4), hashed=False)

    (finding,) = analyze(tmp_path).findings

    assert finding.ranks == (1,)


@pytest.mark.parametrize("job", LAYOUTS, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_without_hash_who_shares_a_communicator_is_not_known_and_no_innocent_is_named(tmp_path, job, seed):
    chance = random.Random(f"streams/{job}/{seed}")
    culprit, at = chance.randrange(job.world), chance.uniform(0.15, 0.98)
    stopped(tmp_path, job, culprit, at, ahead=chance.choice((1, 4, 30)), hashed=False)

    report = analyze(tmp_path)

    assert {finding.ranks for finding in report.findings} <= {(), (culprit,)}
    assert "no groupHash" in report.job.notes[0]


def test_without_hash_a_rank_behind_all_others_is_named(tmp_path):
    stopped(tmp_path, Job(tp=2, dp=2), culprit=3, at=0.6, ahead=30, hashed=False)

    report = analyze(tmp_path)

    (finding,) = report.findings
    assert (finding.ranks, finding.cause, finding.page) == ((3,), Cause.HOST_CPU, True)
    assert report.hang is not None
    assert report.hang.ranks == (3,)


def test_without_hash_communicators_of_one_rank_and_a_job_that_ended_accuse_nobody(tmp_path):
    for rank, numbers in enumerate(((0, 1, 2), (0, 1, 2))):
        lines = [
            f"[save_count 1] [1.{place:09}] [Rank {rank}] Fun AllReduce Data 1 stream 0x{rank}a opCount {number}\n"
            for place, number in enumerate(numbers)
        ]
        lines += [
            f"[save_count 1] [2.{place:09}] [Rank {rank}] Fun AllReduce Data 1 stream 0x{rank}b opCount 0\n"
            for place in range(2 + rank)
        ]
        (tmp_path / f"rank_{rank}.log").write_text("".join(lines))

    report = analyze(tmp_path)

    assert (report.findings, report.hang) == ((), None)


def test_logs_with_and_without_hash_do_not_go_together(tmp_path):
    stopped(tmp_path, Job(dp=2), culprit=0, at=0.5)
    log = tmp_path / "rank_1.log"
    log.write_text("\n".join(line.split(" groupHash")[0] for line in log.read_text().splitlines()))

    with pytest.raises(DataError, match="some of these logs have groupHash, some not"):
        analyze(tmp_path)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "holds no call of NCCL"),
        (b"\x00\xff\n" * 50, "holds no call of NCCL"),
        (
            b"[save_count 1] [1.5] [Rank 7] Fun AllReduce Data 1 stream 0x1 opCount 0 groupHash a\n",
            "has lines of rank 7; each rank's log is a file of its own",
        ),
    ],
)
def test_what_is_none_of_its_logs_is_refused_in_one_line(tmp_path, content, error):
    (tmp_path / "rank_0.log").write_bytes(content)

    with pytest.raises(DataError, match=error):
        analyze(tmp_path)


def test_a_rank_that_skips_a_collective_is_named_for_its_program(tmp_path):
    programs = [[("tp0.0", "AllGather" if place % 3 else "AllReduce") for place in range(30)] for _ in range(4)]
    del programs[2][7]
    write_logs(tmp_path, programs, [20, 20, 19, 20])

    report = analyze(tmp_path)

    assert report.hang is not None
    assert (report.hang.ranks, report.hang.side, report.hang.communicator) == ((2,), "program", "tp0.0")
    assert "where others call" in report.findings[0].summary


@pytest.mark.parametrize("pods", [False, True])
def test_the_interceptors_logs_tell_the_same(tmp_path, pods):
    stopped(tmp_path, Job(tp=2, dp=2), culprit=1, at=0.6)
    before = analyze(tmp_path)
    write_interceptors_logs(tmp_path, pods)

    after = analyze(tmp_path)

    assert before.hang is not None
    assert (before.hang.ranks, before.hang.side) == ((1,), "host")
    assert after == before


def test_logs_of_two_runs_in_one_folder_are_refused(tmp_path):
    stopped(tmp_path, Job(tp=2), culprit=1, at=0.6)
    write_interceptors_logs(tmp_path, pods=False)
    log = tmp_path / "megatrace_20260101_000000_rank_1.log"
    (tmp_path / "megatrace_20260102_000000_rank_1.log").write_bytes(log.read_bytes())

    with pytest.raises(DataError, match="both of rank 1; give a folder with one run's logs"):
        analyze(tmp_path)
