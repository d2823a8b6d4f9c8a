"""Plug-ins as one."""

from __future__ import annotations

from megatronapp.core.errors import TrainingError
from megatronapp.trainer.plugins.base import Plugin
from megatronapp.trainer.plugins.chain import PluginChain


class Knowing(Plugin):
    name = "knowing"

    def __init__(self, knows: str) -> None:
        self._knows = knows

    def failure(self, error: Exception) -> Exception | None:
        return TrainingError(f"{self._knows}: {error}") if self._knows else None


def test_an_error_is_told_by_the_first_plugin_that_knows_more_of_it() -> None:
    chain = PluginChain([Knowing(""), Knowing("rank 0 is lost"), Knowing("something")])

    assert str(chain.failure(RuntimeError("connection reset"))) == "rank 0 is lost: connection reset"


def test_an_error_of_which_no_plugin_knows_more_stays_as_it_is() -> None:
    error = RuntimeError("connection reset")

    assert PluginChain([Knowing("")]).failure(error) is error
