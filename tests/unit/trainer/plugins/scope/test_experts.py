"""Rows that a dispatcher has in the order of experts are found by token, whichever dispatcher it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from megatron.core import parallel_state
from megatron.core.transformer.moe.experts import GroupedMLP, SequentialMLP, TEGroupedMLP
from megatron.core.transformer.moe.moe_utils import permute, unpermute
from megatron.core.transformer.moe.token_dispatcher import (
    MoEAllGatherTokenDispatcher,
    MoEAlltoAllTokenDispatcher,
    MoEFlexTokenDispatcher,
)

from megatronapp.core.errors import DataError
from megatronapp.core.scope.operations import Operation, Reduce, Reducer, Slice, Stats, Take
from megatronapp.core.scope.quantize import Values
from megatronapp.core.scope.sites import Axis
from megatronapp.trainer.models.grouped_experts import GroupedExperts
from megatronapp.trainer.plugins.scope import derived
from megatronapp.trainer.plugins.scope.experts import activation_place_in, place_in, rows_of

TOKENS, BATCH, EXPERTS, HIDDEN = 5, 2, 4, 3
AXES = (Axis("batch", BATCH), Axis("token", TOKENS), Axis("expert", EXPERTS), Axis("chan", HIDDEN))


def dispatcher(kind: type, **attributes: Any) -> Any:
    """One that was not built: it would ask for process groups, and the one for `alltoall` for a GPU."""
    made = kind.__new__(kind)
    made.__dict__ |= {"config": SimpleNamespace(moe_permute_fusion=False, context_parallel_size=1), **attributes}
    return made


def routed(ranks: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Which experts each token of these ranks goes to, and megatron-core's rows of them; a row's values say which token
    it is of."""
    chosen = torch.rand(ranks * TOKENS * BATCH, EXPERTS, generator=torch.Generator().manual_seed(3)) > 0.5
    rows, _, _ = permute(torch.arange(1.0, len(chosen) + 1).unsqueeze(1).expand(-1, HIDDEN), chosen)
    return chosen, rows


def reduced(rows: torch.Tensor, of: torch.Tensor, *operations: Operation, each_once: bool = True) -> Values:
    found = derived.reduce_expert_results(rows, of.permute(1, 0, 2), AXES, operations, each_once=each_once)
    assert found is not None
    result = found.on_host()
    assert isinstance(result, Values)
    return result


def test_rows_that_come_back_to_their_tokens_are_of_all_experts() -> None:
    chosen, rows = routed()
    of = rows_of(
        dispatcher(MoEAlltoAllTokenDispatcher, hidden_shape=(TOKENS, BATCH, HIDDEN), routing_map=chosen), alike=False
    )

    summed = reduced(rows, of, Reduce(Reducer.SUM, "expert"))

    _, _, order = permute(torch.zeros(len(chosen), HIDDEN), chosen)
    expected = unpermute(rows, order, restore_shape=torch.Size((len(chosen), HIDDEN)), routing_map=chosen)
    some = chosen.any(1).view(TOKENS, BATCH).T.numpy()
    np.testing.assert_array_equal(summed.array[some], expected.view(TOKENS, BATCH, HIDDEN).permute(1, 0, 2)[some])


@pytest.mark.parametrize("alike", [False, True])
def test_rows_of_gathered_tokens_are_those_of_each_rank_or_of_one_where_all_have_the_same(alike: bool) -> None:
    chosen, rows = routed(ranks=2)
    gathered = dispatcher(
        MoEAllGatherTokenDispatcher, tp_size=1, hidden_shape=(TOKENS, BATCH, HIDDEN), local_map=chosen
    )

    of = rows_of(gathered, alike=alike)

    assert of.shape == (TOKENS, BATCH if alike else 2 * BATCH, EXPERTS)
    by_rank = chosen.view(2, TOKENS, BATCH, EXPERTS)
    for token, entry, expert in np.ndindex(*of.shape):
        rank, row = divmod(entry, BATCH)
        number = int(of[token, entry, expert])
        assert (number >= 0) == bool(by_rank[rank, token, row, expert])
        if number >= 0:
            assert rows[number, 0] == 1 + (rank * TOKENS + token) * BATCH + row


def test_tokens_that_tensor_ranks_have_brought_are_one_sequence() -> None:
    chosen, _ = routed(ranks=4)
    gathered = dispatcher(
        MoEAllGatherTokenDispatcher, tp_size=2, hidden_shape=(TOKENS, BATCH, HIDDEN), local_map=chosen
    )

    of = rows_of(gathered, alike=False)

    number_of = (chosen.T.reshape(-1).cumsum(0) - 1).view(EXPERTS, 2, 2, TOKENS, BATCH)
    of_rank = chosen.T.reshape(EXPERTS, 2, 2, TOKENS, BATCH)
    assert of.shape == (2 * TOKENS, 2 * BATCH, EXPERTS)
    for token, entry, expert in np.ndindex(*of.shape):
        (tensor, row), (rank, one) = divmod(token, TOKENS), divmod(entry, BATCH)
        at = (expert, rank, tensor, row, one)
        assert of[token, entry, expert] == (number_of[at] if of_rank[at] else -1)


def test_of_experts_without_tokens_everything_is_masked() -> None:
    nobody = torch.full((TOKENS, BATCH, EXPERTS), -1)

    found = reduced(torch.empty(0, HIDDEN), nobody)

    assert found.masked is not None
    assert found.masked.all()


def test_slices_are_taken_before_rows_are_read_and_what_goes_to_others_is_masked() -> None:
    chosen, rows = routed()
    of = rows_of(
        dispatcher(MoEAlltoAllTokenDispatcher, hidden_shape=(TOKENS, BATCH, HIDDEN), routing_map=chosen), alike=False
    )

    one = reduced(rows, of, Take("batch", 1), Take("expert", 2), Take("token", Slice(1, 4)))

    goes = chosen.view(TOKENS, BATCH, EXPERTS)[1:4, 1, 2].numpy()
    assert one.masked is not None
    np.testing.assert_array_equal(one.masked, np.broadcast_to(~goes[:, None], (3, HIDDEN)))
    np.testing.assert_array_equal(one.array[goes, 0], 1 + (np.arange(1, 4)[goes] * BATCH + 1))


def test_more_than_is_made_at_once_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derived, "MAX_RESULTS", 8)
    chosen, rows = routed()
    of = rows_of(
        dispatcher(MoEAlltoAllTokenDispatcher, hidden_shape=(TOKENS, BATCH, HIDDEN), routing_map=chosen), alike=False
    )

    with pytest.raises(DataError, match="take fewer rows"):
        reduced(rows, of)


def test_statistics_of_all_need_no_order_and_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, rows = routed()
    of = rows_of(
        dispatcher(MoEAlltoAllTokenDispatcher, hidden_shape=(TOKENS, BATCH, HIDDEN), routing_map=chosen), alike=False
    )
    stats = Stats(("mean", "count", "max", "p50"))
    expected = reduced(rows, of, stats, each_once=False)

    monkeypatch.setattr(derived, "MAX_RESULTS", 8)

    np.testing.assert_allclose(reduced(rows, of, stats).array, expected.array, rtol=1e-6)


FUSED = SimpleNamespace(moe_permute_fusion=True, context_parallel_size=1)
CONTEXT = SimpleNamespace(moe_permute_fusion=False, context_parallel_size=2)


@pytest.mark.parametrize(
    ("given", "method"),
    [
        (dispatcher(MoEAlltoAllTokenDispatcher), "combine_postprocess"),
        (dispatcher(MoEAllGatherTokenDispatcher, tp_size=1, ep_size=2), "combine_preprocess"),
        (dispatcher(MoEAllGatherTokenDispatcher, tp_size=1, ep_size=1, config=CONTEXT), "combine_preprocess"),
        (dispatcher(MoEAllGatherTokenDispatcher, tp_size=1, ep_size=2, config=CONTEXT), None),
        (dispatcher(MoEAllGatherTokenDispatcher, tp_size=2, ep_size=1), None),
        (dispatcher(MoEAlltoAllTokenDispatcher, config=FUSED), None),
        (dispatcher(MoEAlltoAllTokenDispatcher, drop_and_pad=True), None),
        (dispatcher(MoEFlexTokenDispatcher), None),
        (None, None),
    ],
)
def test_rows_that_no_rank_can_tell_apart_have_no_place(given: Any, method: str | None) -> None:
    place = place_in(given)

    assert (None if place is None else place.method) == method


def layer(given: Any, experts: type = SequentialMLP, **config: Any) -> Any:
    """A mixture that was not built."""
    made = experts.__new__(experts)
    torch.nn.Module.__init__(made)
    made.config = SimpleNamespace(**config)
    return SimpleNamespace(token_dispatcher=given, experts=made)


@pytest.mark.parametrize(
    ("given", "there"),
    [
        (layer(dispatcher(MoEAllGatherTokenDispatcher, tp_size=1, ep_size=2)), True),
        (layer(dispatcher(MoEAllGatherTokenDispatcher, tp_size=1, ep_size=2), GroupedExperts), True),
        (layer(dispatcher(MoEAlltoAllTokenDispatcher, tp_size=1, ep_size=1)), True),
        (layer(dispatcher(MoEAlltoAllTokenDispatcher, tp_size=1, ep_size=2)), False),
        (layer(dispatcher(MoEAlltoAllTokenDispatcher, tp_size=2, ep_size=1)), False),
        (layer(dispatcher(MoEAllGatherTokenDispatcher, tp_size=2, ep_size=1)), False),  # of experts alone
        (layer(dispatcher(MoEAllGatherTokenDispatcher, tp_size=1, ep_size=1), GroupedMLP), False),
        (layer(dispatcher(MoEAllGatherTokenDispatcher, tp_size=1, ep_size=1), TEGroupedMLP), False),
        (layer(dispatcher(MoEAllGatherTokenDispatcher, tp_size=1, ep_size=1), fp8="e4m3"), False),
        (layer(dispatcher(MoEFlexTokenDispatcher)), False),
        (SimpleNamespace(linear_fc1=None), False),  # no mixture
        (None, False),
    ],
)
def test_activations_have_a_place_where_each_row_is_known_to_be_of_its_token(
    given: Any, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parallel_state, "get_tensor_model_parallel_world_size", lambda: 1)

    assert (activation_place_in(given) is not None) == there
