"""`megatronapp attach` on Megatron-LM's own pretrain_gpt.py on two GPUs, in bf16: it computes what it computes without
us, to the bit, and a GPU that is slow, or that a neighbour occupies, is named, and a rank that hangs.

Rehearsed on CPU ranks (devices.py) the models are tiny.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from megatronapp.core.trace import file as trace_file
from megatronapp.detector.analyze import analyze
from megatronapp.v1 import trace_pb2
from tests.gpu.devices import REHEARSED, needs
from tests.integration.trainer.plugins.scan.traced import RankTrace, read
from tests.support.attached import Ended, end, every_step, run, start
from tests.support.attached_hangs import first_hang
from tests.support.cluster import wait_until
from tests.support.pretrain import FLAGS, ON_CPU, logged, same_bits, saving, weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(420),
    needs(2),
]

STEPS, LAYERS, JOB = 12, 8, "team/gpt"


def sizes(hidden: int, sequence: int, layers: int = LAYERS) -> str:
    if REHEARSED:
        hidden, sequence = 64, 32
    samples = f"--seq-length {sequence} --max-position-embeddings {sequence} --micro-batch-size 2"
    return f"--num-layers {layers} --hidden-size {hidden} {samples}"


SMALL = sizes(512, 256)
SHORT_KERNELS, LONG_KERNELS = sizes(2048, 1024), sizes(4096, 1024, LAYERS // 2)
"""With short kernels the device waits for its host now and then, and what is injected fills some of that time."""
PIPELINE = "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2"
AFTER = "--use-distributed-optimizer"
DATA = f"{AFTER} --overlap-grad-reduce --overlap-param-gather"
LAYOUTS = {"pipeline": (PIPELINE, 2, 8), "data": (DATA, 2, 4), "both": (f"{PIPELINE} {DATA}", 4, 4)}
"""Flags, ranks, and microbatches of a step; 16 samples."""
REDUCED = {"after the passes": f"{LONG_KERNELS} {AFTER}", "overlapped": f"{LONG_KERNELS} {DATA}"}
"""Gradients, by long kernels."""
CLEAN_STEPS, CULPRIT = 40, 1
DISTURBED_STEPS = 200 if REHEARSED else 60
"""CPU ranks page when they were slow for two seconds."""
LONG_RUN, ENDLESS = CLEAN_STEPS + DISTURBED_STEPS, 2000
FAULT_FROM = CLEAN_STEPS + 1
SLOW = f"faults:\n  - {{kind: slow_compute, ranks: [{CULPRIT}], from_step: {FAULT_FROM}, effect_ratio: 1.5}}\n"
HANG = f"faults:\n  - {{kind: hang, side: host, ranks: [{CULPRIT}], from_step: {FAULT_FROM}}}\n"
RUN_SECONDS = 600.0 if REHEARSED else 110.0
"""A run that takes longer is ended, which takes torchrun up to 30 s."""
one_run = pytest.mark.timeout(RUN_SECONDS + 40)


def pretrain(data: Path, folder: Path, flags: str, steps: int, **options: Any) -> Ended:
    """To its end; options are those of `attached.start`."""
    return run(
        *script(data, flags, folder, steps), **options, environment=environment(data, folder), timeout=RUN_SECONDS
    )


def script(data: Path, flags: str, folder: Path, steps: int) -> list[Any]:
    given = f"{FLAGS} {flags} --bf16 --num-attention-heads 8 --global-batch-size 16 --train-iters {steps}".split()
    here = [ON_CPU, data / "megatron_lm" / "pretrain_gpt.py"] if REHEARSED else [data / "megatron_lm/pretrain_gpt.py"]
    backend = ["--distributed-backend=gloo"] if REHEARSED else []
    return [*here, *given, *backend, "--eval-interval=1000", f"--data-cache-path={folder / 'cache'}"]


def environment(data: Path, folder: Path) -> dict[str, str]:
    tools = stand_in_tools(folder)
    return {
        "PYTHONPATH": os.pathsep.join([str(data / "megatron_lm"), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "PATH": os.pathsep.join([str(tools / "bin"), os.environ["PATH"]]),
        "CUDA_HOME": str(tools),
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "TORCHDYNAMO_DISABLE": "1",
    }


def stand_in_tools(folder: Path) -> Path:
    """Megatron-LM calls `make` for what the wheel of megatron-core has built, and asks for nvcc's version; it compiles
    nothing else at its start, but for kernels that the flags leave out."""
    tools = folder / "tools"
    (tools / "bin").mkdir(parents=True, exist_ok=True)
    for name, says in (("make", ""), ("nvcc", "Cuda compilation tools, release 13.0, V13.0.0")):
        program = tools / "bin" / name
        program.write_text(f"#!/bin/sh\necho '{says}'\n")
        program.chmod(0o755)
    return tools


def trace_of(folder: Path, rank: int) -> RankTrace:
    return read(trace_file.path_for(folder, JOB, 1, rank))


@pytest.mark.parametrize("layout", [pytest.param(name, marks=needs(ranks)) for name, (_, ranks, _) in LAYOUTS.items()])
def test_the_weights_are_the_same_to_the_bit_and_every_microbatch_is_seen(
    shared_data: Path, tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(shared_data / "megatron_lm")
    flags, ranks, microbatches = LAYOUTS[layout]

    def trained(name: str, attach: list[str] | None = None) -> Ended:
        saved = " ".join(saving(tmp_path / name))
        return pretrain(shared_data, tmp_path / name, f"{SMALL} {flags} {saved}", STEPS, attach=attach, ranks=ranks)

    runs = [trained(f"plain-{n}") for n in range(2)]
    assert [each.code for each in runs] == [0, 0], f"the script alone died: {runs[0].output[-5000:]}"
    plain, again = (weights(tmp_path / f"plain-{n}") for n in range(2))
    assert len(plain) > LAYERS
    assert same_bits(again, plain), "the script alone does not compute the same twice: nothing can be compared"

    attach = ["--job", JOB, *every_step(tmp_path)]
    attached = trained("attached", attach)

    assert attached.code == 0, attached.output[-5000:]
    assert logged(attached) == logged(runs[0])
    assert len(logged(attached)) >= STEPS
    assert same_bits(weights(tmp_path / "attached"), plain)
    for rank in range(ranks):
        check(trace_of(tmp_path, rank), layout, microbatches)


def check(trace: RankTrace, layout: str, microbatches: int) -> None:
    assert trace.hello.attached == trace_pb2.ATTACHED_SCHEDULES
    assert [summary.step for summary in trace.summaries] == list(range(1, STEPS + 1))
    chunks = 1 if layout == "data" else 2
    for step in range(1, STEPS + 1):
        for name in ("forward", "backward"):
            seen = sorted((span.chunk, span.microbatch) for span in trace.of(name, step=step))
            assert seen == [(chunk, n) for chunk in range(chunks) for n in range(microbatches)], (name, step)
        assert len(trace.of("optimizer", step=step)) == 1
    if layout != "data":
        assert trace.of("forward_send", "forward_recv", step=3)


def judged(folder: Path) -> tuple[list[tuple[str, list[int], str]], str]:
    """What paged; and all that was found, in numbers. Of CPU ranks what is over does not count: cores are shared."""
    findings = analyze(folder / JOB / "attempt-1").findings
    counted = [finding for finding in findings if finding.page and not (REHEARSED and finding.resolved_step)]
    paged = [(str(finding.kind), list(finding.ranks), str(finding.cause)) for finding in counted]
    return paged, "\n".join(finding.model_dump_json(exclude={"evidence"}) for finding in findings)


@one_run
@pytest.mark.parametrize("flags", REDUCED.values(), ids=REDUCED)
def test_a_rank_that_computes_slowly_is_named(shared_data: Path, tmp_path: Path, flags: str) -> None:
    attach = ["--job", JOB, "--trace-dir", str(tmp_path), *scenario(tmp_path, SLOW)]

    ended = pretrain(shared_data, tmp_path / "run", flags, LONG_RUN, attach=attach)

    assert ended.code == 0, ended.output[-5000:]
    paged, told = judged(tmp_path)
    assert [(kind, ranks) for kind, ranks, _ in paged] == [("slow_gpu", [CULPRIT])], told


@one_run
def test_where_hosts_set_the_pace_a_slow_rank_is_named_and_nobody_else(shared_data: Path, tmp_path: Path) -> None:
    """How much of its slowness shows wavers with its peer's host: it may be over, and begin again."""
    attach = ["--job", JOB, "--trace-dir", str(tmp_path), *scenario(tmp_path, SLOW)]

    ended = pretrain(shared_data, tmp_path / "run", f"{SHORT_KERNELS} {DATA}", LONG_RUN, attach=attach)

    assert ended.code == 0, ended.output[-5000:]
    paged, told = judged(tmp_path)
    assert {(kind, *ranks) for kind, ranks, _ in paged} == {("slow_gpu", CULPRIT)}, told


@one_run
@pytest.mark.skipif(bool(REHEARSED), reason="CPU ranks share their device with everybody")
@pytest.mark.parametrize("flags", REDUCED.values(), ids=REDUCED)
def test_the_gpu_that_a_neighbour_occupies_is_named(shared_data: Path, tmp_path: Path, flags: str) -> None:
    with training(shared_data, tmp_path, flags) as ending:
        reach(CLEAN_STEPS, tmp_path, ending)
        with neighbour():
            reach(steps(tmp_path) + DISTURBED_STEPS, tmp_path, ending)

    paged, told = judged(tmp_path)
    assert [(kind, ranks) for kind, ranks, _ in paged] == [("slow_gpu", [CULPRIT])], told
    assert paged[0][2] in {"interference", "compute", "thermal"}, told  # what shares a device heats it, too


@one_run
async def test_the_rank_that_hangs_is_named(shared_data: Path, tmp_path: Path) -> None:
    arguments = script(shared_data, f"{SMALL} {DATA}", tmp_path / "run", ENDLESS)

    def begin(platform: list[str]) -> subprocess.Popen[str]:
        attach = ["--job", JOB, *platform, *scenario(tmp_path, HANG)]
        return start(*arguments, attach=attach, environment=environment(shared_data, tmp_path / "run"))

    found, output = await first_hang(tmp_path, begin, RUN_SECONDS)

    assert found is not None, output[-5000:]
    assert list(found.ranks) == [CULPRIT], found.model_dump_json(exclude={"evidence"})


def scenario(folder: Path, text: str) -> list[str]:
    file = folder / "scenario.yaml"
    file.write_text(text)
    return ["--fault-scenario", str(file)]


@contextmanager
def training(data: Path, folder: Path, flags: str) -> Iterator[Future[tuple[str, str]]]:
    """Attached, in the background, until the block is left."""
    arguments, attach = script(data, flags, folder / "run", ENDLESS), ["--job", JOB, "--trace-dir", str(folder)]
    begun = start(*arguments, attach=attach, environment=environment(data, folder / "run"))
    with ThreadPoolExecutor(1) as background, begun as process:
        ending = background.submit(end, process, RUN_SECONDS)
        try:
            yield ending
        finally:
            process.terminate()
            wait([ending])


def reach(step: int, folder: Path, ending: Future[tuple[str, str]]) -> None:
    def reached() -> bool:
        assert not ending.done(), "".join(ending.result())[-5000:]
        return steps(folder) >= step

    wait_until(f"step {step}", reached, RUN_SECONDS, 0.5)


def steps(folder: Path) -> int:
    """That the first rank has finished."""
    file = trace_file.path_for(folder, JOB, 1, 0)
    messages = trace_file.read(file) if file.exists() else ()
    return sum(message.WhichOneof("body") == "summary" for message in messages)


@contextmanager
def neighbour() -> Iterator[None]:
    """`megatronapp interfere` on the second GPU, once it says that it begins."""
    flags = ["--device=1", f"--duration={RUN_SECONDS}", "--matrix-size=4096", "--dtype=bfloat16", "--streams=2"]
    command = [sys.executable, "-m", "megatronapp.trainer.interfere", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("occupying")
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
