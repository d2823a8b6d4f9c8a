"""A real job on two GPUs, recorded: wavering hosts, and in the end a neighbour on one device."""

from __future__ import annotations

import lzma
from pathlib import Path

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.analyze import analyze

RECORDED = Path(__file__).parents[2] / "data" / "h200" / "interference"
DISTURBED_FROM = 68


def test_only_the_disturbed_rank_is_paged_and_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "attempt-1"
    folder.mkdir()
    for packed in sorted(RECORDED.glob("rank-*.pb.xz")):
        (folder / packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))

    report = analyze(tmp_path)

    (finding,) = (f for f in report.findings if f.page)
    assert (finding.kind, finding.cause, finding.ranks) == (Kind.SLOW_GPU, Cause.INTERFERENCE, (1,))
    assert finding.opened_step in (DISTURBED_FROM, DISTURBED_FROM + 1)
    assert 2.0 < finding.effect_ratio < 2.5
