"""The format of a case."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.corpus import case
from bench.corpus.case import LABEL, TRACES, Injected, Label, Source
from bench.corpus.simulated import LAYOUTS, Planned
from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.findings import Cause, Kind
from megatronapp.core.scenario import FaultKind


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("corpus")
    Planned("0/DP8/clean", "DP8", 0).write(root)
    return root


def test_what_is_written_is_read(root: Path) -> None:
    (folder,) = case.find(root)

    found = case.read(folder)

    assert (found.label.name, found.label.world, found.label.faults) == ("0/DP8/clean", LAYOUTS["DP8"].world, ())
    assert sum(message.message.HasField("summary") for message in found.attempt.messages()) == 8 * 120


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "{}",
        '{"format": 2, "name": "a", "source": "simulated", "layout": "a", "world": 8}',
        '{"format": 1, "name": "a", "source": "simulated", "layout": "a", "world": 1e9}',
        '{"format": 1, "name": "a", "source": "simulated", "layout": "a", "world": 8, "more": 1}',
        " " * (2 << 20),
    ],
    ids=range(7),
)
def test_what_is_no_label_is_one_line_that_names_the_file(root: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / LABEL).write_text(text)

    with pytest.raises(DataError, match=r"case\.json") as caught:
        case.read(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_label_without_traces_is_refused(root: Path, tmp_path: Path) -> None:
    (folder,) = case.find(root)
    (tmp_path / LABEL).write_bytes((folder / LABEL).read_bytes())

    with pytest.raises(DataError, match=f"{TRACES} has 0 attempts"):
        case.read(tmp_path)


def test_a_folder_without_cases_says_how_some_are_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="make some with"):
        list(case.find(tmp_path))


def test_a_late_message_is_also_a_late_host_where_the_schedule_overlaps_its_messages_over_gloo() -> None:
    fault = Injected(kind=FaultKind.LATE_LINK, ranks=(3,), from_step=36, size=0.06, begun_unix_ns=0)

    def is_right(layout: str, source: Source, rank: int = 3) -> bool:
        label = Label(name="a", source=source, layout=layout, world=4, faults=(fault,))
        return label.explains(Kind.SLOW_HOST, Cause.HOST_CPU, {rank})

    assert is_right("PP2 x VPP2 x DP2", Source.RECORDED)
    assert not is_right("PP2 x VPP2 x DP2", Source.RECORDED, rank=1)
    assert not is_right("PP2 x VPP2 x DP2", Source.SIMULATED)
    assert not is_right("PP2 x DP2", Source.RECORDED)
