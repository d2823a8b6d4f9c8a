"""Cases that are recorded of real ranks, here two on this host's processors."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bench.corpus import case, gpus, ours, record
from bench.corpus.outside import Deed, FromOutside
from megatronapp.core.errors import UsageError
from megatronapp.core.findings import Kind
from megatronapp.core.scenario import FaultKind, HangSide, Scenario
from tests.faults.harness import MODEL, WORLD

KILLED = next(each for each in gpus.OF_TWO if each.name == "DP2: kill on 1")
KIT = record.Kit(2, MODEL, gpus.PAIRS, standing_seconds=14.0, start_seconds=120.0)
STOPPED = FromOutside("DP2: rank 1 is stopped", "DP2", Scenario(), Deed.STOP, 1)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_rank_that_is_stopped_from_outside_is_recorded_packed_and_named(tmp_path: Path) -> None:
    record.record(tmp_path, [STOPPED], KIT)
    (folder,) = case.find(tmp_path)
    case.pack(folder)

    with case.opened(folder) as found:
        (fault,) = found.label.faults
        pages = ours.judge(found)

    assert (fault.kind, fault.side, fault.ranks) == (FaultKind.HANG, HangSide.HOST, (1,))
    assert not list(folder.rglob("*.pb"))
    assert [(page.kind, set(page.ranks)) for page in pages] == [(Kind.HANG, {1})]


def test_what_would_not_be_over_in_time_is_not_begun(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record.record(tmp_path, [STOPPED], KIT, until=time.monotonic() + 1)

    assert list(tmp_path.rglob("*")) == []
    assert capsys.readouterr().err == "DP2: rank 1 is stopped: no time left\n"


@pytest.mark.timeout(120)
def test_where_no_rank_can_train_nothing_more_is_tried_and_why_is_said(tmp_path: Path) -> None:
    """Where the package of a plug-in was not installed, each case was said to have ended by its fault."""
    with pytest.raises(UsageError, match=r"before their first step.*no-such-flag"):
        record.record(tmp_path, [STOPPED], replace(KIT, model=(*MODEL, "--no-such-flag")))

    assert not list(tmp_path.rglob(case.LABEL))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_job_that_ends_by_its_fault_is_no_case_of_one_that_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record.record(tmp_path, [KILLED], KIT)

    assert not list(tmp_path.rglob(case.LABEL))
    assert "DP2: kill on 1: not recorded: all ranks ended by themselves" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.timeout(120)
def test_ranks_end_with_who_records_them(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-m", "bench.corpus", "record", str(tmp_path)]) as recorder:
        try:
            while len(list(tmp_path.rglob("rank-*.log"))) < WORLD:
                time.sleep(0.2)
            started = psutil.Process(recorder.pid).children(recursive=True)
        finally:
            recorder.kill()

    assert len(started) > WORLD
    assert psutil.wait_procs(started, timeout=20)[1] == []
