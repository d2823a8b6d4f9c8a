"""What a checkpoint knows of its run, and which resumes it refuses."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.core.trace.values import Setting
from megatronapp.trainer import arguments, recipe
from megatronapp.trainer.config import SECTIONS
from megatronapp.trainer.config_fields import EFFECT, Effect
from megatronapp.trainer.data import build_tokenizer
from megatronapp.trainer.data.tokenizers import HuggingFaceTokenizer
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.plugins.base import Plugin
from megatronapp.trainer.recipe import RunRecipe
from megatronapp.trainer.versions import library_versions

NEEDED = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --train-iters 10 --micro-batch-size 2 --seq-length 32 "
    "--lr 1e-3"
)
TOKENIZER = Path("examples/data/tokenizer.json").resolve()


class Widen(Plugin):
    """Foreign to the trainer, with flags of its own types."""

    name = "widen"

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--widen", "-w", type=Path)
        parser.add_argument("--widen-parts", type=int, nargs="+", default=())


def recipe_of(flags: str = "", world_size: int = 1) -> RunRecipe:
    config, namespace = arguments.parse(f"{NEEDED} {flags}".split(), [Widen])
    versions = library_versions(torch.device("cpu"))
    given = arguments.plugin_flags([Widen], namespace)
    return RunRecipe.of(config, Layout.of(config, world_size), build_tokenizer(config.data), versions, given)


def changed(saved: str, now: str, effect: Effect = Effect.FORWARD) -> list[str]:
    return [difference.flag for difference in recipe_of(saved).differences(recipe_of(now), effect)]


@pytest.mark.parametrize(
    "field", [field for section in SECTIONS.values() for field in dataclasses.fields(section)], ids=lambda f: f.name
)
def test_of_every_flag_it_is_known_what_it_changes(field: dataclasses.Field[object]) -> None:
    assert isinstance(field.metadata.get(EFFECT), Effect)


@pytest.mark.parametrize(
    ("saved", "now", "flags"),
    [
        ("--position-embedding-type rope", "--position-embedding-type rope --rotary-base 500000", ["--rotary-base"]),
        ("--position-embedding-type rope", "--position-embedding-type rope --rotary-percent 0.5", ["--rotary-percent"]),
        ("", "--norm-epsilon 0.1", ["--norm-epsilon"]),
        ("", "--bf16", ["--bf16"]),
        ("", "--normalization RMSNorm --swiglu", ["--normalization", "--swiglu"]),
        ("", "--hidden-size 128", ["--hidden-size"]),
        ("--ffn-hidden-size 128", "", ["--ffn-hidden-size"]),
        ("", "--hidden-dropout 0.5 --attention-dropout 0", ["--attention-dropout", "--hidden-dropout"]),
        ("", "--position-embedding-type rope", ["--position-embedding-type"]),
        ("", "--max-position-embeddings 64", ["--max-position-embeddings"]),
        ("", "--seq-length 64", ["--seq-length"]),
        ("--max-position-embeddings 64", "", ["--max-position-embeddings"]),
        (
            "--max-position-embeddings 64",
            "--seq-length 64 --max-position-embeddings 128",
            ["--max-position-embeddings"],
        ),
        (
            "--num-experts 4 --disable-bias-linear",
            "--num-experts 4 --disable-bias-linear --moe-router-topk 1",
            ["--moe-router-topk"],
        ),
        ("--tokenizer-type NullTokenizer --vocab-size 256", "", ["--tokenizer-type"]),
        (
            "--tokenizer-type NullTokenizer --vocab-size 256",
            "--tokenizer-type NullTokenizer --vocab-size 300",
            ["--vocab-size"],
        ),
    ],
)
def test_what_changes_the_forward_pass_is_named(saved: str, now: str, flags: list[str]) -> None:
    assert changed(saved, now) == flags


@pytest.mark.parametrize(
    ("saved", "now"),
    [
        ("", "--ffn-hidden-size 256 --kv-channels 16 --max-position-embeddings 32"),
        ("", "--rotary-base 500000 --rotary-percent 0.5 --moe-router-topk 1 --num-query-groups 2 --add-qkv-bias"),
        ("--position-embedding-type rope", "--position-embedding-type rope --max-position-embeddings 64"),
        ("", "--tensor-model-parallel-size 2 --recompute-granularity selective --num-workers 0 --deterministic-mode"),
    ],
)
def test_what_computes_the_same_is_no_difference(saved: str, now: str) -> None:
    now_recipe = recipe_of(now, world_size=2 if "parallel" in now else 1)

    assert recipe_of(saved).differences(now_recipe, Effect.FORWARD) == []
    assert recipe_of(saved).differences(now_recipe, Effect.TRAINING) == []


def test_what_changes_training_alone_is_told_apart() -> None:
    now = "--lr 1e-4 --moe-aux-loss-coeff 0.1 --global-batch-size 4 --optimizer sgd"

    assert changed("", now) == []
    assert changed("", now, Effect.TRAINING) == ["--moe-aux-loss-coeff", "--global-batch-size", "--optimizer", "--lr"]


def test_more_ranks_without_a_batch_size_are_another_batch_size() -> None:
    found = recipe_of(world_size=1).differences(recipe_of(world_size=2), Effect.TRAINING)

    assert recipe.listed(found) == "--global-batch-size 2, not 4"


def tokenizer_flags(file: Path) -> str:
    return f"--tokenizer-type HuggingFaceTokenizer --tokenizer-model {file}"


def test_the_same_tokenizer_elsewhere_is_the_same(tmp_path: Path) -> None:
    elsewhere = tmp_path / "tokenizer.json"
    elsewhere.write_bytes(TOKENIZER.read_bytes())

    assert changed(tokenizer_flags(TOKENIZER), tokenizer_flags(elsewhere)) == []


def test_another_vocabulary_of_the_same_size_is_another_tokenizer(tmp_path: Path) -> None:
    document = json.loads(TOKENIZER.read_text())
    vocabulary = document["model"]["vocab"]
    first, second = [name for name in vocabulary if len(name) == 1][:2]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    swapped = tmp_path / "tokenizer.json"
    swapped.write_text(json.dumps(document))

    assert HuggingFaceTokenizer(swapped).vocab_size == HuggingFaceTokenizer(TOKENIZER).vocab_size
    assert changed(tokenizer_flags(TOKENIZER), tokenizer_flags(swapped)) == ["--tokenizer-model"]


@given(
    epsilon=st.floats(min_value=0, max_value=1, allow_subnormal=True),
    base=st.integers(1, 10**12),
    paths=st.lists(st.from_regex(r"[a-z/]{1,8}", fullmatch=True), min_size=1, max_size=4),
    changes=st.dictionaries(st.text(), st.text()),
)
def test_a_recipe_reads_back_as_it_was_written(
    epsilon: float, base: int, paths: list[str], changes: dict[str, str]
) -> None:
    flags = f"--norm-epsilon {epsilon!r} --rotary-base {base} --data-path {' '.join(paths)} --widen {paths[0]}"
    written = recipe_of(flags).with_changes({"widen": changes})

    assert RunRecipe.from_json(written.to_json()) == written


CHANGED = {"widen": {"attention_softmax_in_fp32": "False"}}


@pytest.mark.parametrize(
    ("now", "changes", "said"),
    [
        ("", {"widen": {}}, "--widen a, not unset"),
        ("", {}, "--widen a, not unset"),
        ("--widen a", {"widen": {}}, "the plug-in widen's attention_softmax_in_fp32 False, not unset"),
        (
            "--widen a",
            {"widen": {"qk_clip": "True"}, "other": {}},
            "attention_softmax_in_fp32 False, not unset; .*True",
        ),
        ("--widen a", {**CHANGED, "other": {"qk_clip": "True"}}, "the plug-in other's qk_clip unset, not True"),
    ],
)
def test_what_a_plugin_made_of_the_model_is_named_by_its_flags(
    now: str, changes: dict[str, dict[str, str]], said: str
) -> None:
    saved = RunRecipe.from_json(recipe_of("--widen a").with_changes(CHANGED).to_json())

    assert re.search(said, recipe.listed(saved.plugin_differences(recipe_of(now).with_changes(changes))))


def test_a_plugins_flags_may_change_as_long_as_the_model_is_the_same() -> None:
    saved = recipe_of("--widen a").with_changes(CHANGED)

    assert saved.plugin_differences(recipe_of("--widen b --widen-parts 1 2").with_changes(CHANGED)) == []


def test_of_an_earlier_recipe_it_is_not_known_what_plugins_did() -> None:
    document = json.loads(recipe_of().to_json())
    del document["plugins"]
    saved = RunRecipe.from_json(json.dumps({**document, "schema": 1}))

    assert saved.plugin_differences(recipe_of().with_changes(CHANGED)) == []
    assert saved.differences(recipe_of(), Effect.FORWARD) == []


def test_a_flag_that_is_younger_than_the_recipe_had_its_default() -> None:
    document = json.loads(recipe_of().to_json())
    del document["settings"]["forward"]["norm_epsilon"]
    saved = RunRecipe.from_json(json.dumps(document))

    assert saved.differences(recipe_of(), Effect.FORWARD) == []
    assert recipe.listed(saved.differences(recipe_of("--norm-epsilon 0.1"), Effect.FORWARD)) == (
        "--norm-epsilon 1e-05, not 0.1"
    )


@pytest.mark.parametrize(("saved", "now"), [(2, "2"), (None, "")])
def test_a_flag_that_took_one_value_before_it_took_several_is_the_same(saved: int | None, now: str) -> None:
    window = "--window-size 4 0"
    document = json.loads(recipe_of(window).to_json())
    document["settings"]["forward"]["window_attn_skip_freq"] = saved

    older = RunRecipe.from_json(json.dumps({**document, "schema": 7}))

    of_now = recipe_of(f"{window} --window-attn-skip-freq {now}" if now else window)
    assert older.differences(of_now, Effect.FORWARD) == []
    assert older.to_config() == of_now.to_config()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": 1, "settings": {}, "tokenizer": {}, "versions": {}}'])
def test_what_is_no_recipe_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="no recipe of a run"):
        RunRecipe.from_json(text)


LAYOUT_OF_SCHEMA = {
    2: {
        "recipe": {"schema", "settings", "tokenizer", "versions", "plugins"},
        "settings": {"forward", "training", "operation"},
        "tokenizer": {"class", "vocab_size", "sha256", "special_tokens"},
        "plugins": {"flags", "changes"},
        "forward": {
            "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "kv_channels",
            "group_query_attention", "num_query_groups", "position_embedding_type", "max_position_embeddings",
            "rotary_base", "rotary_percent", "normalization", "norm_epsilon", "swiglu", "disable_bias_linear",
            "add_qkv_bias", "qk_layernorm", "untie_embeddings_and_output_weights", "make_vocab_size_divisible_by",
            "attention_dropout", "hidden_dropout", "transformer_impl", "num_experts", "moe_router_topk",
            "moe_ffn_hidden_size", "moe_router_load_balancing_type", "bf16", "tokenizer_type", "vocab_size",
        },
    },
    3: {
        "recipe": {"schema", "settings", "tokenizer", "versions", "plugins"},
        "settings": {"forward", "training", "operation"},
        "tokenizer": {"class", "vocab_size", "sha256", "special_tokens"},
        "plugins": {"flags", "changes"},
        "forward": {
            "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "kv_channels",
            "group_query_attention", "num_query_groups", "position_embedding_type", "max_position_embeddings",
            "rotary_base", "rotary_percent", "normalization", "norm_epsilon", "swiglu", "disable_bias_linear",
            "add_qkv_bias", "qk_layernorm", "untie_embeddings_and_output_weights", "make_vocab_size_divisible_by",
            "attention_dropout", "hidden_dropout", "transformer_impl", "num_experts", "moe_router_topk",
            "moe_ffn_hidden_size", "moe_router_load_balancing_type", "bf16", "fp16", "tokenizer_type", "vocab_size",
        },
    },
    4: {
        "recipe": {"schema", "settings", "tokenizer", "versions", "plugins"},
        "settings": {"forward", "training", "operation"},
        "tokenizer": {"class", "vocab_size", "sha256", "special_tokens"},
        "plugins": {"flags", "changes"},
        "forward": {
            "model_type", "bert_no_binary_head", "decoder_num_layers", "vocab_extra_ids",
            "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "kv_channels",
            "group_query_attention", "num_query_groups", "position_embedding_type", "max_position_embeddings",
            "rotary_base", "rotary_percent", "use_rope_scaling", "rope_scaling_factor", "openai_gelu",
            "padded_vocab_size", "normalization", "norm_epsilon", "swiglu", "disable_bias_linear",
            "add_qkv_bias", "qk_layernorm", "untie_embeddings_and_output_weights", "make_vocab_size_divisible_by",
            "attention_dropout", "hidden_dropout", "transformer_impl", "num_experts", "moe_router_topk",
            "moe_ffn_hidden_size", "moe_router_load_balancing_type", "bf16", "fp16", "tokenizer_type", "vocab_size",
        },
    },
    5: {
        "recipe": {"schema", "settings", "tokenizer", "versions", "plugins"},
        "settings": {"forward", "training", "operation"},
        "tokenizer": {"class", "vocab_size", "sha256", "special_tokens"},
        "plugins": {"flags", "changes"},
        "forward": {
            "model_type", "bert_no_binary_head", "decoder_num_layers", "vocab_extra_ids",
            "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "kv_channels",
            "group_query_attention", "num_query_groups", "position_embedding_type", "max_position_embeddings",
            "rotary_base", "rotary_percent", "use_rope_scaling", "rope_scaling_factor", "openai_gelu",
            "padded_vocab_size", "window_size", "window_attn_skip_freq",
            "normalization", "norm_epsilon", "swiglu", "disable_bias_linear",
            "add_qkv_bias", "qk_layernorm", "untie_embeddings_and_output_weights", "make_vocab_size_divisible_by",
            "attention_dropout", "hidden_dropout", "transformer_impl", "num_experts", "moe_router_topk",
            "moe_ffn_hidden_size", "moe_router_load_balancing_type", "bf16", "fp16", "tokenizer_type", "vocab_size",
        },
    },
    6: {
        "recipe": {"schema", "settings", "tokenizer", "versions", "plugins"},
        "settings": {"forward", "training", "operation"},
        "tokenizer": {"class", "vocab_size", "sha256", "special_tokens"},
        "plugins": {"flags", "changes"},
        "forward": {
            "model_type", "bert_no_binary_head", "decoder_num_layers", "vocab_extra_ids",
            "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "kv_channels",
            "group_query_attention", "num_query_groups", "position_embedding_type", "max_position_embeddings",
            "relative_attention_num_buckets", "relative_attention_max_distance",
            "rotary_base", "rotary_percent", "use_rope_scaling", "rope_scaling_factor", "openai_gelu",
            "padded_vocab_size", "window_size", "window_attn_skip_freq",
            "normalization", "norm_epsilon", "swiglu", "disable_bias_linear",
            "add_qkv_bias", "qk_layernorm", "untie_embeddings_and_output_weights", "make_vocab_size_divisible_by",
            "attention_dropout", "hidden_dropout", "transformer_impl", "num_experts", "moe_router_topk",
            "moe_ffn_hidden_size", "moe_router_load_balancing_type", "bf16", "fp16", "tokenizer_type", "vocab_size",
        },
    },
    7: {
        "recipe": {"schema", "settings", "tokenizer", "versions", "plugins"},
        "settings": {"forward", "training", "operation"},
        "tokenizer": {"class", "vocab_size", "sha256", "special_tokens"},
        "plugins": {"flags", "changes"},
        "forward": {
            "model_type", "bert_no_binary_head", "decoder_num_layers", "vocab_extra_ids",
            "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "kv_channels",
            "group_query_attention", "num_query_groups", "position_embedding_type", "max_position_embeddings",
            "softmax_scale", "relative_attention_num_buckets", "relative_attention_max_distance",
            "rotary_base", "rotary_percent", "use_rope_scaling", "rope_scaling_factor", "openai_gelu",
            "padded_vocab_size", "window_size", "window_attn_skip_freq",
            "normalization", "norm_epsilon", "swiglu", "geglu", "squared_relu", "disable_bias_linear",
            "add_qkv_bias", "qk_layernorm", "untie_embeddings_and_output_weights", "make_vocab_size_divisible_by",
            "attention_dropout", "hidden_dropout", "transformer_impl", "num_experts", "moe_router_topk",
            "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size",
            "moe_router_load_balancing_type", "bf16", "fp16",
            "tokenizer_type", "vocab_size",
        },
    },
    8: {
        "recipe": {"schema", "settings", "tokenizer", "versions", "plugins"},
        "settings": {"forward", "training", "operation"},
        "tokenizer": {"class", "vocab_size", "sha256", "special_tokens"},
        "plugins": {"flags", "changes"},
        "forward": {
            "model_type", "bert_no_binary_head", "decoder_num_layers", "vocab_extra_ids",
            "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "kv_channels",
            "group_query_attention", "num_query_groups", "position_embedding_type", "max_position_embeddings",
            "softmax_scale", "relative_attention_num_buckets", "relative_attention_max_distance",
            "rotary_base", "rotary_percent", "use_rope_scaling", "rope_scaling_factor", "openai_gelu",
            "padded_vocab_size", "window_size", "window_attn_skip_freq",
            "normalization", "norm_epsilon", "swiglu", "geglu", "squared_relu", "disable_bias_linear",
            "add_qkv_bias", "qk_layernorm", "untie_embeddings_and_output_weights", "make_vocab_size_divisible_by",
            "attention_dropout", "hidden_dropout", "transformer_impl", "num_experts", "moe_router_topk",
            "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size",
            "moe_router_load_balancing_type", "bf16", "fp16",
            "tokenizer_type", "vocab_size",
        },
    },
    9: {
        "recipe": {"schema", "settings", "tokenizer", "versions", "plugins"},
        "settings": {"forward", "training", "operation"},
        "tokenizer": {"class", "vocab_size", "sha256", "special_tokens"},
        "plugins": {"flags", "changes"},
        "forward": {
            "model_type", "bert_no_binary_head", "decoder_num_layers", "vocab_extra_ids",
            "num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "kv_channels",
            "group_query_attention", "num_query_groups", "position_embedding_type", "max_position_embeddings",
            "softmax_scale", "relative_attention_num_buckets", "relative_attention_max_distance",
            "rotary_base", "rotary_percent", "use_rope_scaling", "rope_scaling_factor", "openai_gelu",
            "padded_vocab_size", "window_size", "window_attn_skip_freq",
            "normalization", "norm_epsilon", "swiglu", "geglu", "squared_relu", "disable_bias_linear",
            "add_qkv_bias", "qk_layernorm", "untie_embeddings_and_output_weights", "make_vocab_size_divisible_by",
            "attention_dropout", "hidden_dropout", "num_experts", "moe_router_topk",
            "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size",
            "moe_router_load_balancing_type", "bf16", "fp16",
            "tokenizer_type", "vocab_size",
        },
    },
}  # fmt: skip
"""A layout that was released stays; a new one is added under the next number."""


def test_what_a_recipe_holds_changes_with_its_schema_alone() -> None:
    document = json.loads(recipe_of().to_json())

    held = {
        "recipe": set(document),
        "settings": set(document["settings"]),
        "tokenizer": set(document["tokenizer"]),
        "plugins": set(document["plugins"]["widen"]),
        "forward": set(document["settings"]["forward"]),
    }
    assert document["schema"] == max(LAYOUT_OF_SCHEMA)
    assert held == LAYOUT_OF_SCHEMA[recipe.SCHEMA], "raise SCHEMA, and add what it holds now"


def test_a_recipe_of_a_newer_version_is_refused() -> None:
    document = {**json.loads(recipe_of().to_json()), "schema": recipe.SCHEMA + 1}

    with pytest.raises(DataError, match="upgrade"):
        RunRecipe.from_json(json.dumps(document))


def test_the_platform_is_told_the_flags_that_have_a_value() -> None:
    told = recipe_of("--widen-parts 1 2 --swiglu --eval-iters 0 --data-path 0.3 a 0.7 b").to_value()
    flags = {setting.name: setting.value for setting in told.settings}

    assert told.settings == tuple(sorted(told.settings, key=lambda setting: setting.name))
    assert flags["num-layers"] == "4"
    assert flags["swiglu"] == "on"
    assert flags["eval-iters"] == "0"
    assert flags["widen-parts"] == "1 2"
    assert flags["data-path"] == "0.3 a 0.7 b"
    assert not {"bf16", "load"} & flags.keys()
    assert Setting(name="torch", value=str(torch.__version__)) in told.versions
