import pickle
import resource

import pytest

from megatronapp.core.errors import DataError
from megatronapp.core.findings import Cause
from megatronapp.detector.formats import flight_recorder
from megatronapp.detector.offline import hung_job
from megatronapp.detector.signals.frontier import Side, blame

GROUPS = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}


def entry(record, sequence, state, *, name="nccl:all_reduce", p2p=False):
    return {
        "record_id": record,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": sequence,
        "profiling_name": name,
        "state": state,
        "retired": state == "completed",
        "is_p2p": p2p,
    }


def read(folder, *entries_by_rank):
    for rank, entries in enumerate(entries_by_rank):
        dump = {"version": "2.9", "pg_config": GROUPS, "entries": entries}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump))
    return flight_recorder.read(flight_recorder.find_dumps(folder))


def blamed(dumps):
    return [(b.rank, b.side) for b in blame(dumps.frontiers, dumps.members)]


def test_a_rank_that_did_not_enter_is_blamed_on_its_host(tmp_path):
    dumps = read(tmp_path, [entry(0, 4, "completed"), entry(1, 5, "scheduled")], [entry(0, 4, "completed")])

    assert blamed(dumps) == [(1, Side.HOST)]


def test_a_rank_whose_device_is_behind_its_queue_is_blamed_on_it(tmp_path):
    ahead = [entry(0, 4, "completed"), entry(1, 5, "scheduled")]
    behind = [entry(0, 3, "scheduled"), entry(1, 4, "scheduled"), entry(2, 5, "scheduled")]

    assert blamed(read(tmp_path, ahead, behind)) == [(1, Side.DEVICE)]


def test_the_one_who_does_not_send_is_blamed(tmp_path):
    waiting = [entry(0, 0, "scheduled", name="nccl:recv 0<-1", p2p=True)]

    assert blamed(read(tmp_path, waiting, [entry(0, 4, "completed")])) == [(1, Side.HOST)]


def test_nothing_outstanding_is_no_hang(tmp_path):
    assert not read(tmp_path, [entry(0, 4, "completed")], [entry(0, 4, "completed")]).hangs


def test_a_rank_without_a_dump_is_known_to_be_absent(tmp_path):
    assert read(tmp_path, [entry(0, 5, "scheduled")]).absent == {1}


def test_a_rank_without_a_dump_is_told_as_unknown_and_wakes_nobody(tmp_path):
    report = hung_job("job", read(tmp_path, [entry(0, 4, "completed"), entry(1, 5, "scheduled")]))

    named = [(finding.ranks, finding.cause, finding.page) for finding in report.findings if finding.ranks]
    assert named == [((1,), Cause.UNKNOWN, False)]


def test_a_ring_that_was_cut_tells_nothing_of_what_its_rank_is_in(tmp_path):
    """It holds operations 8 and 9 alone, and its counter says that 4 is the last that is complete."""
    ahead = [entry(0, 5, "completed"), entry(1, 6, "scheduled")]
    cut = [entry(8, 8, "scheduled"), entry(9, 9, "scheduled")]
    counters = {"0": {"last_completed_collective": 4}}
    for rank, (entries, status) in enumerate(((ahead, {}), (cut, counters))):
        for each in entries:
            each["pg_id"] = 0
        dump = {"version": "2.9", "pg_config": GROUPS, "entries": entries, "pg_status": status}
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump))

    dumps = flight_recorder.read(flight_recorder.find_dumps(tmp_path))

    assert dumps.cut == {1}
    assert max(position.completed for position in dumps.frontiers[1].values()) == 4


@pytest.mark.parametrize(
    "content", [b"\x80", pickle.dumps([1]), pickle.dumps({"version": 1, "pg_config": {}, "entries": [{}]})]
)
def test_something_else_is_an_error_that_names_the_file(tmp_path, content):
    (tmp_path / "_dump_0").write_bytes(content)

    with pytest.raises(DataError, match="_dump_0"):
        flight_recorder.read(flight_recorder.find_dumps(tmp_path))


def test_other_files_are_no_dumps(tmp_path):
    (tmp_path / "fault_injection.log").write_text("Rank 1")
    (tmp_path / "rank-0.pb").write_bytes(b"\x05hello")

    assert flight_recorder.find_dumps(tmp_path) == {}


def test_a_pickle_that_asks_for_gigabytes_is_refused_at_once(tmp_path):
    limit = resource.getrlimit(resource.RLIMIT_AS)
    memo_at_the_largest_index = b"\x80\x02]r\xff\xff\xff\xff."
    (tmp_path / "nccl_trace_rank_0").write_bytes(memo_at_the_largest_index)

    with pytest.raises(DataError, match="nccl_trace_rank_0"):
        flight_recorder.read(flight_recorder.find_dumps(tmp_path))

    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10 < 4 << 30
    assert resource.getrlimit(resource.RLIMIT_AS) == limit


def test_what_python_says_in_two_lines_is_one(tmp_path):
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"\x80\x02Px\n.")

    with pytest.raises(DataError) as refused:
        flight_recorder.read(flight_recorder.find_dumps(tmp_path))

    assert "\n" not in str(refused.value)


def test_a_group_whose_ranks_are_not_told_is_of_all_who_left_a_dump(tmp_path):
    """As PyTorch 2.4 writes them: ranks empty, `retired` not in each entry."""
    for rank, entries in enumerate([[entry(0, 4, "completed"), entry(1, 5, "scheduled")], [entry(0, 4, "completed")]]):
        for each in entries:
            del each["retired"]
        dump = {
            "version": "2.2",
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": ""}},
            "entries": entries,
        }
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump))

    dumps = flight_recorder.read(flight_recorder.find_dumps(tmp_path))

    assert dumps.absent == frozenset()
    assert blamed(dumps) == [(1, Side.HOST)]
