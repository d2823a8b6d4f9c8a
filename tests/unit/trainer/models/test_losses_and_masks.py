"""What families make of a microbatch, apart from the layers."""

from __future__ import annotations

import math

import pytest
import torch

from megatronapp.core.errors import UsageError
from megatronapp.trainer import arguments, plugin_flags
from megatronapp.trainer.models import bert, family_of, t5
from megatronapp.trainer.plugins.scope import ScopePlugin

NEEDED = (
    "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --train-iters 10 --micro-batch-size 2 --seq-length 32 "
    "--lr 1e-3 --max-position-embeddings 32"
)


def test_a_bert_learns_from_the_mean_of_its_masked_words_and_of_its_rows() -> None:
    batch = {"loss_mask": torch.tensor([[1, 0, 1], [0, 0, 1]]), "is_random": torch.tensor([0, 1])}
    losses = torch.tensor([[3.0, 50.0, 1.0], [50.0, 50.0, 2.0]])

    total, tokens, logged = bert._loss(batch, (losses, torch.zeros(2, 2)))

    assert float(total / tokens) == pytest.approx(2.0 + math.log(2))
    assert logged.tolist() == [[6.0, 3.0], [pytest.approx(2 * math.log(2)), 2.0]]


def test_without_a_masked_word_a_bert_learns_the_order_alone() -> None:
    batch = {"loss_mask": torch.zeros(1, 3), "is_random": torch.tensor([0])}

    total, tokens, _ = bert._loss(batch, (torch.ones(1, 3), torch.zeros(1, 2)))

    assert float(total / tokens) == pytest.approx(math.log(2))


def test_a_t5_looks_at_no_padding_and_its_decoder_at_nothing_that_follows() -> None:
    encoder, decoder, across = t5.attention_masks(
        {"enc_mask": torch.tensor([[1, 1, 0]]), "dec_mask": torch.tensor([[1, 1, 0, 0]])}
    )

    assert (~encoder)[0, 0].tolist() == [[True, True, False], [True, True, False], [False, False, False]]
    assert (~decoder)[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    assert (~across)[0, 0].int().tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 0], [0, 0, 0]]


def test_a_t5_of_transformer_engine_is_told_what_is_padding() -> None:
    words = {"enc_mask": torch.tensor([[1, 1, 0]]), "dec_mask": torch.tensor([[1, 1, 0, 0]])}

    encoder, decoder, (queries, keys) = t5.attention_masks(words, "transformer_engine")

    assert encoder.tolist() == keys.tolist() == [[[[False, False, True]]]]
    assert queries.tolist() == [[[[False, False, True, True]]]]
    assert decoder is None, "its attention is causal"


def test_parameters_of_known_models() -> None:
    """BERT large has 336 M, T5's encoder and decoder of 12 layers of 768 about 220 M."""
    large = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --model-type bert"
    base = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --model-type t5"
    models = [arguments.parse(f"{NEEDED} {flags}".split())[0].model for flags in (large, base)]

    counts = [family_of(model).parameters(model, 30_522, 512) for model in models]

    assert counts == pytest.approx([336e6, 222e6], rel=0.01)


@pytest.mark.parametrize("flag", ["--scope", "--enable-ws-server"])
def test_a_plugin_that_looks_into_the_layers_of_a_gpt_is_refused_with_another_family(flag: str) -> None:
    config, namespace = arguments.parse(f"{NEEDED} --model-type bert {flag}".split(), [ScopePlugin])

    with pytest.raises(UsageError, match=f"{flag} knows the layers of a GPT: leave it out with --model-type bert"):
        plugin_flags.check_plugin_flags(config, namespace)
