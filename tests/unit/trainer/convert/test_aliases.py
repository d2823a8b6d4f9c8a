"""Other converters' command lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.trainer.convert.aliases import translate
from megatronapp.trainer.convert.arguments import parse

LOADER = "--model-type GPT --loader llama_mistral --saver core --load-dir a --save-dir b"


@pytest.mark.parametrize(
    ("line", "translated"),
    [
        ("hf-to-core a b --target-params-dtype bf16", "hf-to-core a b --target-params-dtype bf16"),
        ("--load_path a --save_path b --print-checkpoint-structure", "hf-to-core a b --print-checkpoint-structure"),
        (
            "--load_path=a --save_path=b --target_tensor_model_parallel_size 2 --target_pipeline_model_parallel_size 4 "
            "--target_data_parallel_size 2 --target_params_dtype bf16 --make_vocab_size_divisible_by 128 "
            "--use_distributed_optimizer --megatron-path /m",
            "hf-to-core a b --target-tensor-model-parallel-size 2 --target-pipeline-model-parallel-size 4 "
            "--target-params-dtype bf16",
        ),
        (
            "--convert_checkpoint_from_megatron_to_transformers --load_path a --save_path b --max_shard_size 200MB "
            "--tokenizer_name t",
            "core-to-hf a b --max-shard-size 200MB",
        ),
        (
            f"{LOADER} --checkpoint-type hf --model-size llama3 --tokenizer-model t --bf16 "
            "--target-tensor-parallel-size 2 --target-pipeline-parallel-size 1",
            "hf-to-core a b --target-tensor-model-parallel-size 2 --target-pipeline-model-parallel-size 1 "
            "--target-params-dtype bf16 --tokenizer-model t",
        ),
        ("--loader core --saver hf --load-dir a --save-dir b", "core-to-hf a b"),
        (
            "--loader megatron --saver core --load-dir a --save-dir b --target-tensor-parallel-size 2",
            "megatron-to-core a b --target-tensor-model-parallel-size 2",
        ),
    ],
)
def test_a_command_line_is_understood(line: str, translated: str) -> None:
    assert translate(line.split()) == translated.split()


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (f"{LOADER} --checkpoint-type meta", "checkpoint-type meta"),
        ("--model-type BERT --loader llama_mistral --saver core --load-dir a --save-dir b", "--model-type BERT"),
        ("--loader mixtral_hf --saver core --load-dir a --save-dir b", "mixtral_hf"),
        ("--load_path a", "--save_path"),
        ("--load_path a --save_path b --unheard-of 1", "--unheard-of"),
    ],
)
def test_what_is_not_converted_is_refused_by_name(line: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        translate(line.split())


def test_options_are_read() -> None:
    direction, options = parse(["core-to-hf", "a", "b", "--max-shard-size", "2GiB", "--model-type", "mistral"])

    assert direction == "core-to-hf"
    assert (options.source, options.target) == (Path("a"), Path("b"))
    assert (options.max_shard_bytes, options.model_type) == (2 << 30, "mistral")
    assert parse(["core-to-hf", "a", "b"])[1].max_shard_bytes == 5 * 10**9


@pytest.mark.parametrize(
    "line",
    [
        "",
        "sideways a b",
        "hf-to-core a",
        "core-to-hf a b --max-shard-size 0GB",
        "core-to-hf a b --max-shard-size much",
        "hf-to-core a b --target-tensor-model-parallel-size 0",
        "hf-to-core a b --target-params-dtype int8",
    ],
)
def test_wrong_options_are_refused(line: str) -> None:
    with pytest.raises(UsageError, match="--help"):
        parse(line.split())
