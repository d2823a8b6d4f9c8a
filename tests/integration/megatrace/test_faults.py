"""Four CPU ranks over gloo, one of which is broken: it is named within ten seconds with its side, and nobody else.

MEGATRONAPP_MEGATRACE_ROUNDS plays each so many times (default 1).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from megatronapp.core.findings import Cause, Finding
from tests.integration.megatrace.support import CULPRIT, RANKS_GO_ON_SECONDS, hangs_of, scenario

ROUNDS = int(os.environ.get("MEGATRONAPP_MEGATRACE_ROUNDS", "1"))
NAMED_SECONDS = 10.0
FROM_STEP = 60
NS = 1e-9

pytestmark = [pytest.mark.long, pytest.mark.timeout(180), pytest.mark.parametrize("again", range(ROUNDS))]


def stopped(folder: Path) -> None:
    """SIGSTOP to the culprit, in the middle of its training."""
    while not (folder / f"pid.{CULPRIT}").exists():
        time.sleep(0.05)
    time.sleep(RANKS_GO_ON_SECONDS)
    (folder / "broken").write_text(str(time.time_ns()))
    os.kill(int((folder / f"pid.{CULPRIT}").read_text()), signal.SIGSTOP)


async def broken(folder: Path, fault: str = "", disturb: Callable[[Path], None] | None = None) -> Finding:
    """The one finding, as it was told last while the ranks stood."""
    flags = scenario(folder, fault, from_step=FROM_STEP) if fault else ""
    hangs = await hangs_of(folder, flags, disturb=disturb)
    assert [each.ranks for each in hangs.first.values()] == [(CULPRIT,)]
    (found,) = hangs.standing.values()
    return found


async def test_a_stopped_rank_is_named_with_its_state(tmp_path: Path, again: int) -> None:
    found = await broken(tmp_path, disturb=stopped)

    assert found.cause is Cause.HOST_CPU
    assert "its process is stopped" in found.summary
    stopped_at = int((tmp_path / "broken").read_text())
    assert (found.opened_unix_ns - stopped_at) * NS < NAMED_SECONDS


async def test_a_rank_whose_host_stands_still_is_named_with_its_stack(tmp_path: Path, again: int) -> None:
    found = await broken(tmp_path, "kind: hang, side: host")

    assert found.cause is Cause.HOST_CPU
    (stack,) = [each for each in found.evidence if each.signal == "stack"]
    assert "in stand_still" in stack.text


@pytest.mark.parametrize("kind", ["skip_collective", "wrong_size", "wrong_order"])
async def test_a_rank_that_calls_something_else_is_named_as_its_program(tmp_path: Path, kind: str, again: int) -> None:
    found = await broken(tmp_path, f"kind: {kind}")

    assert found.cause is Cause.DEADLOCK


async def test_a_killed_rank_is_named(tmp_path: Path, again: int) -> None:
    found = await broken(tmp_path, "kind: kill")

    assert found.cause is Cause.HOST_CPU
