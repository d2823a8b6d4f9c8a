"""Real interference on one GPU: is it found, how fast, and how well do the GPUs' clocks agree meanwhile?

Trains a model of more than a billion parameters on the GPUs of this host, traced, beside the platform in one process.
After some clean steps `megatronapp interfere` occupies one GPU. Needs two GPUs or more.

    python -m bench.interference --ranks 2 --device 1 -- --use-distributed-optimizer
    python -m bench.interference --ranks 4 --device 2 -- --pipeline-model-parallel-size 2
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench._model import COMMON, PRESETS
from megatronapp.cli.demo.state import DemoState
from megatronapp.cli.local_stack import LocalStack, Options, local_stack
from megatronapp.core.bus import Topic
from megatronapp.core.findings import Finding
from megatronapp.core.scenario import Scenario
from megatronapp.v1 import findings_pb2, trace_pb2

SETTLE_STEPS = 15


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="1b", help="the model")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", type=int, default=1, help="the GPU to occupy")
    parser.add_argument("--clean-steps", type=int, default=40)
    parser.add_argument("--give-up-steps", type=int, default=60)
    parser.add_argument("--global-batch-size", type=int, default=8)
    parser.add_argument("--interfere", default="--matrix-size 4096 --dtype bfloat16 --streams 2", help="its flags")
    parser.add_argument("--seconds", type=float, default=1800.0, help="give up after so long")
    parser.add_argument("trainer", nargs="*", help="further flags of the trainer, behind --")
    options = parser.parse_args()
    if len(list(Path("/dev").glob("nvidia[0-9]*"))) < options.ranks:
        print(f"skipped: needs {options.ranks} GPUs")
        return 0
    try:
        result = asyncio.run(asyncio.wait_for(measure(options), options.seconds))
    except TimeoutError:
        print(json.dumps({"given_up_after_seconds": options.seconds}))
        return 1
    print(json.dumps(result))
    return 0 if result["found"] == [options.device] else 1


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Train, disturb, and report whom the platform names."""
    state = DemoState(Scenario())
    with tempfile.TemporaryDirectory() as folder:
        async with local_stack(Options(Path(folder), page_port=None)) as running:
            listening = asyncio.create_task(listen(running, state))
            training = start_training(options, running)
            try:
                await until(state, options.clean_steps, training)
                undisturbed = residuals(running)
                result = await disturb(options, state, training)
            finally:
                training.terminate()
                training.wait(60)
                listening.cancel()
            return result | {"clock_residual_us": {"undisturbed": undisturbed, "all": residuals(running)}}


async def disturb(options: argparse.Namespace, state: DemoState, training: subprocess.Popen[bytes]) -> dict[str, Any]:
    paged_before = sorted({rank for f in state.findings.values() if f.page for rank in f.ranks})
    clean_seconds = state.ranks[0].step_seconds
    command = [sys.executable, "-m", "megatronapp.trainer.interfere", "--device", str(options.device)]
    with subprocess.Popen([*command, "--duration", "600", *options.interfere.split()]) as neighbour:
        began_unix_ns, began_step = time.time_ns(), state.step
        while not state.found and state.step < began_step + options.give_up_steps:
            await until(state, state.step + 1, training)
        await until(state, state.step + SETTLE_STEPS, training)
        neighbour.terminate()
    finding = next((f for f in state.findings.values() if f.page), None)
    return {
        "paged_before": paged_before,
        "disturbed": [options.device],
        "found": state.found,
        "step_seconds": {"clean": clean_seconds, "disturbed": state.ranks[0].step_seconds},
        "disturbed_from_step": began_step + 1,
        "finding": finding and json.loads(finding.model_dump_json(exclude={"evidence"})),
        "detection_seconds": finding and round((finding.opened_unix_ns - began_unix_ns) / 1e9, 2),
        "detection_steps": finding and finding.opened_step - began_step,
    }


def start_training(options: argparse.Namespace, running: LocalStack) -> subprocess.Popen[bytes]:
    environment = os.environ | {
        "MEGATRONAPP_JOB": "bench/interference",
        "MEGATRONAPP_COLLECTOR_ADDRESS": running.collector_address,
        "MEGATRONAPP_TOKEN_FILE": str(running.token_file),
    }
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(options.ranks)]
    flags = ["--train-iters", "100000", "--log-interval", "50", "--trace", "--trace-granularity", "base"]
    model = f"{PRESETS[options.preset]} {COMMON}".split()
    batch = ["--global-batch-size", str(options.global_batch_size)]
    command = [*launcher, "-m", "megatronapp.trainer", *model, *flags, *batch, *options.trainer]
    return subprocess.Popen(command, env=environment)


async def listen(running: LocalStack, state: DemoState) -> None:
    async def steps() -> None:
        async for message in running.bus.subscribe(Topic.STEPS, group="bench", consumer="bench"):
            state.on_message(trace_pb2.RankMessage.FromString(message.value))

    async def findings() -> None:
        async for message in running.bus.subscribe(Topic.FINDINGS, group="bench", consumer="bench"):
            state.find(Finding.from_proto(findings_pb2.Finding.FromString(message.value)))

    await asyncio.gather(steps(), findings())


async def until(state: DemoState, step: int, training: subprocess.Popen[bytes]) -> None:
    while state.step < step:
        if training.poll() is not None:
            raise SystemExit(f"training ended with {training.returncode} at step {state.step}")
        await asyncio.sleep(0.05)


def residuals(running: LocalStack) -> dict[str, float]:
    """What the collector publishes of the clocks' residual on anchors left out of the fit."""
    samples = [s for family in running.registry.collect() for s in family.samples]
    wanted = [s for s in samples if s.name == "megatronapp_clock_residual_seconds"]
    return {"/".join(f"{k}={v}" for k, v in sorted(s.labels.items())): round(s.value * 1e6, 3) for s in wanted}


if __name__ == "__main__":
    sys.exit(main())
