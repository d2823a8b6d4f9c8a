"""Megatron-LM's pretrain_gpt.py attached on two H100 or H200, recorded: two replicas whose hosts set the pace in their
forward passes, and rank 1 made slow by half (from step 41 on), or with a neighbour on its device (from step 66 on).

Reduced beside the passes: with one hardware queue the other rank's last backward pass stands behind a reduction that
waits for rank 1, and takes as long as rank 1's own.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from megatronapp.core.findings import Cause, Finding, Kind
from megatronapp.detector.analyze import analyze

RECORDED = Path(__file__).parents[3] / "data"


def paged(recording: str, folder: Path) -> list[Finding]:
    attempt = folder / "attempt-1"
    attempt.mkdir()
    for packed in sorted((RECORDED / recording).glob("rank-*.pb.xz")):
        (attempt / packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))
    return [finding for finding in analyze(folder).findings if finding.page]


@pytest.mark.parametrize(
    ("recording", "causes", "slow_from", "least_ratio"),
    [
        ("h100/slow-reduced-after", {Cause.COMPUTE}, 41, 1.3),
        ("h100/slow-reduced-beside", {Cause.COMPUTE}, 41, 1.4),
        ("h100/neighbour-reduced-after", {Cause.INTERFERENCE}, 66, 1.9),
        ("h100/neighbour-reduced-beside", {Cause.INTERFERENCE}, 66, 1.9),
        ("h200/neighbour-reduced-beside", {Cause.INTERFERENCE}, 71, 1.9),
    ],
)
def test_only_the_disturbed_rank_is_paged(
    recording: str, causes: set[Cause], slow_from: int, least_ratio: float, tmp_path: Path
) -> None:
    (finding,) = paged(recording, tmp_path)

    assert (finding.kind, finding.ranks) == (Kind.SLOW_GPU, (1,))
    assert finding.cause in causes
    assert slow_from - 10 < finding.since_step <= slow_from + 2  # estimated
    assert finding.effect_ratio > least_ratio


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_nobody_else_is_paged_where_the_hosts_set_the_pace_of_both_ranks(gpu: str, tmp_path: Path) -> None:
    """What rank 1's device does longer fills in part the time in which it waits: it is found, over, and found again.

    Its host's share of the step is gone meanwhile, beside which rank 0's is as large as ever (H200: it was paged).
    """
    found = paged(f"{gpu}/slow-short-kernels", tmp_path)

    assert {(finding.kind, finding.ranks) for finding in found} == {(Kind.SLOW_GPU, (1,))}
