from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from megatronapp.core.errors import UnavailableError
from megatronapp.trainer.agent import rendezvous
from tests.support.cluster import wait_until


def test_ranks_of_one_run_and_attempt_meet_in_a_folder_of_their_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    path = rendezvous.address_of("run", 1)

    assert path == rendezvous.address_of("run", 1)
    assert len({path, rendezvous.address_of("run", 2), rendezvous.address_of("other", 1)}) == 3
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_folder_that_others_can_enter_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / f"megatronapp-{os.geteuid()}"
    folder.mkdir()
    folder.chmod(0o755)

    assert rendezvous.address_of("run", 1).parent != folder


def test_one_process_listens_at_an_address_and_a_dead_ones_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"

    first = rendezvous.listen(path)
    assert first is not None
    assert rendezvous.listen(path) is None
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    first.close()

    second = rendezvous.listen(path)
    assert second is not None
    assert rendezvous.answers(path)
    second.close()


def test_an_address_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"agent\.sock"):
        rendezvous.listen(tmp_path / "nowhere" / "agent.sock")


def test_the_agents_python_is_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rendezvous.PYTHON_VARIABLE, "/opt/agent/bin/python")

    assert rendezvous.agent_python() == "/opt/agent/bin/python"


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("#!/opt/agent/bin/python", "/opt/agent/bin/python"),
        ("#!/usr/bin/env python3", sys.executable),
        ("", sys.executable),
    ],
)
def test_where_this_python_has_no_grpc_the_commands_is_taken(
    first: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = tmp_path / "megatronapp"
    command.write_text(f"{first}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(rendezvous, "find_spec", lambda _: None)

    assert rendezvous.agent_python() == expected


def test_an_agent_can_run_by_itself(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    process = subprocess.Popen([sys.executable, "-m", "megatronapp.trainer.agent", "--serve", str(path)])
    try:
        wait_until("the agent listens", lambda: path.exists() and rendezvous.answers(path))
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert not path.exists()
