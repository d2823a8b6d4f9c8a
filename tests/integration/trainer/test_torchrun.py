"""The trainer as users start it: torchrun, signals, exit codes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil
import pytest

from megatronapp.trainer import checkpoint_folder, launch, rank_exit
from megatronapp.trainer import main as trainer_main
from megatronapp.trainer.main import main
from megatronapp.trainer.metrics import StepReport
from tests.support.forked import RankFailedError, run_forked
from tests.support.training import TINY, Recording, train


def start(flags: str, *, ranks: int) -> subprocess.Popen[str]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return subprocess.Popen(
        [sys.executable, *torchrun, "-m", "megatronapp.trainer", *flags.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def events(lines: list[str], name: str) -> list[dict[str, Any]]:
    parsed = [json.loads(line) for line in lines if line.startswith("{")]
    return [event for event in parsed if event["event"] == name]


class Interrupted(Recording):
    """SIGTERM comes in the third step."""

    def step(self, report: StepReport) -> None:
        super().step(report)
        if report.step == 3:
            os.kill(os.getpid(), signal.SIGTERM)


def steps_until_interrupted(flags: str) -> int:
    recording = Interrupted()
    launch.run(flags.split(), reporters=[recording], plugins=())
    return len(recording.steps)


def test_a_rank_that_dies_in_native_code_leaves_its_python_stack() -> None:
    with start(f"{TINY} --train-iters 100000 --log-interval 1", ranks=1) as torchrun:
        assert torchrun.stdout is not None
        try:
            next(line for line in torchrun.stdout if '"step"' in line)
            (rank,) = psutil.Process(torchrun.pid).children()
            rank.send_signal(signal.SIGSEGV)
            rest = torchrun.communicate(timeout=60)[0]
        finally:
            torchrun.kill()

    assert "Fatal Python error: Segmentation fault" in rest
    assert "trainer/loop.py" in rest
    assert f"(exitcode: {-signal.SIGSEGV})" in rest


def test_sigterm_to_one_rank_ends_all_in_order_with_a_checkpoint(tmp_path: Path) -> None:
    flags = f"{TINY} --train-iters 3000 --pipeline-model-parallel-size 2 --save {tmp_path}"

    _, last = run_forked(2, steps_until_interrupted, flags)

    assert 3 <= last < 3000
    assert checkpoint_folder.find_latest(tmp_path) == last


@pytest.mark.long
@pytest.mark.timeout(300)  # two imports of torch and megatron-core on a busy machine
def test_sigterm_saves_a_checkpoint_on_all_ranks_and_ends_in_order(tmp_path: Path) -> None:
    trainer = start(f"{TINY} --train-iters 3000 --pipeline-model-parallel-size 2 --save {tmp_path}", ranks=2)
    assert trainer.stdout is not None
    lines = []
    for line in trainer.stdout:
        lines.append(line)
        if len(events(lines, "step")) == 3:
            break

    trainer.send_signal(signal.SIGTERM)
    lines += trainer.communicate(timeout=90)[0].splitlines()

    last = events(lines, "step")[-1]["step"]
    assert not any("Traceback" in line and "[rank" in line for line in lines)
    assert events(lines, "checkpoint_saved")[0]["step"] == last
    assert checkpoint_folder.find_latest(tmp_path) == last


def exit_code_and_output(flags: str) -> tuple[int, str]:
    with contextlib.redirect_stderr(io.StringIO()) as output:
        code = main(flags.split())
    return code, output.getvalue()


@pytest.mark.parametrize(
    ("flags", "environment", "said"),
    [
        ("--num-layer 4", {}, "error: unknown flag --num-layer; did you mean --num-layers?"),
        (
            f"{TINY} --train-iters 1 --pipeline-model-parallel-size 2",
            {"WORLD_SIZE": "3"},
            "error: 3 ranks can't be divided into groups of 2",
        ),
        (f"{TINY} --train-iters 1", {"MEGATRONAPP_ATTEMPT": "two"}, "error: the environment variable MEGATRONAPP_ATT"),
    ],
)
def test_wrong_use_is_one_line_and_exit_code_two(flags: str, environment: dict[str, str], said: str) -> None:
    [(code, output)] = run_forked(1, exit_code_and_output, flags, environment=environment)

    assert code == 2
    assert output.startswith(said)
    assert output.count("\n") == 1


def of_one_that_is_alone(flags: str) -> tuple[int, str]:
    trainer_main.FIRST_RANK_SECONDS = 0.1
    return exit_code_and_output(flags)


def test_another_rank_than_the_first_says_what_is_wrong_where_nobody_has_ended_it() -> None:
    [(code, output)] = run_forked(1, of_one_that_is_alone, "--num-layer 4", environment={"RANK": "1"})

    assert code == 2
    assert output == "error: unknown flag --num-layer; did you mean --num-layers?\n"


def missing_plugin(flags: str, log: Path) -> tuple[int, str, str]:
    log.touch()
    rank_exit.TERMINATION_LOG = log
    trainer_main.FIRST_RANK_SECONDS = 0.1
    trainer_main.installed = lambda: ["scan", "scope", "dpp", "faults"]
    return *exit_code_and_output(flags), log.read_text()


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--require-plugins scan fbd", "--require-plugins fbd asks for the plug-in fbd, which is not installed here"),
        (
            "--forward-backward-disaggregating --workload 4096",
            "--forward-backward-disaggregating asks for the plug-in fbd, which is not installed here (scan, scope, "
            "dpp, faults",
        ),
    ],
)
@pytest.mark.parametrize("rank", ["0", "1"])
def test_a_missing_plugin_is_refused_with_a_code_and_reason_of_its_own(
    flags: str, says: str, rank: str, tmp_path: Path
) -> None:
    log = tmp_path / "termination-log"

    [(code, output, left)] = run_forked(1, missing_plugin, flags, log, environment={"RANK": rank})

    assert code == 69
    assert left.startswith(f"error: {says}")
    assert output.strip() == left


@pytest.mark.skipif(find_spec("transformer_engine") is not None, reason="Transformer Engine is installed")
def test_transformer_engine_that_is_not_installed_is_asked_for_in_vain() -> None:
    with pytest.raises(RankFailedError, match="UsageError: --transformer-impl transformer_engine needs Transformer E"):
        run_forked(1, train, f"{TINY} --train-iters 1 --transformer-impl transformer_engine")


def fail_over_another() -> None:
    """Rank 0 fails because rank 1 does, and is the first to say so."""
    if os.environ["RANK"] == "1":
        time.sleep(0.3)
        raise ValueError("the cause")
    raise RuntimeError("rank 1 is lost")


def test_of_ranks_that_fail_over_one_another_all_errors_are_shown() -> None:
    with pytest.raises(RankFailedError, match=r"(?s)rank 1 is lost.*rank 1:.*ValueError: the cause"):
        run_forked(2, fail_over_another)
