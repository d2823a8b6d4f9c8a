"""What is wrong with a rank of somebody's own script is found, as in a run of our trainer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from megatronapp.cli.local_stack import LocalStack, Options, local_stack
from megatronapp.core.bus import Topic
from megatronapp.core.findings import Cause, Finding, Kind
from megatronapp.detector.analyze import analyze
from megatronapp.v1 import findings_pb2
from tests.support import accelerate
from tests.support.attached import SCRIPTS, end, run, start

CULPRIT, WORLD, STEPS = 2, 4, 120
SLOW = f"faults:\n  - {{kind: slow_compute, ranks: [{CULPRIT}], from_step: 31, effect_ratio: 3}}\n"
HANG = f"faults:\n  - {{kind: hang, side: host, ranks: [{CULPRIT}], from_step: 31}}\n"
LOOPS = {
    "ddp": ["ddp.py", 2 * STEPS],
    "fsdp2": ["fsdp2.py", STEPS, 384],
    "accelerate-loop": ["accelerate_loop.py", 4 * STEPS, 512],
    "megatron-core-loop": ["megatron_core_loop.py", STEPS, 1],
}
"""Script and arguments, by the name that the command gives the job. CPU ranks page when they were slow for two seconds:
steps of 15 ms must be many."""
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
    async with local_stack(Options(tmp_path, page_port=None)) as running:
        told = asyncio.create_task(first_hang(running))
        platform = ["--collector-address", running.collector_address, "--token-file", str(running.token_file)]
        attach = [*platform, *scenario(tmp_path, HANG)]
        with start(SCRIPTS / str(script), *arguments, ranks=WORLD, attach=attach) as training:
            ending = asyncio.create_task(asyncio.to_thread(end, training, PATIENCE_SECONDS))
            await asyncio.wait([told, ending], return_when=asyncio.FIRST_COMPLETED)
            training.terminate()
            output, errors = await ending
        found = told.result() if told.done() else None
        told.cancel()

    assert found is not None, output + errors
    assert list(found.ranks) == named
    assert (found.cause is Cause.UNKNOWN) == (named == [])


async def first_hang(running: LocalStack) -> Finding:
    async for message in running.bus.subscribe(Topic.FINDINGS, group="test", consumer="test"):
        finding = Finding.from_proto(findings_pb2.Finding.FromString(message.value))
        if finding.kind is Kind.HANG:
            return finding
    raise AssertionError("the bus has ended")
