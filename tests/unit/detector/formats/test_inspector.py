from __future__ import annotations

import pytest

from megatronapp.core.errors import DataError
from megatronapp.detector.analyze import analyze
from megatronapp.detector.formats import inspector
from tests.unit.detector.formats.inspector_files import write_dumps

TP_DP = {"0xa": (0, 1), "0xb": (2, 3), "0xc": (0, 2), "0xd": (1, 3), "0xe": (0, 1, 2, 3)}


@pytest.mark.parametrize("rank", range(4))
def test_the_rank_that_the_others_wait_for_is_named_and_none_that_waited_for_it(tmp_path, rank):
    write_dumps(tmp_path, TP_DP, {rank: 2_000.0})

    report = analyze(tmp_path)

    assert [(finding.ranks, finding.page) for finding in report.findings] == [((rank,), True)]
    assert (report.job.format, report.job.ranks, report.job.records) == ("NCCL Inspector", 4, 600)


@pytest.mark.parametrize("seed", range(4))
def test_nobody_is_accused_in_a_clean_run(tmp_path, seed):
    write_dumps(tmp_path, TP_DP, {}, seed=seed)

    assert analyze(tmp_path).findings == ()


def test_a_communicator_of_which_a_member_is_missing_is_not_judged(tmp_path):
    write_dumps(tmp_path, TP_DP, {1: 2_000.0})
    (tmp_path / "h-pid101.log").unlink()

    assert analyze(tmp_path).findings == ()


def test_a_last_line_that_is_cut_is_left_out(tmp_path):
    write_dumps(tmp_path, TP_DP, {})
    log = tmp_path / "h-pid100.log"
    log.write_bytes(log.read_bytes()[:-20])

    assert analyze(tmp_path).job.ranks == 4


@pytest.mark.parametrize(
    "line",
    [
        b'{"header": {"n_ranks": 2}}\n{}',
        b'{"header": {"n_ranks": 2}, "metadata": {"dump_timestamp_us": NaN}}\n{}',
        b'{"header": {"rank": 5, "n_ranks": 2}, "metadata": {"dump_timestamp_us": 1}, "coll_perf": {}}\n{}',
        b'{"header": {"n_ranks": 2}, "metadata": {"dump_timestamp_us": 1}}',
    ],
)
def test_nonsense_is_one_line_that_names_the_file(tmp_path, line):
    (tmp_path / "h-pid1.log").write_bytes(line)

    with pytest.raises(DataError, match=r"h-pid1\.log") as refused:
        inspector.read(inspector.find_dumps(tmp_path))
    assert "\n" not in str(refused.value)
