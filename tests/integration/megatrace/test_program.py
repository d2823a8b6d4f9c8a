"""Four CPU ranks, one of which calls another collective than the others: a real collector and detector name it, and
nobody else, though the ranks are in their first steps and gloo ends one of them over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatronapp.core.findings import Cause
from tests.integration.megatrace.support import CULPRIT, hangs_of, scenario

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(150),
    pytest.mark.flaky(reruns=3, only_rerun="EndedByGlooError"),
]


@pytest.mark.parametrize("kind", ["skip_collective", "wrong_size"])
async def test_who_calls_something_else_is_named_and_nobody_else(tmp_path: Path, kind: str) -> None:
    seen = await hangs_of(tmp_path, scenario(tmp_path, f"kind: {kind}", from_step=4))

    hangs = seen.expected()
    assert [(hang.ranks, hang.cause) for hang in hangs] == [((CULPRIT,), Cause.DEADLOCK)]
    assert f"Rank {CULPRIT} calls all_reduce of" in hangs[0].summary
    assert "where others call all_reduce of 63680 float32" in hangs[0].summary
