"""What `megatronapp attach` costs on a plain loop on megatron-core, by step time and by processor time of a rank.

    python -m bench.attach_overhead                          # two CPU ranks, a small model
    python -m bench.attach_overhead --shapes narrow wide     # two GPUs: bound by the host, and by the GPU

One line of JSON for each shape. The command attaches as it does to anybody's loop; within one run, blocks of steps are
off (no hook in torch, nothing of ours in the schedule or the optimizer but a function that calls on), `attached` (as
without flags: summaries, nothing in detail), `base` and `full` (each step in detail), in an order drawn for each round.
`control` is off once more: where its interval leaves zero out, the machine or the method is at fault. Rounds follow
each other for `--seconds`. `longer_ratio` is the mean paired difference of block medians to those that are off, with
its 95 % interval; under `step` of the time from one step's begin to the next, under `processor` of the processor time
that all threads of the rank took meanwhile. Waiting for a GPU takes processor time, too: this one says what the hooks
need where the host is the bottleneck.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from bench import _blocks
from bench._blocks import BLOCK, Blocks, Timings
from bench._core_loop import SHAPES

UNATTACHED = ("off", "control")
BLOCKS = Blocks(modes=(*UNATTACHED, "attached", "base", "full"), settling=1)
ROUND = len(BLOCKS.modes) * (BLOCK + BLOCKS.settling)
FEWEST_ROUNDS = 2
WARM_UP = 5
"""Steps before the first round, attached: the model is seen, and the allocator has what it needs."""
START_SECONDS, END_SECONDS = 60.0, 20.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.attach_overhead",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--shapes", nargs="+", choices=tuple(SHAPES), default=["tiny"])
    parser.add_argument("--seconds", type=float, default=30.0, help="of training, for each shape")
    parser.add_argument("--ranks", type=int, default=2)
    options = parser.parse_args(argv)
    if "RANK" in os.environ:
        run(options.shapes[0], options.seconds)
        return 0
    codes = [measure(shape, options.ranks, options.seconds) for shape in options.shapes]
    return max(codes)


def measure(shape: str, ranks: int, seconds: float) -> int:
    """Runs it as a user would; its first rank prints. Returns its exit code."""
    with tempfile.TemporaryDirectory(prefix="attach-overhead-") as folder:
        attach = ["-m", "megatronapp.cli.main", "attach", "--trace", "--trace-dir", folder, "--"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        ours = ["-m", "bench.attach_overhead", "--shapes", shape, "--seconds", str(seconds)]
        command = [sys.executable, *attach, *torchrun, *ours]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
        with subprocess.Popen(command, env=environment, start_new_session=True) as process:
            try:
                code = process.wait(seconds + START_SECONDS)
            except subprocess.TimeoutExpired:
                code = _ended(process)
    if code:
        print(json.dumps({"shape": shape, "failed": f"exit code {code}"}), flush=True)
    return code


def _ended(process: subprocess.Popen[bytes]) -> int:
    """torchrun ends its ranks, who are in sessions of their own, when it is asked to."""
    process.terminate()
    try:
        return process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return 128 + signal.SIGKILL


def run(shape: str, seconds: float) -> None:
    """One rank; the first one reports."""
    import torch.distributed as dist

    from bench._core_loop import start, training

    device = start()
    step = training(SHAPES[shape], device)
    for _ in range(WARM_UP):
        step()
    wall, processor = _measured(step, _Switch(), _agreed_end(seconds, device))
    if dist.get_rank() == 0:
        world = dist.get_world_size()
        report = {"shape": shape, "device": _blocks.device_name(device), "ranks": world}
        print(json.dumps({**report, "step": _compared(wall), "processor": _compared(processor)}), flush=True)
    dist.destroy_process_group()


def _measured(step: Callable[[], None], switch: _Switch, over: Callable[[int], bool]) -> tuple[Timings, Timings]:
    """Seconds of steps, and of the processor in them."""
    wall, processor = Timings(BLOCKS), Timings(BLOCKS)
    for number in count(1):
        if (number - 1) % ROUND == 0 and over((number - 1) // ROUND):
            break
        mode, *_ = BLOCKS.mode_of(number)
        switch.to(mode)
        began, processor_began = time.perf_counter(), time.process_time()
        step()
        wall.add(number, time.perf_counter() - began)
        processor.add(number, time.process_time() - processor_began)
    switch.to("attached")
    return wall, processor


def _agreed_end(seconds: float, device: Any) -> Callable[[int], bool]:
    """Whether there were rounds enough: as the first rank finds."""
    import torch
    import torch.distributed as dist

    deadline = time.monotonic() + seconds

    def over(rounds: int) -> bool:
        found = torch.tensor(rounds >= FEWEST_ROUNDS and time.monotonic() > deadline, device=device)
        dist.broadcast(found, src=0)
        return bool(found.item())

    return over


def _compared(timings: Timings) -> dict[str, Any]:
    modes = {mode: timings.against_first(mode) for mode in BLOCKS.modes[1:]}
    return {"off_ms": round(timings.usual_seconds() * 1e3, 3), **modes}


class _Switch:
    """What this rank is attached by, taken off and put back between two steps."""

    def __init__(self) -> None:
        from megatronapp.trainer.attach.process import attachment_of_process
        from megatronapp.trainer.plugins.scan.plugin import ScanPlugin

        self._attachment = attachment_of_process(os.environ["MEGATRONAPP_ATTACH"])
        self._session = self._attachment.session
        if self._session is None:
            raise SystemExit("this rank is not attached: start it by python -m bench.attach_overhead")
        [self._scan] = (plugin for plugin in self._session.chain.plugins if isinstance(plugin, ScanPlugin))

    def to(self, mode: str) -> None:
        from megatronapp.trainer.plugins.scan.window import Window

        if mode in UNATTACHED:
            self._scan.detach()
            self._attachment._session = None
            return
        self._attachment._session = self._session
        self._scan.attach()
        self._scan._window = Window(enabled=mode != "attached", interval=1, continuous=1, full=mode == "full")


if __name__ == "__main__":
    sys.exit(main())
