"""What the agent of a node costs in processor time, with ranks that only write: no model, no torch.distributed.

    python -m bench.agent_cpu                                  # 8 ranks, steps of 0.4 s; rows of base and of full
    python -m bench.agent_cpu --step-ms 250 --gpu --full-layers 40
    python -m bench.agent_cpu --against ../other-checkout      # its agent, in turns with this one's

The ranks have the real recorder, segment and socket; the agent and the collector are processes as in a pod. Every step
is traced in detail. The clock that their spans show is made up, so that times look like those of a model that takes the
whole step. `core_percent` is the agent process's time on a processor, all threads, over the time of the measurement;
goal: at most 5 for 8 ranks. `bytes_per_second` is what the collector's journal grew by.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.collector_absent import SwitchedCollector
from megatronapp.core.trace.values import Communicator
from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.rendezvous import listen
from megatronapp.trainer.plugins.scan.operations import Operation
from megatronapp.trainer.plugins.scan.python_recorder import CpuTimebase
from megatronapp.trainer.plugins.scan.recorder import Mark, Times
from tests.support.rank_writer import RankWriter

SETTLING_SECONDS = 3.0
MICROBATCHES = 8
PARTS = (Operation.NORM, Operation.QKV, Operation.CORE_ATTENTION, Operation.MLP_FC1)
LAG_NS = 2_000_000
"""Of a simulated stream behind its host."""
CLOSING_SECONDS = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.agent_cpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--step-ms", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--full-layers", type=int, default=24, help="layers of the model in full")
    parser.add_argument("--gpu", action="store_true", help="spans look like a GPU's")
    parser.add_argument("--against", type=Path, help="root of another checkout, whose agent is measured too")
    options = parser.parse_args(argv)
    for _ in range(options.rounds):
        for granularity, layers in (("base", 0), ("full", options.full_layers)):
            for name, root in (("this", None), ("against", options.against)):
                if name == "this" or root is not None:
                    found = measure(options, layers, root)
                    print(json.dumps({"agent": name, "granularity": granularity, **found}), flush=True)
    return 0


def measure(options: argparse.Namespace, layers: int, root: Path | None) -> dict[str, Any]:
    """Of the agent of the checkout `root`, None: this one."""
    folder = Path(tempfile.mkdtemp(prefix="agent-cpu-"))
    collector = SwitchedCollector(folder / "collector")
    collector.switch(up=True)
    try:
        with _agent(folder / "agent.sock", root) as agent:
            ranks = [_Rank(folder / "agent.sock", number, options, collector) for number in range(options.ranks)]
            step = _train(ranks, layers, options.step_ms, 1, SETTLING_SECONDS)
            before = _Reading(agent.pid, folder, ranks)
            _train(ranks, layers, options.step_ms, step, options.seconds)
            found = _Reading(agent.pid, folder, ranks).since(before)
            for rank in ranks:
                rank.writer.close()
    finally:
        collector.switch(up=False)
    return {"ranks": options.ranks, "step_ms": options.step_ms, "rows": ranks[0].rows, **found}


@contextmanager
def _agent(path: Path, root: Path | None) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m megatronapp.trainer.agent`, as rendezvous.start_agent starts it, until the ranks have ended."""
    environment = dict(os.environ)
    if root is not None:
        sources = [*root.resolve().glob("libs/*"), *root.resolve().glob("services/*")]
        environment["PYTHONPATH"] = os.pathsep.join(map(str, sources))
    listener = listen(path)
    assert isinstance(listener, socket.socket)
    with listener:
        command = [sys.executable, "-m", "megatronapp.trainer.agent", "--parent", str(os.getpid())]
        command += ["--listen", str(listener.fileno()), "--path", str(path)]
        agent = subprocess.Popen(command, pass_fds=[listener.fileno()], env=environment)
    try:
        yield agent
    finally:
        agent.terminate()
        agent.wait(CLOSING_SECONDS)


class _MadeUpClock(CpuTimebase):
    """Marks that are evenly spread over a step which lies behind them, on the host's clock or also on a stream's."""

    def __init__(self, *, gpu: bool) -> None:
        self._gpu = gpu
        self._now_ns = self._pace_ns = 0

    def step(self, duration_ns: int, marks: int) -> None:
        self._now_ns, self._pace_ns = time.monotonic_ns() - duration_ns, duration_ns // max(marks, 1)

    def mark(self) -> Mark:  # type: ignore[override]
        self._now_ns += self._pace_ns + self._now_ns % 1009
        return self._now_ns, self._now_ns >> 1

    host = mark

    def resolve(self, rows: list[tuple[Mark, Mark, Mark]]) -> Times:  # type: ignore[override]
        times = super().resolve(rows)
        if not self._gpu:
            return times
        behind = np.full(len(rows), LAG_NS)
        return replace(times, cpu=np.zeros_like(behind), enqueue=times.issue - LAG_NS, behind=behind)


class _Rank:
    """A step of a model with data parallelism; with `layers` > 0 as granularity full has it."""

    def __init__(self, path: Path, number: int, options: argparse.Namespace, collector: SwitchedCollector) -> None:
        members = tuple(range(options.ranks))
        self._clock = _MadeUpClock(gpu=options.gpu)
        self.writer = RankWriter(
            path,
            rank=number,
            collector=f"127.0.0.1:{collector.port}",
            timebase=self._clock,
            communicators=[
                Communicator(index=index, id=f"{kind}:0-{members[-1]}", kind=kind, ranks=members)
                for index, kind in enumerate(("dp", "dp_cp", "world"), start=1)
            ],
        )
        self._recorder = self.writer.recorder
        self._tracks = [self._recorder.track(index, -1, False) for index in (1, 2, 3)]
        self._marks = 0
        self._sequence = 0
        self.rows = 0

    @property
    def sent(self) -> int:
        """Messages that the agent has made of this rank."""
        segment = self._recorder._segment
        return int(segment._words[(segment.sections.control >> 3) + layout.SENT_WORD])

    def step(self, number: int, duration_ms: int, layers: int) -> None:
        recorder, duration_ns = self._recorder, duration_ms * 1_000_000
        recorder.set_step(number)
        recorder.control()
        self._clock.step(duration_ns, self._marks)
        before = recorder.marks
        recorder.begin(Operation.STEP)
        for microbatch in range(MICROBATCHES):
            recorder.context(microbatch, 0)
            recorder.begin(Operation.DATA)
            recorder.end()
            for operation, part in (
                (Operation.FORWARD, Operation.LAYER_FORWARD),
                (Operation.BACKWARD, Operation.LAYER_BACKWARD),
            ):
                recorder.begin(operation)
                self._layers(part, layers)
                recorder.end_work(4096, 4096 * 4096)
        recorder.context(-1, -1)
        recorder.begin(Operation.GRAD_SYNC)
        self._collectives(number)
        recorder.end()
        recorder.begin(Operation.OPTIMIZER)
        recorder.end()
        recorder.end()
        self._marks, self.rows = recorder.marks - before, len(recorder._rows)
        self.writer.link.border()
        recorder.end_step(
            layout.StepEnd(
                number,
                start_ns=time.monotonic_ns() - duration_ns,
                duration_ns=duration_ns,
                cpu_ns=duration_ns >> 1,
                traced=1,
                known=63,
                loss=2.5,
                learning_rate=1e-4,
                grad_norm=1.0,
                tokens_per_second=1e5,
                teraflops=400.0,
                total_steps=100_000,
            )
        )

    def _layers(self, operation: Operation, layers: int) -> None:
        for layer in range(1, layers + 1):
            self._recorder.switch(0, layer, operation, -1)
            for part in PARTS if operation is Operation.LAYER_FORWARD else ():
                self._recorder.switch(0, layer, part, -1)
                self._recorder.switch(1, layer, -1, -1)
            self._recorder.switch(1, layer, -1, -1)

    def _collectives(self, step: int) -> None:
        self._sequence += 1
        for index, track in enumerate(self._tracks, start=1):
            ticket = self._recorder.enqueue(track, Operation.ALL_REDUCE, step, 0)
            self._recorder.begin(Operation.ALL_REDUCE)
            self._recorder.end_operation(index, -1, self._sequence, 1 << 28, 0)
            self._recorder.complete(track, ticket)


def _train(ranks: Sequence[_Rank], layers: int, step_ms: int, first: int, seconds: float) -> int:
    """Steps at their pace, of all ranks at once; the next step's number."""
    began = time.monotonic()
    for count in range(int(seconds * 1000 / step_ms)):
        for rank in ranks:
            rank.step(first + count, step_ms, layers)
        time.sleep(max(began + (count + 1) * step_ms / 1000 - time.monotonic(), 0.0))
    return first + count + 1


class _Reading:
    """What has been used so far."""

    def __init__(self, pid: int, folder: Path, ranks: Sequence[_Rank]) -> None:
        self.at = time.monotonic()
        threads = Path(f"/proc/{pid}/task").iterdir()
        self.cpu_ns = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
        self.switches = sum(map(_switches, Path(f"/proc/{pid}/task").iterdir()))
        self.messages = sum(rank.sent for rank in ranks)
        self.bytes = sum(path.stat().st_size for path in folder.rglob("*") if "journal" in str(path) and path.is_file())

    def since(self, before: _Reading) -> dict[str, float]:
        seconds = self.at - before.at
        return {
            "core_percent": round((self.cpu_ns - before.cpu_ns) / seconds / 1e7, 2),
            "messages_per_second": round((self.messages - before.messages) / seconds, 1),
            "bytes_per_second": round((self.bytes - before.bytes) / seconds),
            "context_switches_per_second": round((self.switches - before.switches) / seconds),
        }


def _switches(thread: Path) -> int:
    lines = (thread / "status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


if __name__ == "__main__":
    sys.exit(main())
