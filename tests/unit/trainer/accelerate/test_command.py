"""--accelerate-config: what it is taken out of, and the global batch that follows."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from megatronapp.cli.main import app
from megatronapp.core.errors import UsageError
from megatronapp.trainer.accelerate.command import is_script, taken_out, with_batch
from megatronapp.trainer.accelerate.plugin import AccelerateConfig


@pytest.mark.parametrize("given", [["--accelerate-config", "a.yaml"], ["--accelerate-config=a.yaml"]])
def test_the_file_is_taken_out_of_the_flags(given: list[str]) -> None:
    assert taken_out(["--lr", "1", *given, "--bf16"]) == (Path("a.yaml"), ["--lr", "1", "--bf16"])


@pytest.mark.parametrize("given", [["--accelerate-config"], ["--accelerate-config", "--lr"], ["--accelerate-config="]])
def test_a_missing_file_is_said(given: list[str]) -> None:
    with pytest.raises(UsageError, match="takes the YAML file"):
        taken_out(given)


def test_the_batch_is_that_of_all_microbatches_and_data_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    config = AccelerateConfig(processes=8, precision="no", settings={"tp_degree": 2, "num_micro_batches": 3})

    assert with_batch(config, ["--micro-batch-size=2"])[-2:] == ["--global-batch-size", "24"]
    assert with_batch(config, ["--global-batch-size", "6"])[-2:] == ["--global-batch-size", "6"]
    with pytest.raises(UsageError, match="--micro-batch-size 'x'"):
        with_batch(config, ["--micro-batch-size", "x"])


def test_a_script_is_told_from_flags() -> None:
    assert is_script(["train.py", "--lr", "1"])
    assert not is_script(["--lr", "1"])
    assert not is_script([])


def test_questions_are_answered_into_a_file_that_is_read(tmp_path: Path) -> None:
    file = tmp_path / "megatron.yaml"
    answers = "2\ny\n2\n4\nn\ny\n0.5\nbf16\n8\n"

    result = CliRunner().invoke(app, ["config", "--config-file", os.fspath(file)], input=answers)

    assert result.exit_code == 0, result.output
    config = AccelerateConfig.read(file)
    assert (config.processes, config.precision) == (8, "bf16")
    assert config.settings == {
        "tp_degree": 2,
        "sequence_parallelism": True,
        "pp_degree": 2,
        "num_micro_batches": 4,
        "recompute_activations": False,
        "use_distributed_optimizer": True,
        "gradient_clipping": 0.5,
    }
