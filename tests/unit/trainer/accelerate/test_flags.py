"""Transformers configurations and other_megatron_args as flags of the trainer."""

from typing import Any

import pytest

from megatronapp.core.errors import DataError, UsageError
from megatronapp.trainer.accelerate.flags import longest, model_flags, other_flags, vocabulary_flags
from megatronapp.trainer.arguments import build_parser

BERT = {
    "model_type": "megatron-bert",
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "max_position_embeddings": 16,
    "vocab_size": 97,
}
T5 = {"model_type": "t5", "num_layers": 2, "d_model": 32, "d_ff": 64, "num_heads": 2, "d_kv": 16, "vocab_size": 97}
GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 97}
RUN = ["--seq-length", "16", "--micro-batch-size", "1", "--train-iters", "1", "--lr", "1"]


@pytest.mark.parametrize(("config", "family"), [(BERT, "bert"), (T5, "t5"), (GPT2, "gpt")])
def test_a_configuration_is_a_model_of_its_family(config: dict[str, Any], family: str) -> None:
    parsed = build_parser().parse_args([*model_flags(config), *vocabulary_flags(config), *RUN])

    assert (parsed.model_type, parsed.num_layers, parsed.hidden_size, parsed.vocab_size) == (family, 2, 32, 96)


@pytest.mark.parametrize(("named", "flag"), [("gelu_new", "--openai-gelu"), ("relu2", "--squared-relu")])
def test_an_activation_is_the_configurations(named: str, flag: str) -> None:
    assert flag in model_flags({**BERT, "hidden_act": named})


def test_the_longest_sequence_is_the_models() -> None:
    assert (longest(GPT2), longest(BERT)) == (16, 16)
    with pytest.raises(UsageError, match="seq_length"):
        longest(T5)


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ({"position_embedding_type": "rotary"}, "--position-embedding-type rope"),
        ({"position_embedding_type": "absolute"}, "--position-embedding-type learned_absolute"),
        ({"position_embedding_type": "alibi"}, "--position-embedding-type alibi"),
        ({"attention_head_type": "multiquery"}, "--group-query-attention --num-query-groups 1"),
        ({"attention_head_type": "multihead"}, ""),
        ({"vocab_file": "a b", "finetune": True, "seed": None, "bf16": False}, "--vocab-file a b --finetune"),
        ({"data_path": "0.5 a 0.5 b", "splits_string": "90,10"}, "--data-path 0.5 a 0.5 b --split 90,10"),
        ({"data_path": ["a", "b"]}, "--data-path a b"),
        ({"valid_data_path": "0.5 a 0.5 b"}, "--valid-data-path 0.5 a 0.5 b"),
    ],
)
def test_other_arguments_are_flags(arguments: dict[str, Any], flags: str) -> None:
    assert " ".join(other_flags(arguments)) == flags


def test_what_there_is_no_model_for_is_refused() -> None:
    with pytest.raises(DataError, match="model_type is 'bloom'"):
        model_flags({"model_type": "bloom"})
    with pytest.raises(DataError, match="hidden_act is 'silu'"):
        model_flags({**BERT, "hidden_act": "silu"})
    with pytest.raises(UsageError, match="multihead or multiquery"):
        other_flags({"attention_head_type": "grouped"})
