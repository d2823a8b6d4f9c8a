"""Four CPU ranks over gloo, one of which is broken: it is named with its side, and nobody else.

MEGATRONAPP_MEGATRACE_ROUNDS plays each so many times (default 1).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from megatronapp.core.findings import Cause, Finding
from tests.integration.megatrace.support import CULPRIT, FROM_STEP, hangs_of, rank, scenario, stopping_rank

ROUNDS = int(os.environ.get("MEGATRONAPP_MEGATRACE_ROUNDS", "1"))

pytestmark = [pytest.mark.long, pytest.mark.timeout(180), pytest.mark.parametrize("again", range(ROUNDS))]


async def broken(folder: Path, fault: str = "") -> Finding:
    """The one finding, as it was told last while the ranks stood."""
    flags = scenario(folder, fault) if fault else ""
    hangs = await hangs_of(folder, flags, rank if fault else stopping_rank, fault or "SIGSTOP")
    assert [each.ranks for each in hangs.expected()] == [(CULPRIT,)]
    (found,) = hangs.standing.values()
    print(found.summary)
    return found


async def test_a_stopped_rank_is_named_with_its_state(tmp_path: Path, again: int) -> None:
    found = await broken(tmp_path)

    assert found.cause is Cause.HOST_CPU
    assert "its process is stopped" in found.summary


async def test_a_rank_whose_host_stands_still_is_named_with_its_stack(tmp_path: Path, again: int) -> None:
    found = await broken(tmp_path, "kind: hang, side: host")

    assert found.cause is Cause.HOST_CPU
    (stack,) = [each for each in found.evidence if each.signal == "stack"]
    assert "in stand_still" in stack.text


@pytest.mark.flaky(reruns=3, only_rerun="EndedByGlooError")
@pytest.mark.parametrize("kind", ["skip_collective", "wrong_size", "wrong_order"])
async def test_a_rank_that_calls_something_else_is_named_as_its_program(tmp_path: Path, kind: str, again: int) -> None:
    found = await broken(tmp_path, f"kind: {kind}")

    assert found.cause is Cause.DEADLOCK


async def test_a_killed_rank_is_named_and_not_those_that_gloo_ends_over_it(tmp_path: Path, again: int) -> None:
    hangs = await hangs_of(tmp_path, scenario(tmp_path, "kind: kill"), fault="kind: kill")

    (found,) = hangs.first.values()
    assert (found.ranks, found.page) == ((CULPRIT,), False)
    assert found.summary.startswith(f"The attempt has ended in step {FROM_STEP}. Rank {CULPRIT} has not entered")
    assert "Its process has ended without a goodbye" in found.summary
