from __future__ import annotations

import pytest

from megatronapp.core.errors import ConfigError, DataError, NotFoundError
from megatronapp.detector.formats import layout, megatrace
from tests.unit.detector.formats.megatrace_files import Job, write_logs


def traffic(folder, job, steps=2):
    programs = [job.program(rank, steps) for rank in range(job.world)]
    write_logs(folder, programs, [len(program) for program in programs])
    return megatrace.traffic_of(megatrace.read(megatrace.find_logs(folder)))


@pytest.mark.parametrize(
    "job",
    [Job(dp=4), Job(tp=4), Job(pp=4), Job(tp=2, dp=2), Job(pp=2, dp=2), Job(tp=2, pp=2), Job(tp=2, dp=4, pp=2),
     Job(tp=4, dp=2, pp=2), Job(pp=4, dp=2), Job(tp=2, dp=2, pp=4, pairs=False)],
    ids=str,
)  # fmt: skip
def test_sizes_are_inferred_from_the_communicators(tmp_path, job):
    found = layout.infer(job.world, traffic(tmp_path, job))

    assert found is not None
    assert (found.tp, found.dp, found.pp) == (job.tp, job.dp, job.pp)


def test_nothing_is_inferred_from_communicators_that_several_layouts_have():
    assert layout.infer(4, layout.Traffic({"a": (0, 1), "b": (2, 3)}, {"a": 9, "b": 9}, frozenset())) is None


def test_dp_is_computed(tmp_path):
    (tmp_path / "config.yaml").write_text("TP: 2\nPP: 4\nworld_size: 16\n")

    told = layout.read_config(tmp_path / "config.yaml")

    assert (told.tp, told.pp, told.dp) == (2, 4, 2)


@pytest.mark.parametrize(
    "text",
    ["", "[1]", "TP: 2", "TP: 2\nPP: 0\nworld_size: 8", "TP: x\nPP: 1\nworld_size: 8", "TP: 3\nPP: 1\nworld_size: 8"],
)
def test_a_config_that_makes_no_sense_is_one_line(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)

    with pytest.raises(ConfigError, match=r"config\.yaml: .*(must hold|no multiple)"):
        layout.read_config(tmp_path / "config.yaml")


def test_a_config_that_is_not_there_is_one_line(tmp_path):
    with pytest.raises(NotFoundError, match="give the job's config"):
        layout.read_config(tmp_path / "config.yaml")


@pytest.mark.parametrize(
    ("told", "says"),
    [
        (layout.Layout(2, 1, 1, "config.yaml"), "world_size 2, and there is a file of rank 3"),
        (layout.Layout(1, 4, 1, "config.yaml"), "ranks 0, 2 have a communicator, as with TP 2, PP 1, DP 2"),
    ],
)
def test_a_config_that_contradicts_the_logs_is_refused(tmp_path, told, says):
    with pytest.raises(DataError, match=says):
        layout.check(told, 3, traffic(tmp_path, Job(tp=2, dp=2)))


def test_a_config_that_agrees_is_taken(tmp_path):
    layout.check(layout.Layout(2, 2, 1, "config.yaml"), 3, traffic(tmp_path, Job(tp=2, dp=2)))
