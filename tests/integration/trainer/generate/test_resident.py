"""Serving: requests take turns, are paused, stepped, cancelled, branched and refused, on all ranks alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from megatronapp.core.generation import (
    Command,
    Control,
    Event,
    Finished,
    GenerationRequest,
    Started,
    StateChanged,
    Stepped,
    branch,
)
from megatronapp.trainer import launch  # noqa: F401  (imported once, before the ranks are forked)
from megatronapp.trainer.config import ParallelConfig
from megatronapp.trainer.generate.arguments import Source
from megatronapp.trainer.generate.loaded import loaded
from megatronapp.trainer.generate.resident import ResidentGenerator
from tests.integration.trainer.generate.models import GREEDY, answers, ends, ids, rows, tokens_of
from tests.integration.trainer.generate.ports import ScriptedPort
from tests.support.forked import run_forked

A = GenerationRequest(prompts=("He", "the fox"), id="a", max_new_tokens=5, sampling=GREEDY)
B = replace(A, prompts=("123",), id="b", stop_at_end_of_document=False)
BEAMS = replace(B, id="beams", beam_width=2)
slower = pytest.mark.long
"""Layouts that differ from another one here in one thing alone."""


def served(folder: Path, rounds: Sequence[Sequence[Command]], layout: dict[str, int]) -> list[Event]:
    """For a rank: what its port was told."""
    port = ScriptedPort(rounds)
    with loaded(Source(folder=folder, parallel=ParallelConfig(**layout))) as generator:
        first = generator.ranks.is_first
        ResidentGenerator(generator, port if first else None).serve()
    return port.events


def of(events: Sequence[Event], request: str) -> list[Event]:
    return [event for event in events if event.request == request]


def kinds(events: Sequence[Event]) -> list[str]:
    return [
        event.state if isinstance(event, StateChanged) else event.reason if isinstance(event, Finished) else "step"
        for event in events
        if isinstance(event, StateChanged | Finished | Stepped)
    ]


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param({}, marks=slower),
        {"tensor_model_parallel_size": 2},
        pytest.param({"pipeline_model_parallel_size": 2}, marks=slower),
    ],
)
def test_requests_take_turns_and_answer_as_if_alone(layout: dict[str, int], folder: Path) -> None:
    ranks = 2 if layout else 1

    first, *others = run_forked(ranks, served, folder, [[A, B, BEAMS]], layout)

    assert all(events == [] for events in others)
    alone = dict(zip("ab", answers(folder, [A, B]), strict=True))
    for name in "ab":
        assert ids(of(first, name)) == ids(alone[name])
        assert isinstance(of(first, name)[0], Started)
        assert of(first, name)[-1] == Finished(request=name, reason="done")
    stepped = [event.request for event in first if isinstance(event, Stepped)]
    assert stepped[:4] == ["a", "b", "a", "b"]
    assert len(ends(of(first, "beams"))[0].beams) == 2


def test_a_request_is_paused_stepped_resumed_and_cancelled(folder: Path) -> None:
    a = replace(A, prompts=("He",), paused=True)
    pause, resume, cancel = (Control(action=action, request="a") for action in ("pause", "resume", "cancel"))
    nothing: list[Command] = []
    rounds = [
        *([a], nothing, nothing, [Control(action="step", request="a", steps=2)], nothing, nothing, nothing),
        *([resume], [pause], nothing, [cancel], [Control(action="resume", request="gone")]),
    ]

    [events] = run_forked(1, served, folder, rounds, {})

    assert kinds(events) == ["paused", "step", "step", "running", "step", "paused", "cancelled"]
    end = ends(events)[0]
    assert (end.reason, len(ids(events)[0])) == ("cancelled", 3)
    assert end.text.startswith("".join(token.delta for token in tokens_of(events, 0)))


def test_more_requests_than_take_turns_wait_and_can_be_cancelled_there(folder: Path) -> None:
    many = [replace(B, id=str(number), paused=number < 4) for number in range(6)]
    rounds = [many, [Control(action="cancel", request="4")], [Control(action="cancel", request="0")]]
    rounds += [[Control(action="cancel", request=str(number)) for number in (1, 2, 3)]]

    [events] = run_forked(1, served, folder, rounds, {})

    assert kinds(of(events, "4")) == ["waiting", "cancelled"]
    assert kinds(of(events, "5")) == ["waiting", *["step"] * 5, "done"]


@pytest.mark.parametrize("layout", [pytest.param({}, marks=slower), {"pipeline_model_parallel_size": 2}])
def test_what_the_model_does_not_take_is_refused_and_nothing_else_is_touched(
    layout: dict[str, int], folder: Path
) -> None:
    wrong = [
        replace(A, id="long", max_new_tokens=63),
        replace(A, id="foreign", prompts=((5, 257),)),
        replace(A, id="empty", prompts=("",)),
        replace(A, id="stop", stop_tokens=(400,)),
        replace(A, id="many", top_candidates=101),
    ]

    events = run_forked(
        2 if layout else 1, served, folder, [[A, *wrong, replace(B, id="a"), replace(B, id="")]], layout
    )[0]

    messages = {event.request: event.message for event in events if isinstance(event, Finished) and event.message}
    assert "this model takes 64 in all" in messages["long"]
    assert "prompt 0: token 257: ids of this model lie from 0 to 256" in messages["foreign"]
    assert "prompt 0 is empty" in messages["empty"]
    assert messages.keys() == {"long", "foreign", "empty", "stop", "many", ""}
    assert kinds(of(events, "a"))[-1] == "done"


def test_a_branch_of_a_running_request_takes_over_what_it_computed(folder: Path) -> None:
    [plain] = answers(folder, [A])
    other = branch(A, 1, tuple(rows(A, plain)[1][:-2]), 65, new_id="other")
    rounds: list[list[Command]] = [[A], *[[]] * 7, [other], [replace(other, reuse_prefix=False, id="fresh")]]

    [events] = run_forked(1, served, folder, rounds, {})

    assert ids(of(events, "other")) == ids(of(events, "fresh"))
    assert ids(of(events, "a")) == ids(plain)


def broken(folder: Path) -> list[Event]:
    """For a rank: a model whose weights are no numbers, then whole again."""
    port = ScriptedPort([[A], [], [B]])
    with loaded(Source(folder=folder)) as generator:
        weight = generator.engine.stages.chunks[0].decoder.final_layernorm.weight  # type: ignore[union-attr]
        assert isinstance(weight, torch.Tensor)
        whole, once = weight.clone(), generator.session
        weight.fill_(torch.nan)

        def session(request: GenerationRequest) -> object:
            if request.id == "b":
                weight.copy_(whole)
            return once(request)

        generator.session = session  # type: ignore[method-assign, assignment]
        ResidentGenerator(generator, port).serve()
    return port.events


def test_a_request_that_fails_leaves_the_others_be(folder: Path) -> None:
    [events] = run_forked(1, broken, folder)

    end = of(events, "a")[-1]
    assert isinstance(end, Finished)
    assert (end.reason, "are no numbers" in end.message) == ("failed", True)
    assert kinds(of(events, "b"))[-1] == "done"
