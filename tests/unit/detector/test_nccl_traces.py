"""What NCCL told is judged from a trace's files as it is live."""

from __future__ import annotations

from pathlib import Path

from bench.scale.faults import Fault, What
from bench.scale.job import Job, Spec
from bench.scale.layout import Layout
from bench.scale.nccl import NcclFault, NcclRecords
from bench.scale.protocol import Speaker
from bench.scale.scenarios import QUIET
from bench.scale.tables import RowBook
from megatronapp.core.findings import Kind
from megatronapp.core.trace.file import path_for, write
from megatronapp.detector.analyze import analyze

LAYOUT, ONSET, STEPS = Layout(pp=1, dp=4, tp=8), 32, 44


def written(folder: Path, *slow: int) -> Path:
    """A job's trace folder; these ranks' network cards are slow from ONSET on, and steps are longer for it."""
    links = tuple(Fault(What.LINK, (rank,), 5.0, ONSET) for rank in slow)
    job = Job(Spec(LAYOUT, 15.0, QUIET, faults=links), 0)
    records = NcclRecords(LAYOUT, (NcclFault("nic", slow, 3.0, ONSET),) if slow else ())
    speaker = Speaker(job, RowBook(job.families))
    hellos = [speaker.hello(rank, 1) for rank in range(LAYOUT.world)]
    files = [path_for(folder, "team/job", 1, rank) for rank in range(LAYOUT.world)]
    files[0].parent.mkdir(parents=True)
    opened = [file.open("wb") for file in files]
    for file, hello in zip(opened, hellos, strict=True):
        write(file, hello)
    for _ in range(STEPS):
        step = job.step()
        operations = records.of_step(step.number)
        for rank, message in enumerate(speaker.summaries(step)):
            message.summary.nccl.extend(operations[rank])
            write(opened[rank], message)
    for file in opened:
        file.close()
    return folder


def test_a_slow_network_card_is_named_from_files(tmp_path: Path) -> None:
    report = analyze(written(tmp_path, 19))

    assert {(finding.kind, finding.ranks) for finding in report.findings} == {(Kind.SLOW_LINK, (19,))}


def test_nobody_is_named_from_the_files_of_a_clean_job(tmp_path: Path) -> None:
    assert analyze(written(tmp_path)).findings == ()
