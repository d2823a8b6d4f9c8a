"""The platform is somebody else's trouble: a script ends as it would alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.attached import SCRIPTS, run

STEPS = 4


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_collector_that_is_not_there_changes_nothing(tmp_path: Path, free_port: int) -> None:
    plain = run(SCRIPTS / "ddp.py", STEPS)

    attached = run(SCRIPTS / "ddp.py", STEPS, attach=["--collector-address", f"127.0.0.1:{free_port}"])

    assert attached.code == plain.code == 0
    assert attached.lines("loss", "heavy") == plain.lines("loss", "heavy")
    assert attached.output.count("collector_unreachable") == 1
