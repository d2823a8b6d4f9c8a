"""Our attention computes what its definition says, by its fused kernel and plainly."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from megatron.core.models.common.embeddings.relative_pos_embedding import RelativePositionEmbedding
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.trainer import cpu
from megatronapp.trainer.models import gpt
from megatronapp.trainer.models.attention import Attention, alibi_slopes

ALONE = SimpleNamespace(size=lambda: 1, rank=lambda: 0)
GROUPS = SimpleNamespace(tp=ALONE, cp=ALONE)
HEADS, WIDTH, TOKENS, ROWS = 4, 8, 12, 2


@pytest.fixture(autouse=True)
def _on_cpu() -> None:
    cpu.install()


def attention(*, alibi: bool = False, fused: bool = True, layer: int = 1, **options: object) -> Attention:
    config = TransformerConfig(
        num_layers=2, hidden_size=HEADS * WIDTH, num_attention_heads=HEADS, attention_dropout=0.0, **options
    )
    return Attention(config, layer, AttnMaskType.causal, "self", pg_collection=GROUPS, alibi=alibi, fused=fused)


def states(groups: int = HEADS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    query = torch.randn(TOKENS, ROWS, HEADS, WIDTH)
    return query, torch.randn(TOKENS, ROWS, groups, WIDTH), torch.randn(TOKENS, ROWS, groups, WIDTH)


def defined(query, key, value, *, window: int = TOKENS, slopes=(0.0,) * HEADS) -> torch.Tensor:
    """One query, row and head after the other."""
    out = torch.zeros(TOKENS, ROWS, HEADS, WIDTH)
    for at in range(TOKENS):
        for row in range(ROWS):
            for head in range(HEADS):
                seen = slice(max(0, at - window), at + 1)
                group = head * key.size(2) // HEADS
                scores = key[seen, row, group] @ query[at, row, head] / math.sqrt(WIDTH)
                scores += slopes[head] * (torch.arange(seen.start, seen.stop) - at)
                out[at, row, head] = scores.softmax(0) @ value[seen, row, group]
    return out.flatten(2)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("groups", [4, 2, 1])
def test_tokens_see_those_before(fused: bool, groups: int) -> None:
    found = attention(fused=fused)(*states(groups), None)

    torch.testing.assert_close(found, defined(*states(groups)))


@pytest.mark.parametrize("fused", [True, False])
def test_alibi_lowers_scores_by_distance(fused: bool) -> None:
    found = attention(alibi=True, fused=fused)(*states(), None)

    torch.testing.assert_close(found, defined(*states(), slopes=[1 / 4, 1 / 16, 1 / 64, 1 / 256]))


@pytest.mark.parametrize("fused", [True, False])
def test_a_window_hides_what_is_further_back(fused: bool) -> None:
    found = attention(fused=fused, window_size=(3, 0))(*states(), None)

    torch.testing.assert_close(found, defined(*states(), window=3))


def test_every_second_layer_may_see_all_in_spite_of_the_window() -> None:
    found = attention(window_size=(3, 0), window_attn_skip_freq=2, layer=2)(*states(), None)

    torch.testing.assert_close(found, defined(*states()))


@pytest.mark.parametrize("options", [{}, {"alibi": True}, {"window_size": (3, 0)}])
def test_over_a_filled_cache_the_last_tokens_see_as_without(options: dict[str, object]) -> None:
    query, key, value = states()
    module = attention(**options)  # type: ignore[arg-type]
    whole = module(query, key, value, None)

    torch.testing.assert_close(module(query[-1:], key, value, None), whole[-1:])
    torch.testing.assert_close(module(query[-5:], key, value, None), whole[-5:])


def test_a_mask_hides_more_than_the_future() -> None:
    query, key, value = states()
    hidden = torch.zeros(ROWS, 1, TOKENS, TOKENS, dtype=torch.bool)
    hidden[:, :, 5:, :5] = True
    module = attention()

    found = module(query, key, value, hidden)

    torch.testing.assert_close(found[5:], module(query[5:], key[5:], value[5:], None))


def test_scores_and_probabilities_are_there_as_long_as_they_are_watched() -> None:
    module, seen = attention(alibi=True), []
    unwatched = module(*states(), None)

    handle = module.scale_mask_softmax.register_forward_hook(lambda _, __, output: seen.append(output))
    watched = module(*states(), None)
    handle.remove()
    module(*states(), None)

    torch.testing.assert_close(watched, unwatched)
    assert [tuple(each.shape) for each in seen] == [(ROWS, HEADS, TOKENS, TOKENS)]
    torch.testing.assert_close(seen[0].sum(-1), torch.ones(ROWS, HEADS, TOKENS))


def test_slopes_of_alibi_are_those_of_its_authors() -> None:
    assert alibi_slopes(8) == [2.0**-power for power in range(1, 9)]
    assert alibi_slopes(6) == [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]


def test_tokens_of_another_document_and_of_the_future_are_hidden() -> None:
    hidden = gpt.document_mask(torch.tensor([[0, 1, 0, 1]]))

    assert (~hidden[0, 0]).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]


def of_all_tokens(**options: object) -> Attention:
    """An encoder's."""
    config = TransformerConfig(
        num_layers=2, hidden_size=HEADS * WIDTH, num_attention_heads=HEADS, attention_dropout=0.0
    )
    return Attention(config, 1, AttnMaskType.padding, "self", pg_collection=GROUPS, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [AttnMaskType.padding, AttnMaskType.causal])
def test_padding_that_sees_nothing_gives_numbers_and_gradients(kind: AttnMaskType) -> None:
    query, key, value = (each.requires_grad_() for each in states())
    hidden = torch.zeros(ROWS, 1, TOKENS, TOKENS, dtype=torch.bool)
    hidden[:, :, 9:] = hidden[..., 9:] = True
    config = TransformerConfig(num_layers=2, hidden_size=HEADS * WIDTH, num_attention_heads=HEADS)
    module = Attention(config, 1, kind, "self", pg_collection=GROUPS).eval()

    found = module(query, key, value, hidden, attention_bias=torch.randn(1, HEADS, TOKENS, TOKENS))
    found[:9].sum().backward()

    assert found.isfinite().all()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in (query, key, value))


def t5_bucket(distance: int, *, both_ways: bool) -> int:
    """Of a key so far behind its query, by the paper's rule (Raffel et al., 2020): half of 32 buckets a direction in an
    encoder; half of those are exact, the others grow to 128 as a logarithm does."""
    buckets, start = (16, 16 if distance > 0 else 0) if both_ways else (32, 0)
    far = abs(distance) if both_ways else max(-distance, 0)
    exact = buckets // 2
    if far < exact:
        return start + far
    return start + min(exact + int(math.log(far / exact) / math.log(128 / exact) * (buckets - exact)), buckets - 1)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("both_ways", [True, False])
def test_t5s_buckets_are_added_to_scores(fused: bool, both_ways: bool) -> None:
    length = 200
    table = RelativePositionEmbedding(both_ways, torch.nn.init.normal_, HEADS)
    query, key, value = torch.randn(3, length, ROWS, HEADS, WIDTH).unbind()
    buckets = [[t5_bucket(k - q, both_ways=both_ways) for k in range(length)] for q in range(length)]
    bias = table.relative_attention_bias.weight[torch.tensor(buckets)].permute(2, 0, 1)
    scores = torch.einsum("qrhw,krhw->rhqk", query, key) / math.sqrt(WIDTH) + bias
    wanted = torch.einsum("rhqk,krhw->qrhw", scores.softmax(-1), value).flatten(2)

    found = of_all_tokens(fused=fused)(query, key, value, None, attention_bias=table(length, length))

    torch.testing.assert_close(found, wanted)
