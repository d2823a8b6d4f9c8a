"""Traces of forked training runs, read back as plain rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from megatronapp.core.trace import columns
from megatronapp.core.trace import file as trace_file
from megatronapp.trainer.plugins.scan import ScanPlugin
from megatronapp.v1 import trace_pb2
from tests.support.agents import agent
from tests.support.forked import run_forked
from tests.support.training import TINY, train

T = TypeVar("T")


@dataclass
class Span:
    name: str
    step: int
    start: int
    end: int
    cpu: int
    microbatch: int
    chunk: int
    layer: int
    peer: int
    sequence: int
    bytes: int
    tokens: int
    length_squares: int
    communicator: str


@dataclass
class RankTrace:
    hello: trace_pb2.Hello
    summaries: list[trace_pb2.StepSummary] = field(default_factory=list)
    heartbeats: list[trace_pb2.Heartbeat] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    communicators: dict[int, trace_pb2.Communicator] = field(default_factory=dict)

    @property
    def traced_steps(self) -> list[int]:
        return sorted({span.step for span in self.spans})

    def of(self, *names: str, step: int | None = None) -> list[Span]:
        return [s for s in self.spans if s.name in names and step in (None, s.step)]

    def rows(self, step: int) -> Iterator[dict[str, Any]]:
        """The rows of one step's summary, with names in place of indices."""
        (summary,) = (s for s in self.summaries if s.step == step)
        table = columns.summary_columns(summary)
        for i in range(summary.rows):
            row = {key: int(column[i]) for key, column in table.items()}
            known = self.communicators.get(row["communicator"])
            yield row | {"name": summary.names[row["name"]], "communicator": known.id if known else ""}


def read(path: Path) -> RankTrace:
    messages = list(trace_file.read(path))
    trace = RankTrace(messages[0].hello)
    for message in messages:
        body = getattr(message, message.WhichOneof("body") or "")
        trace.communicators |= {c.index: c for c in body.communicators}
    for message in messages[1:]:
        match message.WhichOneof("body"):
            case "summary":
                trace.summaries.append(message.summary)
            case "heartbeat":
                trace.heartbeats.append(message.heartbeat)
            case "batch":
                trace.spans += spans_of(message.batch, trace.communicators)
    return trace


def spans_of(batch: trace_pb2.TraceBatch, communicators: dict[int, trace_pb2.Communicator]) -> Iterator[Span]:
    table = {key: column.tolist() for key, column in columns.span_columns(batch).items()}
    for i in range(batch.count):
        known = communicators.get(table["communicator"][i])
        yield Span(
            name=batch.names[table["name"][i]],
            step=batch.step,
            start=table["start_ns"][i],
            end=table["start_ns"][i] + table["duration_ns"][i],
            cpu=table["cpu_ns"][i],
            communicator=known.id if known else "",
            **{
                key: table[key][i]
                for key in (
                    "microbatch",
                    "chunk",
                    "layer",
                    "peer",
                    "sequence",
                    "bytes",
                    "tokens",
                    "length_squares",
                )
            },
        )


def losses_of(flags: str, plugins: tuple[type, ...]) -> list[float]:
    return train(f"{TINY} {flags}", plugins=plugins).losses


def train_traced(folder: Path, world: int, flags: str, *, steps: int = 3) -> tuple[list[RankTrace], list[float]]:
    """Every rank's trace of a short run with the plug-in on, and the last rank's losses."""
    scan = f"--train-iters {steps} --trace --trace-dir {folder} --trace-interval 2 --continuous-trace-iterations 1"
    results = run_traced(world, losses_of, f"{flags} {scan}", (ScanPlugin,))
    files = [trace_file.path_for(folder, "local/train", 1, rank) for rank in range(world)]
    return [read(file) for file in files], results[-1]


def run_traced(world: int, target: Callable[..., T], *args: Any, **options: Any) -> list[T]:
    """`run_forked` with an agent, which has done with all ranks when this returns."""
    with agent() as environment:
        return run_forked(world, target, *args, environment=environment, **options)


def train_plain(world: int, flags: str, *, steps: int = 3) -> list[float]:
    return run_forked(world, losses_of, f"{flags} --train-iters {steps}", ())[-1]
