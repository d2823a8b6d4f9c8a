"""Demands as they come: what can't be read is told of and left out, and nothing of it stops a training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from megatronapp.core.scope.frame import MAX_SHARD_BYTES, Frame, unpack
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.results import of_frame
from megatronapp.core.scope.sites import Coordinates, Model, standard_sites
from megatronapp.trainer.agent.frames import Frame as RingFrame
from megatronapp.trainer.agent.frames import Parts
from megatronapp.trainer.plugins.channel import AgentChannel
from megatronapp.trainer.plugins.scope.places import OF_LAYER, Spot
from megatronapp.trainer.plugins.scope.shards import Shard
from megatronapp.trainer.plugins.scope.taps import Capture
from megatronapp.trainer.plugins.scope.viewer import Viewer
from megatronapp.trainer.plugins.scope.watch import masked

MODEL = Model(
    layers=2, hidden=8, heads=2, head_channels=4, mlp_channels=16, vocabulary=32, query_groups=2, batch=2, tokens=6
)
AT = Coordinates(layers=(0, 1))
SHARD = Shard(MODEL, AT, {site.name: site for site in standard_sites(MODEL, AT)})
NOWHERE = torch.nn.Module()
SPOTS = [Spot(site, layer, OF_LAYER[site], NOWHERE, NOWHERE) for layer in (0, 1) for site in ("attn.q", "resid_post")]
SHAPES = {"attn.q": (6, 2, 2, 4), "resid_post": (6, 2, 8)}


class Line:
    """The rank's end of the way to an agent, kept in memory."""

    def __init__(self) -> None:
        self.frames: list[tuple[int, Frame]] = []
        self.fails = False
        self._parts = Parts()

    def write_frame(self, descriptor: Any, payload: Any) -> None:
        if self.fails:
            raise ValueError("a frame larger than the ring")
        whole = self._parts.add(RingFrame(0, memoryview(descriptor), memoryview(payload)))
        if whole is not None:
            self.frames.append((whole[0], unpack(whole[1], MAX_SHARD_BYTES)))


class Rank:
    def __init__(self) -> None:
        self.line, self.said = Line(), list[dict[str, Any]]()
        self.viewer = Viewer(SPOTS, SHARD, AgentChannel(line=self.line), self.said.append, 3)  # type: ignore[arg-type]

    def step(self, number: int, *, wrong: float | None = None, before_pause: bool = False) -> bool:
        """One microbatch of a step, all values 1 but for one. Whether it was to be shown."""
        due = self.viewer.step_begin(number, before_pause=before_pause)
        for spot in SPOTS:
            value = torch.ones(SHAPES[spot.site])
            if wrong is not None and spot.layer == 1:
                value.view(-1)[5] = wrong
            values, _ = self.viewer.wanted(spot)
            for read in values:
                read(Capture(spot, value, SHARD, number))
        self.viewer.step_end()
        return due

    def alerts(self) -> list[dict[str, Any]]:
        return [document["event"]["alert"] for document in self.said]


def tap(number: int, expression: str, **more: Any) -> dict[str, Any]:
    return {"id": number, "expression": expression, **more}


def test_frames_are_addressed_and_in_the_sites_axes() -> None:
    rank = Rank()
    rank.viewer.show({"taps": [tap(4, "layers[1].attn.q | head(1)"), tap(5, "layers[*].resid_post | mean(chan)")]}, 0.1)

    rank.step(9)

    assert [(number, frame.layer, frame.step) for number, frame in rank.line.frames] == [
        (5, 0, 9),
        (4, 1, 9),
        (5, 1, 9),
    ]
    query = of_frame(rank.line.frames[1][1])
    assert isinstance(query, Values)
    assert query.array.shape == (2, 6, 4)


class Made(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts what makes a tensor that is no view."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in ("_to_copy", "clone", "amax", "sum")
        return func(*args, **(kwargs or {}))


def test_taps_that_show_the_same_values_have_them_taken_from_the_model_once() -> None:
    """The page asks for a picture that is pooled where it is long, and for all values of the same site."""
    rank = Rank()
    taps = [tap(4, "layers[1].resid_post"), tap(5, "layers[1].resid_post | pool(token,64,farthest)")]
    rank.viewer.show({"taps": taps}, 0.1)
    rank.viewer.step_begin(9)
    value = torch.randn(SHAPES["resid_post"])
    capture = Capture(SPOTS[3], value, SHARD, 9)

    with torch.no_grad(), Made() as made:
        for read in rank.viewer.wanted(SPOTS[3])[0]:
            read(capture)
    rank.viewer.step_end()

    assert made.count == 1
    assert [(number, frame.sequence, frame.layer, frame.step) for number, frame in rank.line.frames] == [
        (4, 1, 1, 9), (5, 1, 1, 9)
    ]  # fmt: skip
    for number, frame in rank.line.frames:
        result = of_frame(frame)
        assert frame.subscription == number
        assert isinstance(result, Values)
        assert np.array_equal(result.array, value.permute(1, 0, 2).numpy())


def test_a_pool_that_leaves_fewer_cells_is_no_other_taps_picture() -> None:
    rank = Rank()
    taps = [tap(4, "layers[1].resid_post"), tap(5, "layers[1].resid_post | pool(token,3,max)")]
    rank.viewer.show({"taps": [*taps, tap(6, "layers[1].resid_post | pool(token,64,absmax)")]}, 0.1)
    rank.viewer.step_begin(9)
    value = torch.randn(SHAPES["resid_post"])

    for read in rank.viewer.wanted(SPOTS[3])[0]:
        read(Capture(SPOTS[3], value, SHARD, 9))
    rank.viewer.step_end()

    rows = value.permute(1, 0, 2).numpy()
    expected = [rows, rows.reshape(2, 3, 2, 8).max(2), np.abs(rows)]
    for (_, frame), values in zip(rank.line.frames, expected, strict=True):
        result = of_frame(frame)
        assert isinstance(result, Values)
        assert np.array_equal(result.array, values)


def test_only_steps_that_are_due_are_shown() -> None:
    rank = Rank()
    rank.viewer.show(
        {"taps": [tap(1, "layers[0].resid_post", every_steps="3"), tap(2, "layers[0].attn.q", max_fps=2)]}, 0.1
    )

    due = [step for step in range(1, 13) if rank.step(step)]

    assert due == [3, 5, 6, 9, 10, 12]
    assert [(number, frame.step) for number, frame in rank.line.frames] == [
        (1, 3), (2, 5), (1, 6), (1, 9), (2, 10), (1, 12)
    ]  # fmt: skip


def test_the_step_before_a_pause_is_shown_whatever_the_limit_of_frames_in_a_second() -> None:
    rank = Rank()
    rank.viewer.show(
        {"taps": [tap(1, "layers[0].attn.q", max_fps=2), tap(2, "layers[0].attn.q", every_steps=2, max_fps=2)]}, 0.001
    )

    for step in range(7, 11):
        rank.step(step, before_pause=step > 8)

    assert [(number, frame.step) for number, frame in rank.line.frames] == [(1, 9), (1, 10), (2, 10)]


def test_a_condition_lets_only_such_frames_through_and_the_first_wrong_place_is_told() -> None:
    rank = Rank()
    rank.viewer.show({"taps": [tap(1, "layers[*].resid_post", when="nonfinite"), tap(2, "layers[*].attn.q")]}, 0.1)

    rank.step(1)
    rank.step(2, wrong=float("nan"))

    assert [(number, frame.layer, frame.step) for number, frame in rank.line.frames if number == 1] == [(1, 1, 2)]
    [alert] = [each for each in rank.alerts() if each["kind"] == "nonfinite"]
    assert (alert["site"], alert["layer"], alert["step"], alert["rank"]) == ("attn.q", 1, 2, 3)


def test_taps_that_take_too_long_are_turned_off_one_by_one() -> None:
    rank = Rank()
    rank.viewer.show({"taps": [tap(1, "layers[*].resid_post")], "max_overhead_ratio": 1e-9}, 0.1)

    for step in range(1, 5):
        rank.step(step)

    assert rank.viewer.readers == []
    assert [(alert["kind"], alert["tap"]) for alert in rank.alerts()] == [("overbudget", 1)]


@pytest.mark.parametrize("expression", ["layers[*].resid_post | mean(vocab)", "layers[*].attn.q | mean(query)"])
def test_an_expression_that_does_not_fit_is_turned_off_and_told(expression: str) -> None:
    rank = Rank()
    rank.viewer.show({"taps": [tap(7, expression)]}, 0.1)

    rank.step(1)

    assert rank.viewer.readers == []
    assert rank.line.frames == []
    assert [(alert["kind"], alert["tap"]) for alert in rank.alerts()] == [("invalid", 7)]


def test_a_frame_that_the_ring_refuses_is_counted() -> None:
    rank = Rank()
    rank.line.fails = True
    rank.viewer.show({"taps": [tap(1, "layers[0].resid_post")]}, 0.1)

    rank.step(1)

    assert rank.viewer.queue.dropped == 1


def test_what_is_too_large_to_leave_the_rank_is_told_once() -> None:
    rank = Rank()
    rank.viewer.show({"taps": [tap(4, "layers[1].resid_post")]}, 0.1)
    [spot] = [spot for spot in SPOTS if (spot.site, spot.layer) == ("resid_post", 1)]
    large = replace(MODEL, hidden=5 << 20)
    shard = Shard(large, AT, {site.name: site for site in standard_sites(large, AT)})

    for step in (1, 2):
        rank.viewer.step_begin(step)
        [read] = rank.viewer.wanted(spot)[0]
        read(Capture(spot, torch.ones(1, 2, 5 << 20), shard, step))
        rank.viewer.step_end()

    [alert] = rank.alerts()
    assert (alert["kind"], alert["tap"], alert["site"], alert["layer"]) == ("left_out", 4, "resid_post", 1)
    assert "40 MiB" in alert["detail"]
    assert "last(64)" in alert["detail"]
    assert rank.line.frames == []


def test_a_large_frame_is_whole() -> None:
    rank = Rank()
    rank.viewer.show({"taps": [tap(4, "layers[1].resid_post")]}, 0.1)
    [spot] = [spot for spot in SPOTS if (spot.site, spot.layer) == ("resid_post", 1)]
    model = replace(MODEL, batch=4, tokens=128, hidden=4096)
    shard = Shard(model, AT, {site.name: site for site in standard_sites(model, AT)})
    value = torch.randn(128, 4, 4096)

    rank.viewer.step_begin(1)
    [read] = rank.viewer.wanted(spot)[0]
    read(Capture(spot, value, shard, 1))
    rank.viewer.step_end()

    [(_, frame)] = rank.line.frames
    result = of_frame(frame)
    assert isinstance(result, Values)
    assert np.array_equal(result.array, value.permute(1, 0, 2).numpy())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
EXPRESSIONS = st.sampled_from(
    ["layers[*].resid_post", "layers[0].attn.q | topk(3)", "x | pca(2)", "layers[*].* | stats(p50)", "layers[9].attn.q"]
) | st.text(max_size=60)
TAPS = st.fixed_dictionaries(
    {"id": JSON | st.integers(0, 9), "expression": JSON | EXPRESSIONS},
    optional={
        "when": JSON | st.sampled_from(["nonfinite", "absmax>1", "nonfinite) | when(absmax>1"]),
        "partial": JSON,
        "every_steps": JSON | st.integers(0, 3),
        "max_fps": JSON,
        "request": JSON,
    },
)


@given(st.fixed_dictionaries({"taps": JSON | st.lists(TAPS | JSON, max_size=4)}, optional={"max_overhead_ratio": JSON}))
@settings(max_examples=100, deadline=None)
def test_whatever_is_asked_for_a_step_goes_on(demand: dict[str, Any]) -> None:
    rank = Rank()

    rank.viewer.show(demand, 0.1)
    rank.step(2, wrong=float("inf"))
    rank.viewer.flush()


def probabilities(queries: int, keys: int) -> torch.Tensor | None:
    """Which of them have no value."""
    values = torch.zeros(2, 2, queries, keys)
    return masked(Capture(Spot("attn.probs", 0, OF_LAYER["attn.probs"], NOWHERE, NOWHERE), values, SHARD, 1), values)


def test_a_query_before_others_has_no_key_behind_it() -> None:
    hidden = probabilities(2, 3)

    assert hidden is not None
    assert hidden.tolist() == [[False, False, True], [False, False, False]]


def test_a_generations_new_token_has_all_keys_and_needs_no_mask() -> None:
    assert probabilities(1, 3) is None
