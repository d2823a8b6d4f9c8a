from pathlib import Path

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.core.trace import file as trace_file
from megatronapp.trainer.agent.files import TraceFile
from megatronapp.trainer.agent.outbox import Outgoing
from megatronapp.v1 import trace_pb2

IDENTITY = trace_pb2.Identity(job="team/job", attempt=2, rank=3)


def summary(step: int) -> Outgoing:
    return Outgoing.of(trace_pb2.TraceMessage(seq=step, summary=trace_pb2.StepSummary(step=step)))


def test_messages_are_on_disk_before_the_file_is_closed(tmp_path: Path) -> None:
    sink = TraceFile(tmp_path, IDENTITY)

    for step in (1, 2, 3):
        sink.put(summary(step))

    assert [m.summary.step for m in trace_file.read(tmp_path / "team/job/attempt-2/rank-3.pb")] == [1, 2, 3]


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "team").write_text("in the way")

    with pytest.raises(UsageError, match="--trace-dir"):
        TraceFile(tmp_path, IDENTITY)


def test_a_full_disk_ends_the_file_and_is_counted(tmp_path: Path) -> None:
    path = trace_file.path_for(tmp_path, "team/job", 2, 3)
    path.parent.mkdir(parents=True)
    path.symlink_to("/dev/full")
    sink = TraceFile(tmp_path, IDENTITY)

    sink.put(summary(1))
    sink.put(summary(2))

    assert sink.dropped == 2
    sink.close(1.0)
