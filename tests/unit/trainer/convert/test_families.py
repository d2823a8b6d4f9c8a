"""Families: what config.json becomes, what is refused, and weights that go there and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from megatronapp.core.errors import DataError, UsageError
from megatronapp.trainer import arguments
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.convert import families
from megatronapp.trainer.convert.family import Sizes
from megatronapp.trainer.convert.fields import Fields
from tests.support.hugging_face import BERT, CONFIGS, GPT2, LLAMA, OF_A_RUN, T5, WINDOW, random_tensors, weights_of

LLAMA_3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def flags_of(config: Any) -> list[str]:
    fields = Fields(config, "config.json")
    return families.of_config(fields).flags(fields)


def settings_of(config: Any) -> TrainerConfig:
    return arguments.parse([*flags_of(config), *OF_A_RUN])[0]


@pytest.mark.parametrize("name", CONFIGS)
def test_weights_that_are_split_are_those_that_were_joined(name: str) -> None:
    tensors = random_tensors(CONFIGS[name])

    for weight in weights_of(CONFIGS[name]):
        parts = [tensors[source] for source in weight.sources]
        joined = weight.join(parts)
        assert tuple(joined.shape) == weight.shape
        assert all(map(torch.equal, weight.split(joined), parts))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_settings_of_a_model_make_a_config_with_the_same_settings(name: str) -> None:
    trainer = settings_of(CONFIGS[name])
    family = families.of_config(Fields(CONFIGS[name], "config.json"))

    config = family.config(trainer, Sizes.of(trainer.model, 33, 8))

    assert settings_of(config) == trainer
    assert config["vocab_size"] == 33
    assert family.matches(trainer.model)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_family_is_found_by_settings_where_they_tell_it(name: str) -> None:
    found = families.of_model(settings_of(CONFIGS[name]).model)

    kind = "llama" if name == "mistral" else CONFIGS[name]["model_type"]
    assert found.name == {"mt5": "t5"}.get(kind, kind)


def test_the_scaled_rotation_of_llama_3_is_expressed() -> None:
    model = settings_of({**LLAMA, "rope_theta": 500000.0, "rope_scaling": LLAMA_3}).model

    assert (model.use_rope_scaling, model.rope_scaling_factor, model.rotary_base) == (True, 32.0, 500_000)


def test_rotation_is_read_where_newer_files_have_it() -> None:
    model = settings_of({**LLAMA, "rope_parameters": {**LLAMA_3, "rope_theta": 500000.0}}).model

    assert (model.use_rope_scaling, model.rotary_base) == (True, 500_000)


@pytest.mark.parametrize(
    ("name", "changes", "window", "layers"),
    [
        ("mistral", {"sliding_window": 16}, (15, 0), ()),
        ("mistral", {"sliding_window": 1}, (0, 0), ()),
        ("mistral", {}, (), ()),
        ("qwen2", {"sliding_window": 16}, (), ()),
        ("qwen2", {**WINDOW, "sliding_window": None, "max_window_layers": 0}, (), ()),
        ("qwen2", WINDOW, (), ()),
        ("qwen2", {**WINDOW, "max_window_layers": 0}, (15, 0), ()),
        ("qwen2", {**WINDOW, "max_window_layers": 1}, (15, 0), (0, 1)),
        ("qwen3", {**WINDOW, "layer_types": ["sliding_attention", "full_attention"]}, (15, 0), (1, 0)),
        ("qwen3", {**WINDOW, "layer_types": ["full_attention"] * 2, "max_window_layers": 0}, (), ()),
        ("llama", {"sliding_window": 16}, (), ()),
    ],
)
def test_a_token_of_a_windowed_layer_sees_one_token_less_before_it_than_its_window_has(
    name: str, changes: Any, window: tuple[int, ...], layers: tuple[int, ...]
) -> None:
    model = settings_of({**CONFIGS[name], **changes}).model

    assert (model.window_size, model.window_attn_skip_freq) == (window, layers)
    assert model.max_position_embeddings == 32


def test_mistrals_window_where_nobody_names_it_is_that_of_its_first_model() -> None:
    config = {name: value for name, value in CONFIGS["mistral"].items() if name != "sliding_window"}

    assert settings_of(config).model.window_size == (4095, 0)


def test_every_so_many_layers_without_a_window_are_written_layer_by_layer() -> None:
    qwen = settings_of(CONFIGS["qwen2-window"])
    model = replace(qwen.model, num_layers=4, window_attn_skip_freq=(2,))

    config = families.of_model(model).config(replace(qwen, model=model), Sizes.of(model, 33, 8))

    assert config["layer_types"] == ["sliding_attention", "full_attention"] * 2
    assert settings_of(config).model.window_attn_skip_freq == (1, 0, 1, 0)


def test_a_window_of_some_layers_is_not_mistrals() -> None:
    model = replace(settings_of(CONFIGS["mistral-window"]).model, window_attn_skip_freq=(2,))

    with pytest.raises(UsageError, match="no family"):
        families.of_model(model)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({**LLAMA, "model_type": "bloom"}, "'bloom'"),
        ({"hidden_size": 16}, "lacks model_type"),
        ({**LLAMA, "hidden_act": "gelu"}, "hidden_act"),
        ({**BERT, "hidden_act": "gelu_new"}, "hidden_act"),
        ({**BERT, "position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({**BERT, "type_vocab_size": 4}, "type_vocab_size"),
        ({**T5, "feed_forward_proj": "relu"}, "feed_forward_proj is 'relu'"),
        ({**T5, "tie_word_embeddings": True}, "tie_word_embeddings"),
        ({**T5, "tie_word_embeddings": None}, "tie_word_embeddings"),
        ({**T5, "d_kv": None}, "lacks d_kv"),
        ({**LLAMA, "hidden_size": "x" * 1000}, "hidden_size is 'xxx"),
        ({**LLAMA, "hidden_size": -1}, "hidden_size is -1"),
        ({**LLAMA, "num_hidden_layers": True}, "num_hidden_layers is True"),
        ({**LLAMA, "attention_bias": True}, "attention_bias"),
        ({**LLAMA, "mlp_bias": True}, "mlp_bias"),
        ({**LLAMA, "rope_theta": 10000.5}, "rope_theta"),
        ({**LLAMA, "rms_norm_eps": float("nan")}, "rms_norm_eps"),
        ({**LLAMA, "partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}}, "'linear'"),
        ({**LLAMA, "rope_scaling": {**LLAMA_3, "low_freq_factor": 2.0}}, "low_freq_factor is 2.0"),
        ({**LLAMA, "rope_scaling": {**LLAMA_3, "original_max_position_embeddings": 4096}}, "original_max_position"),
        ({**LLAMA, "rope_scaling": 8}, "rope_scaling is 8"),
        ({**LLAMA, "quantization_config": {"bits": 4}}, "quantised"),
        ({**CONFIGS["qwen3"], "attention_bias": True}, "attention_bias"),
        ({**CONFIGS["mistral"], "sliding_window": 0}, "sliding_window is 0"),
        ({**CONFIGS["qwen2"], "use_sliding_window": "yes"}, "use_sliding_window is 'yes'"),
        ({**CONFIGS["qwen2"], **WINDOW, "max_window_layers": -1}, "max_window_layers is -1"),
        ({**CONFIGS["qwen2"], **WINDOW, "num_hidden_layers": 2**31 - 1}, "num_hidden_layers"),
        ({**CONFIGS["qwen2"], **WINDOW, "layer_types": ["full_attention"]}, "layer_types"),
        ({**CONFIGS["qwen2"], **WINDOW, "layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
        ({**CONFIGS["qwen2"], **WINDOW, "layer_types": 2}, "layer_types is 2"),
        ({**GPT2, "activation_function": "relu"}, "'relu'"),
        ({**GPT2, "scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({**GPT2, "n_positions": None}, "lacks n_positions"),
    ],
)
def test_what_the_trainer_can_not_express_is_refused_by_name(config: Any, named: str) -> None:
    with pytest.raises(DataError, match=named) as error:
        flags_of(config)

    assert len(str(error.value)) < 300


def test_a_model_that_no_family_has_is_refused() -> None:
    config = arguments.parse(
        ["--num-layers", "2", "--hidden-size", "16", "--num-attention-heads", "2", *OF_A_RUN, "--swiglu"]
    )[0]

    with pytest.raises(UsageError, match="no family"):
        families.of_model(config.model)
    with pytest.raises(UsageError, match="'bloom'"):
        families.named("bloom")


@pytest.mark.parametrize("flags", ["--window-size 8,0", "--position-embedding-type alibi"])
def test_a_window_and_alibi_are_of_no_family(flags: str) -> None:
    config = arguments.parse(
        ["--num-layers", "2", "--hidden-size", "16", "--num-attention-heads", "2", *OF_A_RUN, *flags.split()]
    )[0]

    with pytest.raises(UsageError, match="no family"):
        families.of_model(config.model)
