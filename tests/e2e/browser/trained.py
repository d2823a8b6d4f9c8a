"""A platform with a real training on it, into whose model a browser looks."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from megatronapp.cli.local_stack import LocalStack, Options, local_stack
from megatronapp.trainer.environment import GATEWAY_ADDRESS
from tests.support.training import TINY

RUN = "run-of-a-training"
RANKS = 4
LAYOUT = "--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 2"
STEPS = 200_000
"""More than it comes to."""


SLOW_RANK = 3
SCENARIO = f"""\
faults:
  - kind: slow_compute
    ranks: [{SLOW_RANK}]
    from_step: 40
    effect_ratio: 2.0
"""


@asynccontextmanager
async def trained(folder: Path) -> AsyncIterator[LocalStack]:
    """The platform while two stages of two tensor ranks train with MegaScope on, one of them slow; they end with it."""
    async with local_stack(Options(folder / "platform", page_port=0)) as running:
        command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
        scenario = folder / "scenario.yaml"
        scenario.write_text(SCENARIO)
        flags = f"{TINY} --train-iters {STEPS} {LAYOUT} --scope --fault-scenario {scenario}"
        environment = {
            "MEGATRONAPP_COLLECTOR_ADDRESS": running.collector_address,
            "MEGATRONAPP_TOKEN_FILE": str(running.token_file),
            "MEGATRONAPP_RUN_ID": RUN,
            "MEGATRONAPP_JOB": "local/looked-into",
            GATEWAY_ADDRESS: running.gateway_address,
            "OMP_NUM_THREADS": "1",
        }
        with (folder / "training.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, *command, "-m", "megatronapp.trainer", *flags.split(),
                env=os.environ | environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            yield running
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
