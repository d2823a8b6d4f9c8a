"""The agent beside a launcher, where it fails: the launcher's own end is not disturbed."""

from __future__ import annotations

import os

import pytest

from megatronapp.trainer.agent.app import Agent
from megatronapp.trainer.agent.embedded import embedded_agent
from megatronapp.trainer.agent.rendezvous import SOCKET_VARIABLE


def test_an_agent_that_left_its_socket_behind_does_not_fail_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Agent, "run", lambda agent: None)  # its thread has ended without having put anything away

    with embedded_agent():
        assert os.environ[SOCKET_VARIABLE]

    assert SOCKET_VARIABLE not in os.environ
