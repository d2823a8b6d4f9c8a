"""What is wrong with a rank of somebody's own script is found, as in a run of our trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatronapp.detector.analyze import analyze
from tests.support.attached import SCRIPTS, run

SLOW = "faults:\n  - {kind: slow_compute, ranks: [2], from_step: 31, effect_ratio: 3}\n"


def flags(folder: Path, scenario: str) -> list[str]:
    file = folder / "scenario.yaml"
    file.write_text(scenario)
    return ["--trace-dir", str(folder), "--fault-scenario", str(file)]


@pytest.mark.long
@pytest.mark.timeout(400)
def test_the_slow_rank_of_a_ddp_loop_is_named(tmp_path: Path) -> None:
    ended = run(SCRIPTS / "ddp.py", 120, ranks=4, attach=flags(tmp_path, SLOW))

    assert ended.code == 0, ended.output
    report = analyze(tmp_path / "local" / "ddp" / "attempt-1")
    paged = [finding for finding in report.findings if finding.page]
    assert [(str(finding.kind), list(finding.ranks)) for finding in paged] == [("slow_gpu", [2])]
