"""Simulated training jobs: the RankMessages that the ranks of a job would send, with noise like a real one's.

The model of a step: each rank's compute per (pass, chunk) with noise of its own; a replica's pipeline is as slow as its
slowest stage; replicas meet in the gradient's all-reduce. Whoever has time left spends it waiting, in recv and in
all_reduce. That is enough for what a detector can see, and faults act where real ones do. CPU ranks are simulated here
alone; `bench.scale` has the finer model of GPU jobs, at any size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from bench.scale.layout import Layout as Layout
from megatronapp.core.trace import columns
from megatronapp.core.trace.span_names import SpanName, kind_of
from megatronapp.v1 import trace_pb2

START_UNIX_NS = 1_700_000_000_000_000_000
NAMES = [
    "step",
    "forward",
    "backward",
    "forward_send",
    "forward_recv",
    "backward_send",
    "backward_recv",
    "all_reduce",
    "optimizer",
    "data",
    "gc",
    "grad_sync",
    "checkpoint",
    "checkpoint_write",
    "all_to_all",
]
KIND = {name: kind_of(SpanName(name)) for name in NAMES}


@dataclass(frozen=True)
class NoiseModel:
    """Standard deviations of logs, a step and rank."""

    step: float = 0.005
    """Independent."""
    slow: float = 0.0
    """Of a first-order autoregression, and its coefficient."""
    memory: float = 0.8
    offset: float = 0.004
    """Constant, a rank."""
    outliers: float = 0.0
    """Share of steps that take longer, half as long again by default."""
    outlier: float = 0.4
    """By how much: its log."""
    common: float = 0.002
    """All ranks alike: clock frequency, other load."""
    wall: float = 0.002
    """Share of the step lost outside compute, exponential."""
    launching: float = 0.0
    """Host time to enqueue a pass over the device's time for it; above 1 the device starves."""
    launching_slow: float = 0.10
    """Standard deviation of its log, a first-order autoregression a rank with coefficient 0.9."""
    starved: int = 0
    """Of a step's passes: so many starve, and take HALF_AGAIN as long, while the host is ahead in the others."""


HALF_AGAIN = 1.5
GPU = NoiseModel()
HOST_BOUND = NoiseModel(launching=1.3)
"""GPUs that wait for shared, wavering hosts: small kernels, one microbatch."""
CPU = NoiseModel(step=0.07, slow=0.03, offset=0.02, outliers=0.01, common=0.05, wall=0.10)


@dataclass(frozen=True)
class Fault:
    """kind: compute, launching, waiting, host, data, gc, link, optimizer, write; size: a ratio for compute, launching,
    waiting (of all passes but the fastest), optimizer and write, else seconds a step (link: a message)."""

    kind: str
    ranks: tuple[int, ...]
    from_step: int
    size: float
    to_step: int = 10**9
    every: int = 1

    def active(self, step: int) -> bool:
        return self.from_step <= step <= self.to_step and (step - self.from_step) % self.every == 0


@dataclass
class Job:
    layout: Layout = field(default_factory=Layout)
    noise: NoiseModel = GPU
    faults: tuple[Fault, ...] = ()
    seed: int = 0
    on_cpu: bool = False
    compute_seconds: float = 0.3
    """A rank's compute in a step."""
    last_stage: float = 1.0
    """Its work over the others'."""
    sequence_spread: float = 0.0
    """Standard deviation of the log of a replica's sum of squared lengths in a step."""
    expert_load: tuple[float, ...] = ()
    """Of each data-parallel rank, over the mean: experts are spread over all of them and take half of the compute."""
    save_every: int = 0
    """Steps; the save after a step is told with the next one. 0: none."""
    attempt: int = 1
    run: str = "run-1"
    ranks_per_node: int = 8

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        n = self.layout.world
        self._offset = self.random.normal(0, self.noise.offset, n)
        self._slow = self.random.normal(0, self.noise.slow, n)
        self._pace = self.random.normal(0, self.noise.launching_slow, n)
        self.clock_ns = START_UNIX_NS
        self.sequence = np.zeros(n, int)

    # ---- messages ----

    def hellos(self) -> list[trace_pb2.RankMessage]:
        return [self._wrap(rank, hello=self._hello(rank), seq=0) for rank in range(self.layout.world)]

    def steps(self, first: int, last: int) -> Iterator[list[trace_pb2.RankMessage]]:
        """The summaries of each step, in the order of the ranks."""
        for step in range(first, last + 1):
            yield self.step(step)

    def step(self, step: int) -> list[trace_pb2.RankMessage]:
        rows = self._simulate(step)
        if self._follows_save(step):
            self._save(step, rows)
        self.clock_ns += int(max(r["duration"] for r in rows) * 1e9)
        return [self._wrap(rank, summary=self._summary(step, rank, rows[rank])) for rank in range(self.layout.world)]

    def heartbeat(
        self, rank: int, step: int, frontiers: list[trace_pb2.Frontier], **fields: object
    ) -> trace_pb2.RankMessage:
        beat = trace_pb2.Heartbeat(step=step, unix_ns=self.clock_ns, frontiers=frontiers, **fields)  # type: ignore[arg-type]
        return self._wrap(rank, heartbeat=beat)

    def _follows_save(self, step: int) -> bool:
        return self.save_every > 0 and step > 1 and (step - 1) % self.save_every == 0

    def _save(self, step: int, rows: list[dict[str, float]]) -> None:
        """Data-parallel rank 0 writes the weights, the others little; each waits for the last."""
        amount = np.array([1.0 if self.layout.place(rank)[1] == 0 else 0.05 for rank in range(self.layout.world)])
        noise = np.exp(self.random.normal(0, 0.15, self.layout.world))
        write = 2.0 * amount * noise * self._fault("write", step, 1.0)
        for row, seconds in zip(rows, write, strict=True):
            row["write"], row["save"] = float(seconds), float(write.max() - seconds) + 0.5

    def _wrap(self, rank: int, seq: int | None = None, **body: object) -> trace_pb2.RankMessage:
        if seq is None:
            self.sequence[rank] += 1
            seq = int(self.sequence[rank])
        return trace_pb2.RankMessage(
            identity=trace_pb2.Identity(
                run=self.run,
                job="test/simulated",
                attempt=self.attempt,
                rank=rank,
                incarnation=self.attempt * 1000 + rank,
            ),
            message=trace_pb2.TraceMessage(seq=seq, **body),  # type: ignore[arg-type]
            received_unix_ns=self.clock_ns + rank,
            clock_error_ns=-1,
        )

    def communicators(self, rank: int) -> list[trace_pb2.Communicator]:
        tp, _, pp = self.layout.place(rank)
        ranks = [self.layout.rank(tp, d, pp) for d in range(self.layout.dp)]
        name = "-".join(map(str, ranks))
        found = [trace_pb2.Communicator(index=1, id=f"dp:{name}", kind="dp", ranks=ranks)]
        if self.expert_load:
            found.append(trace_pb2.Communicator(index=2, id=f"ep:{name}", kind="ep", ranks=ranks))
        return found

    def _hello(self, rank: int) -> trace_pb2.Hello:
        tp, dp, pp = self.layout.place(rank)
        shape = self.layout
        sizes = trace_pb2.ParallelSizes(
            world=shape.world, tensor=shape.tp, pipeline=shape.pp, data=shape.dp, context=1, expert=1,
            virtual_pipeline=shape.vpp,
        )  # fmt: skip
        return trace_pb2.Hello(
            placement=trace_pb2.Placement(
                node=f"node-{rank // self.ranks_per_node}", gpu_uuid=f"GPU-{rank}", tensor=tp, pipeline=pp, data=dp,
                sizes=sizes,
            ),
            communicators=self.communicators(rank),
            device=trace_pb2.DEVICE_CPU if self.on_cpu else trace_pb2.DEVICE_CUDA,
            schedule=trace_pb2.Schedule(name="1f1b", microbatches=shape.microbatches, first_step=1),
        )  # fmt: skip

    # ---- the step ----

    def _fault(self, kind: str, step: int, neutral: float) -> np.ndarray:
        sizes = np.full(self.layout.world, neutral)
        for fault in self.faults:
            if fault.kind == kind and fault.active(step):
                sizes[list(fault.ranks)] = fault.size
        return sizes

    def _load(self, step: int) -> np.ndarray:
        """Which experts are wanted wavers from step to step."""
        if not self.expert_load:
            return np.ones(self.layout.dp)
        drawn = np.array(self.expert_load) * np.exp(self.random.normal(0, 0.05, self.layout.dp))
        load: np.ndarray = drawn / drawn.mean()
        return load

    def _launching(self, step: int) -> np.ndarray:
        """Host time of the passes over the device's usual time for them, a rank."""
        if not self.noise.launching:
            return np.zeros(self.layout.world)
        fresh = self.random.normal(0, self.noise.launching_slow, self.layout.world)
        self._pace = 0.9 * self._pace + np.sqrt(1 - 0.9**2) * fresh
        pace: np.ndarray = self.noise.launching * np.exp(self._pace) * self._fault("launching", step, 1.0)
        return pace

    def _simulate(self, step: int) -> list[dict[str, float]]:
        shape, noise, n = self.layout, self.noise, self.layout.world
        places = [shape.place(rank) for rank in range(n)]
        data = np.array([p[1] for p in places])
        stage = np.array([p[2] for p in places])
        squares = np.exp(self.random.normal(0, self.sequence_spread, shape.dp))[data]
        load = self._load(step)[data]
        work = (0.7 + 0.3 * squares) * (0.5 + 0.5 * load) * np.where(stage == shape.pp - 1, self.last_stage, 1.0)
        self._slow = noise.memory * self._slow + np.sqrt(1 - noise.memory**2) * self.random.normal(0, noise.slow, n)
        jitter = self._offset + self._slow + self.random.normal(0, noise.step, n) + self.random.normal(0, noise.common)
        jitter += np.where(self.random.random(n) < noise.outliers, noise.outlier, 0.0)
        compute = self.compute_seconds * work * np.exp(jitter) * self._fault("compute", step, 1.0)
        launching = self._launching(step) * self.compute_seconds * work
        starved = launching > compute
        compute = np.maximum(compute, launching)
        optimizer = 0.1 * self.compute_seconds * np.exp(self.random.normal(0, 2 * noise.step, n))
        optimizer *= self._fault("optimizer", step, 1.0)
        idle = self.compute_seconds * self.random.exponential(noise.wall, n)
        host = self._fault("host", step, 0.0)
        loading = 0.001 * self.random.exponential(1, n) + self._fault("data", step, 0.0)
        garbage = self._fault("gc", step, 0.0)
        late = self._fault("link", step, 0.0)
        sends = shape.microbatches if shape.pp > 1 else 0
        sending = 0.0002 * np.exp(self.random.normal(0, 0.2, n)) + (late if sends else 0.0)
        sync = np.zeros(n) if sends else late
        some = noise.starved / shape.microbatches
        waiting = self._fault("waiting", step, 1.0)
        passes = compute * waiting * (1 + some * (HALF_AGAIN - 1))
        busy = passes + idle + host + loading + garbage + sending * sends + sync
        bubble = 1 + (shape.pp - 1) / shape.microbatches
        replica = np.array([busy[data == d].max() * bubble for d in range(shape.dp)])[data]
        total = replica.max() + optimizer.max()
        return [
            {
                "compute": compute[r], "optimizer": optimizer[r], "idle": idle[r], "data": loading[r],
                "gc": garbage[r], "send": sending[r], "sync": sync[r], "recv": replica[r] - busy[r],
                "reduce": replica.max() - (replica[r] if sends else busy[r]) + 0.002, "duration": total + 0.002,
                "squares": squares[r],
                "load": load[r],
                "starved": starved[r] or some,
                "waiting": waiting[r],
                "starved_longer": 1.0 if starved[r] else HALF_AGAIN,
            }
            for r in range(n)
        ]  # fmt: skip

    def _summary(self, step: int, rank: int, row: dict[str, float]) -> trace_pb2.StepSummary:
        chunks, m = self.layout.vpp, self.layout.microbatches
        table: list[tuple[str, int, int, int, int, float, float, float]] = []
        for chunk in range(chunks):
            for name, share in (("forward", 1 / 3), ("backward", 2 / 3)):
                cpu = row["compute"] * share / chunks
                table.append((name, chunk, 0, -1, m, cpu + row["idle"] * share / chunks, cpu, row["squares"]))
        table.append(("optimizer", -1, 0, -1, 1, row["optimizer"], row["optimizer"], 0))
        table.append(("data", -1, 0, -1, m, row["data"], 0, 0))
        table.append(("grad_sync", -1, 0, -1, 1, row["sync"], 0, 0))
        if row["gc"]:
            table.append(("gc", -1, 0, -1, 1, row["gc"], row["gc"], 0))
        table.append(("all_reduce", -1, 1, -1, 1, row["reduce"], 0, 0))
        if self.expert_load:
            table.append(("all_to_all", 0, 2, -1, 4 * m, 0.01, 0, 0))
        if "write" in row:
            table.append(("checkpoint", -1, 0, -1, 1, row["save"], 0, 0))
            table.append(("checkpoint_write", -1, 0, -1, 1, row["write"], 0, 0))
        table += self._messages(rank, row)
        summary = trace_pb2.StepSummary(
            step=step,
            start_ns=0,
            duration_ns=int(row["duration"] * 1e9),
            names=NAMES,
            cpu_ns=int(row["compute"] * 1e9),
            phases=[trace_pb2.PHASE_CHECKPOINT] if "write" in row else [],
        )
        count = np.array([t[4] for t in table], np.float64)
        duration = np.array([t[5] for t in table]) * 1e9
        used = np.array([t[6] for t in table]) * 1e9 * self.on_cpu
        passes = np.array([t[0] in ("forward", "backward") for t in table])
        least, starved = duration / count, passes * row["starved"]
        duration *= np.where(passes, row["waiting"], 1.0)
        most = duration / count * row["starved_longer"]
        starved_duration = duration * starved * row["starved_longer"]
        duration += starved_duration - duration * starved
        tokens = np.array([1024 * t[4] * (t[7] > 0) for t in table])
        sent = np.array([4096 * t[4] * (1 + row["load"]) * (t[0] == "all_to_all") for t in table])
        squares = np.array([1024 * 512 * t[4] * t[7] for t in table])
        columns.fill_summary(
            summary,
            {
                "name": [NAMES.index(t[0]) for t in table], "kind": [KIND[t[0]] for t in table],
                "chunk": [t[1] for t in table], "communicator": [t[2] for t in table], "peer": [t[3] for t in table],
                "count": count, "duration_sum_ns": duration, "duration_min_ns": least,
                "duration_max_ns": np.where(starved > 0, most, least), "cpu_sum_ns": used, "cpu_min_ns": used / count,
                "cpu_max_ns": used / count, "tokens": tokens, "length_squares": squares, "bytes": sent,
                "starved_count": count * starved, "starved_sum_ns": starved_duration,
                "starved_tokens": tokens * starved, "starved_length_squares": squares * starved,
            },
        )  # fmt: skip
        return summary

    def _messages(self, rank: int, row: dict[str, float]) -> list[tuple[str, int, int, int, int, float, float, float]]:
        tp, dp, pp = self.layout.place(rank)
        m, found = self.layout.microbatches, []
        for name, peer, receives in (("forward", pp + 1, pp - 1), ("backward", pp - 1, pp + 1)):
            if 0 <= peer < self.layout.pp:
                to = self.layout.rank(tp, dp, peer)
                found.append((f"{name}_send", 0, 0, to, m, row["send"] * m, 0.0, 0.0))
            if 0 <= receives < self.layout.pp:
                of = self.layout.rank(tp, dp, receives)
                sources = (pp > 0) + (pp < self.layout.pp - 1)
                found.append((f"{name}_recv", 0, 0, of, m, max(row["recv"] / sources, 1e-5), 0.0, 0.0))
        return found
