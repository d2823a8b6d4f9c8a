"""What is wrong with a rank of somebody's own script is found, as in a run of our trainer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from megatronapp.core.findings import Cause
from megatronapp.detector.analyze import analyze
from tests.support import accelerate, pretrain
from tests.support.attached import SCRIPTS, run, start
from tests.support.attached_hangs import first_hang

CULPRIT, WORLD, STEPS = 2, 4, 120
SLOW = f"faults:\n  - {{kind: slow_compute, ranks: [{CULPRIT}], from_step: 31, effect_ratio: 3}}\n"
HANG = f"faults:\n  - {{kind: hang, side: host, ranks: [{CULPRIT}], from_step: 31}}\n"
LOOPS = {
    "ddp": ["ddp.py", 2 * STEPS],
    "fsdp2": ["fsdp2.py", STEPS, 384],
    "accelerate-loop": ["accelerate_loop.py", 4 * STEPS, 512, 64],
    "megatron-core-loop": ["megatron_core_loop.py", STEPS, 1],
}
"""Script and arguments, by the name that the command gives the job. CPU ranks page when they were slow for two seconds:
steps of 15 ms must be many. A pass takes some milliseconds, so that three times as much is more than hosts waver."""
GPT = "team/gpt"
PATIENCE_SECONDS = 240.0


def scenario(folder: Path, text: str) -> list[str]:
    file = folder / "scenario.yaml"
    file.write_text(text)
    return ["--fault-scenario", str(file)]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("job", LOOPS)
def test_the_slow_rank_of_a_loop_is_named(tmp_path: Path, job: str) -> None:
    environment = accelerate.install(tmp_path / "packages") if job == "accelerate-loop" else {}
    script, *arguments = LOOPS[job]
    attach = ["--trace-dir", str(tmp_path), *scenario(tmp_path, SLOW)]

    ended = run(SCRIPTS / str(script), *arguments, ranks=WORLD, attach=attach, environment=environment, timeout=400)

    assert ended.code == 0, ended.output
    report = analyze(tmp_path / "local" / job / "attempt-1")
    told = [(str(finding.kind), list(finding.ranks), finding.page) for finding in report.findings]
    assert [each for each in told if each[-1]] == [("slow_gpu", [CULPRIT], True)], told


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("job", "named"), [("fsdp2", [CULPRIT]), ("ddp", [])])
async def test_a_hang_is_told_and_its_rank_where_collectives_are_seen(
    tmp_path: Path, job: str, named: list[int]
) -> None:
    """DDP's are called from C++: who waits for whom is unknown."""
    script, *arguments = LOOPS[job]

    def begin(platform: list[str]) -> subprocess.Popen[str]:
        attach = [*platform, *scenario(tmp_path, HANG)]
        return start(SCRIPTS / str(script), *arguments, ranks=WORLD, attach=attach)

    found, output = await first_hang(tmp_path, begin, PATIENCE_SECONDS)

    assert found is not None, output
    assert list(found.ranks) == named
    assert (found.cause is Cause.UNKNOWN) == (named == [])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("layout", ["data", "pipeline"])
def test_the_slow_rank_of_pretrain_gpt_is_named(shared_data: Path, tmp_path: Path, layout: str) -> None:
    attach = ["--job", GPT, "--trace-dir", str(tmp_path), *scenario(tmp_path, of_two(SLOW))]
    arguments = [*pretrain.script(shared_data, tmp_path, layout, 2 * STEPS), "--eval-interval=1000"]

    ended = run(*arguments, **pretrain.in_environment(shared_data, {"attach": attach, "timeout": 500.0}))

    assert ended.code == 0, ended.output
    report = analyze(tmp_path / GPT / "attempt-1")
    told = [(str(finding.kind), list(finding.ranks), finding.page) for finding in report.findings]
    assert [each for each in told if each[-1]] == [("slow_gpu", [1], True)], told


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("layout", ["data", "pipeline"])
async def test_the_rank_of_pretrain_gpt_that_hangs_is_named(shared_data: Path, tmp_path: Path, layout: str) -> None:
    arguments = pretrain.script(shared_data, tmp_path, layout, 100 * STEPS)

    def begin(platform: list[str]) -> subprocess.Popen[str]:
        attach = ["--job", GPT, *platform, *scenario(tmp_path, of_two(HANG))]
        return start(*arguments, **pretrain.in_environment(shared_data, {"attach": attach}))

    found, output = await first_hang(tmp_path, begin, PATIENCE_SECONDS)

    assert found is not None, output
    assert list(found.ranks) == [1]


def of_two(text: str) -> str:
    """A scenario, of the second of two ranks."""
    return text.replace(f"ranks: [{CULPRIT}]", "ranks: [1]")
