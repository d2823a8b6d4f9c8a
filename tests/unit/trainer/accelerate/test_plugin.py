"""Accelerate's settings: read from its YAML, from a launcher's variables, and refused in one line."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from megatronapp.core.errors import ConfigError, DataError
from megatronapp.trainer.accelerate.plugin import AccelerateConfig, MegatronLMPlugin, from_environment

PAGE: dict[str, Any] = {
    "compute_environment": "LOCAL_MACHINE",
    "deepspeed_config": {},
    "distributed_type": "MEGATRON_LM",
    "downcast_bf16": "no",
    "machine_rank": 0,
    "main_process_ip": None,
    "megatron_lm_config": {
        "megatron_lm_gradient_clipping": 1.0,
        "megatron_lm_num_micro_batches": 2,
        "megatron_lm_pp_degree": 2,
        "megatron_lm_recompute_activations": True,
        "megatron_lm_sequence_parallelism": True,
        "megatron_lm_tp_degree": 2,
        "megatron_lm_use_distributed_optimizer": True,
    },
    "mixed_precision": "bf16",
    "num_processes": 4,
}


def written(folder: Path, document: Any) -> Path:
    file = folder / "accelerate.yaml"
    file.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return file


def test_the_pages_file_becomes_flags(tmp_path: Path) -> None:
    config = AccelerateConfig.read(written(tmp_path, PAGE))

    assert config.processes == 4
    assert " ".join(config.flags()) == (
        "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --clip-grad 1.0 --sequence-parallel "
        "--recompute-activations --use-distributed-optimizer --bf16"
    )


def test_a_launchers_variables_say_the_same(tmp_path: Path) -> None:
    config = AccelerateConfig.read(written(tmp_path, PAGE))

    assert from_environment(config.variables()) == config.settings


def test_what_is_given_wins_over_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATRON_LM_TP_DEGREE", "2")
    monkeypatch.setenv("MEGATRON_LM_PP_DEGREE", "2")

    plugin = MegatronLMPlugin(tp_degree=4)

    assert (plugin.tp_degree, plugin.pp_degree) == (4, 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"megatron_lm_config": {"megatron_lm_tp_degre": 2}}, "did you mean megatron_lm_tp_degree?"),
        ({"colour": 1}, "'colour' is not understood"),
        ({"megatron_lm_config": {"megatron_lm_tp_degree": "two"}}, "megatron_lm_tp_degree is 'two', no int"),
        ({"megatron_lm_config": [1]}, "is no mapping"),
        ({"mixed_precision": "fp8"}, "take no, bf16 or fp16"),
        ({"distributed_type": "FSDP"}, "distributed_type: MEGATRON_LM"),
        ({"num_processes": None}, "num_processes"),
    ],
)
def test_what_is_not_understood_is_named(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    if change == {"num_processes": None}:
        change = {"num_processes": "many"}
    with pytest.raises(ConfigError, match=said) as caught:
        AccelerateConfig.read(written(tmp_path, PAGE | change))

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["a: [", "- 1", "", "\x00", "&a [*a]"])
def test_what_is_no_such_file_is_said(text: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        AccelerateConfig.read(written(tmp_path, text))


def test_a_variable_that_is_no_number_is_named() -> None:
    with pytest.raises(DataError, match="pp_degree is 'x', no int"):
        from_environment({"MEGATRON_LM_PP_DEGREE": "x"})
