"""A server whose requests come from a plug-in: what the plug-in sees, and how the server ends."""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest
import torch

from megatronapp.core.errors import PluginMissingError, UsageError
from megatronapp.core.generation import Command, Event, Finished, GenerationRequest, Limits, Started
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.generate import serve
from megatronapp.trainer.plugins.base import Plugin, PluginContext
from megatronapp.trainer.plugins.generating import TextGenerator
from tests.support.forked import RankFailedError, run_forked

calls: list[str] = []
events: list[Event] = []


class OpenPort:
    """One request that waits to be stepped, and then nothing more."""

    def __init__(self, started: Path) -> None:
        self._started = started
        self._requests: list[Command] = [GenerationRequest(prompts=("He",), id="one", paused=True, max_new_tokens=8)]

    def next_command(self, timeout_seconds: float) -> Command | None:
        if self._requests:
            return self._requests.pop()
        time.sleep(timeout_seconds / 10)
        return None

    def emit(self, event: Event) -> None:
        events.append(event)
        if isinstance(event, Started):
            self._started.touch()


class Asking(Plugin):
    name = "asking"
    serves = True

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--started", type=Path)

    @classmethod
    def create(cls, args: argparse.Namespace, context: PluginContext) -> Self:
        assert context.tokenizer is not None
        calls.append(f"create({context.tokenizer.vocab_size}, {context.max_positions}, {context.identity.rank})")
        plugin = cls()
        plugin.started, plugin.context = args.started, context
        return plugin

    started: Path
    context: PluginContext
    asked = False

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        calls.append(f"models({len(chunks)})")

    def generator(self, generator: TextGenerator) -> None:
        calls.append("generator")

    def border_due(self, step: int) -> bool:
        """Asked for by the last rank, once."""
        if self.context.identity.rank and not self.asked:
            self.asked = True
            self.context.request_border()
        return False

    def border(self, step: int) -> bool:
        calls.append("border")
        return False

    def port(self, limits: Limits) -> OpenPort:
        calls.append(f"port({limits.vocabulary}, {limits.max_positions})")
        return OpenPort(self.started)

    def close(self) -> None:
        calls.append("close")


class Widening(Asking):
    name = "widening"

    def configure(self, config: object) -> None:
        config.layernorm_epsilon = 0.5  # type: ignore[attr-defined]


class Silent(Plugin):
    """Does not serve: not made at all."""

    name = "silent"


def served(folder: Path, started: Path, flags: str) -> tuple[list[str], list[Event]]:
    """For a rank; the last one gets SIGTERM as soon as the request has started, as when its node is drained."""

    def drain() -> None:
        while not started.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
        threading.Thread(target=drain, daemon=True).start()
    argv = ["--serve", "--load", str(folder), "--started", str(started), *flags.split()]
    serve.run(argv, plugins=(Silent, Asking))
    return calls, events


def test_a_plugin_with_a_port_asks_until_any_rank_gets_sigterm(folder: Path, tmp_path: Path) -> None:
    flags = "--pipeline-model-parallel-size 2 --require-plugins asking"

    (first, found), (second, others) = run_forked(2, served, folder, tmp_path / "started", flags)

    assert first == ["create(257, 64, 0)", "models(1)", "generator", "port(257, 64)", "border", "close"]
    assert second == ["create(257, 64, 1)", "models(1)", "generator", "border", "close"]
    assert [type(event).__name__ for event in found] == ["Started", "StateChanged", "RowFinished", "Finished"]
    assert found[-1] == Finished(request="one", reason="cancelled")
    assert others == []


def refused(folder: Path, flags: str) -> None:
    serve.run(["--serve", "--load", str(folder), *flags.split()], plugins=(Silent, Widening))


def test_a_plugin_that_would_change_the_model_is_refused(folder: Path) -> None:
    with pytest.raises(RankFailedError, match="the plug-in widening would change the model of"):
        run_forked(1, refused, folder, "")


@pytest.mark.parametrize(
    ("flags", "error", "says"),
    [
        (["--require-plugins", "silent"], PluginMissingError, "silent: no plug-in of this name that can serve"),
        (["--num-layers", "4"], UsageError, "unrecognized arguments: --num-layers 4"),
    ],
)
def test_wrong_flags_are_refused_before_a_model_is_built(
    flags: list[str], error: type[UsageError], says: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=says):
        serve.run(["--serve", "--load", str(tmp_path), *flags], plugins=(Silent, Asking))
