"""MegaScope in a session: made when the model is seen, told of the step that runs, and gone when it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.models.gpt import GPTModel

from megatronapp.core.trace.values import Phase
from megatronapp.trainer.attach.scope import LateScope, unseen
from megatronapp.trainer.attach.session import Bounds, Session
from megatronapp.trainer.borders import Border, Borders
from megatronapp.trainer.plugins.base import Degree, Plugin, TimerHub
from megatronapp.trainer.plugins.chain import PluginChain


class Witness(Plugin):
    def __init__(self, name: str, events: list[str]) -> None:
        self.title = name
        self.events = events

    def models(self, chunks: Sequence[torch.nn.Module]) -> None:
        self.events.append(f"{self.title} models")

    def step_begin(self, step: int) -> None:
        self.events.append(f"{self.title} begin {step}")

    def phase_begin(self, phase: Phase) -> None:
        self.events.append(f"{self.title} into {phase.name}")

    def border(self, step: int) -> bool:
        self.events.append(f"{self.title} border {step}")
        return False


class Made(LateScope):
    def __init__(self, plugin: Plugin | None, borders: Any) -> None:
        self._plugin = plugin
        self._borders = borders

    def _made(self, chunks: Sequence[Any], given: Mapping[str, Any]) -> Plugin | None:
        if self._plugin is None:
            raise RuntimeError("of another version")
        return self._plugin


class Asked:
    """A border after each step."""

    def after(self, step: int) -> Border:
        return Border.PLUGINS


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = type("Config", (), {"param_sync_func": None})()


def session(plugin: Plugin | None, events: list[str], borders: Any = None) -> Session:
    chain = PluginChain([Witness("scan", events), Witness("faults", events)])
    scope = Made(plugin, borders or Asked())
    return Session(chain, TimerHub(), Degree.FULL, scope=scope)


def test_it_stands_between_the_others_and_begins_the_step_that_runs() -> None:
    events: list[str] = []
    session_ = session(Witness("scope", events), events)
    session_.begin(Bounds.SCRIPT)

    session_.see_models([Model()], {})
    session_.end(Bounds.SCRIPT)
    session_.begin(Bounds.SCRIPT)

    assert events == [
        *("scan begin 1", "faults begin 1", "scan models", "faults models", "scope begin 1"),
        *("scan into PAUSE", "scope into PAUSE", "faults into PAUSE"),
        *("scan border 1", "scope border 1", "faults border 1"),
        *("scan begin 2", "scope begin 2", "faults begin 2"),
    ]


def test_one_that_cannot_be_made_is_left_out_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    events: list[str] = []
    session_ = session(None, events)

    session_.see_models([Model()], {})
    session_.begin(Bounds.LOOP, 1)
    session_.end(Bounds.LOOP)

    assert events == ["scan models", "faults models", "scan begin 1", "faults begin 1"]
    assert "MegaScope is left out: of another version" in capsys.readouterr().err


def test_a_border_that_fails_is_the_last_one_and_the_script_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    class Gone:
        def after(self, step: int) -> Border:
            raise ConnectionError("the store is gone")

    events: list[str] = []
    session_ = session(Witness("scope", events), events, cast(Borders, Gone()))
    session_.see_models([Model()], {})

    for step in (1, 2):
        session_.begin(Bounds.LOOP, step)
        session_.end(Bounds.LOOP)

    assert not [event for event in events if "border" in event]
    assert capsys.readouterr().err.count("MegaScope does nothing more: ConnectionError") == 1


def test_models_that_it_does_not_know_are_named() -> None:
    gpt = GPTModel.__new__(GPTModel)
    graphs, plain = type("Config", (), {"enable_cuda_graph": True}), type("Config", (), {"cuda_graph_impl": "none"})
    wrapper = DistributedDataParallel.__new__(DistributedDataParallel)
    sharded = type("FullyShardedDataParallel", (), {})()

    def of(config: type, chunk: object) -> str:
        object.__setattr__(gpt, "config", config)
        return unseen([chunk], [gpt])

    assert of(plain, wrapper) == ""
    assert "CUDA graph" in of(graphs, wrapper)
    assert "FullyShardedDataParallel" in of(plain, sharded)
    assert "not of Model" in unseen([wrapper], [Model()])
