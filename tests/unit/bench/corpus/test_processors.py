"""What is recorded on processors, and on which."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from bench.corpus import processors, record
from bench.corpus.outside import FromOutside
from megatronapp.core.errors import UsageError
from megatronapp.core.scenario import FaultKind
from tests.faults.cases import ALL_LAYOUTS


def host(monkeypatch: pytest.MonkeyPatch, folder: Path, cores: int, threads: int) -> None:
    """A host whose cores have so many threads, numbered core after core and then again."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores * threads)))
    monkeypatch.setattr(processors, "_TOPOLOGY", folder)
    for each in range(cores * threads):
        file = folder / f"cpu{each}" / "topology" / "thread_siblings_list"
        file.parent.mkdir(parents=True)
        file.write_text(",".join(str(each % cores + cores * thread) for thread in range(threads)) + "\n")


@pytest.mark.parametrize(("cores", "threads", "jobs", "of_each"), [(64, 1, 10, 6), (32, 2, 7, 8), (16, 1, 2, 6)])
def test_each_job_has_whole_cores_of_its_own_and_one_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, threads: int, jobs: int, of_each: int
) -> None:
    host(monkeypatch, tmp_path, cores, threads)

    lanes = processors.lanes(99)

    assert [len(lane) for lane in lanes] == [of_each] * jobs
    taken = Counter(each % cores for lane in lanes for each in lane)
    assert set(taken.values()) == {threads}
    assert len(taken) < cores


def test_no_more_jobs_than_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, tmp_path, cores=64, threads=1)

    assert len(processors.lanes(3)) == 3


def test_a_host_without_room_for_two_jobs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host(monkeypatch, tmp_path, cores=12, threads=1)

    with pytest.raises(UsageError, match=r"need 13 cores, this process has 12; record with --jobs 1"):
        processors.lanes(2)


def test_the_first_cases_break_every_layout() -> None:
    cases = list(processors.planned(first=0, seeds=1))

    assert {case.layout for case in cases[: len(ALL_LAYOUTS)]} == set(ALL_LAYOUTS)


def test_all_kinds_but_deaths_are_recorded_in_all_layouts_where_they_can_be_told_and_a_fifth_is_clean() -> None:
    cases = list(processors.planned(first=0, seeds=1))

    kinds = {(case.layout, fault.kind) for case in cases for fault in case.scenario.faults}
    everywhere = set(FaultKind) - {FaultKind.KILL} - processors.OTHER_CALLS
    assert kinds == {(layout, kind) for layout in ALL_LAYOUTS for kind in everywhere} | {
        (layout, kind) for layout in processors.OF_FOUR for kind in processors.OTHER_CALLS
    }
    assert sum(case.clean for case in cases) >= len(cases) / 5
    assert {case.layout for case in cases if isinstance(case, FromOutside)} == set(ALL_LAYOUTS)


def test_of_a_pipeline_a_stage_in_the_middle_calls_something_else() -> None:
    cases = processors.planned(first=0, seeds=4)

    others = [fault for case in cases for fault in case.scenario.faults if fault.kind in processors.OTHER_CALLS
              and case.layout == processors.PIPELINE_OF_FOUR]  # fmt: skip
    assert {rank for fault in others for rank in fault.ranks} == {1, 2}


def test_each_seed_has_cases_of_its_own() -> None:
    folders = [record.folder_name(case.name) for case in processors.planned(first=0, seeds=4)]

    assert len(set(folders)) == len(folders)
