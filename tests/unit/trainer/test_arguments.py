"""Flags: names, values, and what is said about wrong ones."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.trainer import arguments
from megatronapp.trainer.plugins.base import Plugin, discover

NEEDED = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --train-iters 10 --micro-batch-size 2 --seq-length 32 "
    "--lr 1e-3"
)


def test_flags_arrive_in_their_sections() -> None:
    config, _ = arguments.parse(
        f"{NEEDED} --bf16 --data-path 0.3 a 0.7 b --recompute-granularity full --clip-grad 0.5".split()
    )

    assert config.model.num_layers == 4
    assert config.schedule.lr == 1e-3
    assert config.training.bf16
    assert config.training.recompute_granularity == "full"
    assert config.data.data_path == ("0.3", "a", "0.7", "b")
    assert config.optimizer.clip_grad == 0.5
    assert config.model.kv_channels is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--num-layer 4", "unknown flag --num-layer; did you mean --num-layers"),
        ("--tensor-parallel-size 2", "did you mean --tensor-model-parallel-size"),
        ("--zzz", "unknown flag --zzz"),
        ("--use-a-dinosaur", "unknown flag --use-a-dinosaur; `megatronapp train --help` lists all flags"),
        ("--hidden-dim 8", "did you mean --hidden-size"),
        ("--hidden-siz=8", "did you mean --hidden-size"),
        ("--micro-batch-size two", "invalid int value: 'two'"),
        ("--normalization BatchNorm", "invalid choice: 'BatchNorm'"),
        ("--bf16 yes", "unexpected value 'yes'"),
        ("--seq-length", "expected one argument"),
        ("--micro-batch-size 0", "--micro-batch-size 0 is too small: the least is 1"),
        ("--lr-warmup-init -1", "--lr-warmup-init -1.0 is too small: the least is 0"),
        ("--clip-grad nan", "--clip-grad nan is too small"),
    ],
)
def test_a_wrong_flag_is_named(flags: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        arguments.parse(f"{NEEDED} {flags}".split())


def test_a_missing_flag_is_named() -> None:
    with pytest.raises(UsageError, match="--lr"):
        arguments.parse(NEEDED.replace("--lr 1e-3", "").split())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--lr 1", "error: the following arguments are required: --num-layers, --hidden-size"),
        (f"{NEEDED} --fp8-param-gather", "error: --fp8-param-gather is refused"),
        (f"{NEEDED} --trace-intervall 3", "error: unknown flag --trace-intervall; did you mean --trace-interval?"),
    ],
)
def test_wrong_flags_are_told_without_torch(flags: str, said: str) -> None:
    program = (
        f"import sys; from megatronapp.trainer.main import main; code = main({flags.split()}); "
        "sys.exit(code if 'torch' not in sys.modules else 'torch was imported')"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert done.stderr.startswith(said)


def test_the_flags_of_each_plugin_are_known_without_it() -> None:
    for plugin in discover():
        parser = argparse.ArgumentParser(add_help=False)
        plugin.add_arguments(parser)
        assert set(parser._option_string_actions) == set(arguments.FLAGS_OF_PLUGINS[plugin.name])


def test_a_flag_may_be_of_a_plugin_that_only_knows_itself() -> None:
    arguments.check_known(["--volume", "11"], ["scan", "loud"])

    with pytest.raises(UsageError, match="unknown flag --volume"):
        arguments.check_known(["--volume", "11"], ["scan"])


@pytest.mark.parametrize("flags", ["--help", "--num-layer 4", "--volume 11", NEEDED])
def test_what_else_may_be_wrong_is_left_to_the_parser(flags: str) -> None:
    arguments.check_required(flags.split())


class _Loud(Plugin):
    name = "loud"

    @classmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument_group("loud").add_argument("--volume", type=int, default=3)


def test_plugins_bring_flags_of_their_own() -> None:
    _, namespace = arguments.parse(f"{NEEDED} --volume 11".split(), [_Loud])

    assert namespace.volume == 11
    with pytest.raises(UsageError, match="unknown flag --volume"):
        arguments.parse(f"{NEEDED} --volume 11".split())
