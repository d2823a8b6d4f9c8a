"""Real jobs on two GPUs, recorded: wavering hosts, and in the end a neighbour on one device."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.analyze import analyze

RECORDED = Path(__file__).parents[3] / "data" / "h200"


@pytest.mark.parametrize(
    ("recording", "disturbed_from"),
    [
        pytest.param("interference", 68, id="two replicas"),
        pytest.param("interference-pipeline", 48, id="two stages, no peers"),
    ],
)
def test_only_the_disturbed_rank_is_paged_within_three_steps(
    recording: str, disturbed_from: int, tmp_path: Path
) -> None:
    folder = tmp_path / "attempt-1"
    folder.mkdir()
    for packed in sorted((RECORDED / recording).glob("rank-*.pb.xz")):
        (folder / packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))

    report = analyze(tmp_path)

    (finding,) = (f for f in report.findings if f.page)
    assert (finding.kind, finding.cause, finding.ranks) == (Kind.SLOW_GPU, Cause.INTERFERENCE, (1,))
    assert disturbed_from <= finding.opened_step <= disturbed_from + 2
    assert 2.0 < finding.effect_ratio < 2.5
    assert finding.confidence >= 0.9
