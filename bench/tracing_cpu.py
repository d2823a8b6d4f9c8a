"""What tracing costs in processor time, which does not waver as step times do: in the ranks, and in their agent.

    python -m bench.tracing_cpu                                # two CPU ranks (or GPUs), base and full, a small model
    python -m bench.tracing_cpu --ranks 8 --preset 1b-wide --steps 60

Every step is traced in detail and sent to a collector. Of the first rank, a step: `border_ms` is what the training
thread spends at the plug-in's borders, `threads_ms` what all threads spend that the plug-in has made, and `marks_ms`
the marks of the hooks times the cost of one, measured in the same process: to take it, and (`resolving_ms`, a part of
`threads_ms`) to read its time back. `agent_share` is the processor time of the agent, with everything that sends, over
the time that the ranks trained: 0.05 is a twentieth of a core for all of them.
Unknown flags go to the trainer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench._model import COMMON, PRESETS
from bench.collector_absent import SwitchedCollector

SETTLING = 5
"""First steps, which are not counted."""
CALLS = 2000


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.tracing_cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=tuple(PRESETS), default="tiny")
    parser.add_argument("--steps", type=int, default=100, help="counted steps")
    parser.add_argument("--ranks", type=int, default=2)
    options, flags = parser.parse_known_args(argv)
    if "RANK" in os.environ:
        run(options.steps, flags)
        return 0
    for granularity in ("base", "full"):
        print(json.dumps(measure(options, flags, granularity)), flush=True)
    return 0


def measure(options: argparse.Namespace, flags: Sequence[str], granularity: str) -> dict[str, Any]:
    """Runs the ranks below this process, which is their agent and does nothing else."""
    from megatronapp.trainer.agent.embedded import embedded_agent

    folder = Path(tempfile.mkdtemp(prefix="tracing-cpu-"))
    collector = SwitchedCollector(folder / "collector")
    collector.switch(up=True)
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.ranks}"]
    ours = ["--steps", str(options.steps), "--collector-address", f"127.0.0.1:{collector.port}"]
    model = [*PRESETS[options.preset].split(), *COMMON.split(), f"--train-iters={options.steps + SETTLING + 1}"]
    trace = ["--trace", "--trace-interval=1", "--continuous-trace-iterations=1", f"--trace-granularity={granularity}"]
    environment = {"OMP_NUM_THREADS": "1", "TRACING_CPU_REPORT": str(folder / "report.json")}
    try:
        with embedded_agent():
            ranks = subprocess.Popen(
                [sys.executable, *torchrun, "-m", "bench.tracing_cpu", *ours, *model, *trace, *flags],
                env=os.environ | environment,
            )
            share = _share_while_training(ranks, folder / "training")
    finally:
        collector.switch(up=False)
    if ranks.returncode:
        raise SystemExit("the ranks have failed")
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return {"granularity": granularity, "ranks": options.ranks, **report, "agent_share": round(share, 4)}


def _share_while_training(ranks: subprocess.Popen[bytes], mark: Path) -> float:
    """This process's processor time over wall time, from the first counted step to the last."""
    while not mark.exists() and ranks.poll() is None:
        time.sleep(0.05)
    began, cpu = time.monotonic(), time.process_time()
    while mark.exists() and ranks.poll() is None:
        time.sleep(0.05)
    share = (time.process_time() - cpu) / (time.monotonic() - began)
    ranks.wait()
    return share


def run(steps: int, flags: Sequence[str]) -> None:
    """One rank; the first one reports."""
    from megatronapp.core.trace.values import Progress
    from megatronapp.trainer.launch import run as train
    from megatronapp.trainer.plugins.base import PluginContext
    from megatronapp.trainer.plugins.scan import ScanPlugin
    from megatronapp.trainer.plugins.scan.flags import ScanSettings

    report = Path(os.environ["TRACING_CPU_REPORT"])
    training = report.with_name("training")
    first = os.environ["RANK"] == "0"

    class MeasuredScan(ScanPlugin):
        """The plug-in, with the processor time of its borders and of the threads that it makes."""

        def __init__(self, settings: ScanSettings, context: PluginContext) -> None:
            before = _threads()
            super().__init__(settings, context)
            self._made = _threads() - before
            self._border_ns = self._threads_ns = self._first_mark = self._began_ns = 0

        def step_begin(self, step: int) -> None:
            if step == SETTLING + 1:
                self._border_ns, self._threads_ns = 0, _cpu_ns(self._made)
                self._first_mark, self._began_ns = self._recorder.marks, time.monotonic_ns()
                if first:
                    training.touch()
            began = time.thread_time_ns()
            super().step_begin(step)
            self._border_ns += time.thread_time_ns() - began

        def step_end(self, step: int, progress: Progress | None) -> None:
            began = time.thread_time_ns()
            super().step_end(step, progress)
            self._border_ns += time.thread_time_ns() - began
            if first and step == SETTLING + steps:
                training.unlink()
                report.write_text(json.dumps(self._report()))

        def _report(self) -> dict[str, Any]:
            marks = (self._recorder.marks - self._first_mark) / steps
            cost_us, resolving_us = _mark_cost_us(self._context.device), _resolving_cost_us(self._context.device)
            threads_ns = _cpu_ns(self._made) - self._threads_ns
            return {
                "recorder": type(self._recorder).__name__,
                "step_ms": round((time.monotonic_ns() - self._began_ns) / steps / 1e6, 2),
                "border_ms": round(self._border_ns / steps / 1e6, 4),
                "threads_ms": round(threads_ns / steps / 1e6, 4),
                "marks": round(marks, 1),
                "mark_us": round(cost_us, 3),
                "marks_ms": round(marks * cost_us / 1e3, 4),
                "resolving_us": round(resolving_us, 3),
                "resolving_ms": round(marks * resolving_us / 1e3, 4),
            }

    train(flags, plugins=[MeasuredScan])


def _threads() -> set[Path]:
    return set(Path("/proc/self/task").iterdir())


def _cpu_ns(threads: set[Path]) -> int:
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)


def _mark_cost_us(device: Any) -> float:
    """Half of a span: one mark at its begin, one at its end."""
    from megatronapp.trainer.plugins.scan.operations import Operation
    from megatronapp.trainer.plugins.scan.recorders import make_recorder

    recorder = make_recorder(device)

    def span() -> None:
        recorder.begin(Operation.FORWARD)
        recorder.end()

    return min(timeit.repeat(span, number=CALLS, repeat=5)) / CALLS / 2 * 1e6


def _resolving_cost_us(device: Any) -> float:
    """Of the side thread. Without the native recorder there is none."""
    try:
        from megatronapp.scan import resolving_cost_ns
    except ImportError:
        return 0.0
    import torch

    if device.type != "cuda":
        return resolving_cost_ns() / 1e3
    return resolving_cost_ns(torch._C._cuda_getCurrentRawStream, device.index or 0) / 1e3


if __name__ == "__main__":
    sys.exit(main())
