"""Good files of every format, and each format's own ways to be hostile."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import shutil
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from megatronapp.collector.journal import Journal
from megatronapp.core.trace import file as trace_file
from megatronapp.core.trace.work_requests import HEADER
from tests.attack.inputs import any_value, as_json, damaged, mutated
from tests.attack.makers import damage, of_json, of_yaml, write
from tests.support import hostile
from tests.support.simulated import Job, Layout
from tests.unit.detector.formats.megatrace_files import Job as PipelinedJob
from tests.unit.detector.formats.megatrace_runs import Run, write_run

ROOT = Path(__file__).parents[2]


def metadata(**more: Any) -> bytes:
    sizes = {"trial_name": "T", "run_id": 1, "dp_size": 2, "pp_size": 2, "tp_size": 1, "vpp_size": 1, "world_size": 4}
    return yaml.safe_dump(sizes | more).encode()


def straggler_table(chance: random.Random, place: Path) -> None:
    of_yaml("meta-T.yaml", metadata())(chance, place) if chance.random() < 0.2 else write(
        place / "meta-T.yaml", metadata()
    )
    columns = _table_columns()
    path = place / "trace-T.parquet"
    for name in list(columns):
        if chance.random() < 0.15:
            columns[name] = _hostile_column(chance, columns[name])
    if chance.random() < 0.1:
        columns.pop(chance.choice(list(columns)))
    try:
        pq.write_table(pa.table(columns), path)
    except (pa.ArrowException, ValueError, OverflowError, TypeError):
        pq.write_table(pa.table(_table_columns()), path)
    if chance.random() < 0.4:
        damage(chance, path)


def _table_columns() -> dict[str, Any]:
    rows = [
        {
            "dp_rank": dp, "stage": stage, "rank": dp * 2 + stage, "step": step, "optype": kind, "duration": 10.0,
            "start_ts": step * 1_000.0 + 100 * mb + 20 * stage + offset, "seq_id": mb, "mc": 0, "mb_id": mb, "gmc": 0,
        }
        for step in range(3) for dp in range(2) for stage in range(2) for mb in range(2)
        for kind, offset in (("forward-compute", 0), ("backward-compute", 50))
    ]  # fmt: skip
    return {name: [row[name] for row in rows] for name in rows[0]}


def _hostile_column(chance: random.Random, good: Any) -> Any:
    kind = chance.randrange(7)
    length = len(good)
    if kind == 0:
        return pa.array([chance.choice((b"\xff\xfe", b"forward-compute"))] * length, pa.binary()).cast(
            pa.string(), safe=False
        ) if chance.random() < 0.5 else pa.array([b"\xff\xfe"] * length, pa.binary())  # fmt: skip
    if kind == 1:
        return [chance.choice((0, 1, -1, 2**31, 2**62, 2**63 - 1, -(2**63))) for _ in range(length)]
    if kind == 2:
        return [chance.choice((0.0, float("nan"), float("inf"), 1e308, -1e308, 0.5)) for _ in range(length)]
    if kind == 3:
        return [chance.choice(("forward-compute", "x", "", "é", "a" * 1_000)) for _ in range(length)]
    if kind == 4:
        return [None] * length
    if kind == 5:
        return [[1, 2]] * length
    return chance.sample(list(good), length)


def dumps(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for rank in range(2):
        write(folder / f"nccl_trace_rank_{rank}", pickle.dumps(_dump(rank)))
    return folder


def _dump(rank: int) -> dict[str, Any]:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}
    entries = [
        {
            "record_id": n, "process_group": ("0", "default_pg"), "collective_seq_id": n + 4, "is_p2p": n == 2,
            "profiling_name": f"nccl:send {rank}->{1 - rank}" if n == 2 else "nccl:all_reduce",
            "state": "scheduled" if n == 1 - rank else "completed", "retired": n != 1 - rank,
        }
        for n in range(3)
    ]  # fmt: skip
    return {"version": "2.9", "pg_config": groups, "entries": entries}


def hostile_dump(chance: random.Random, path: Path) -> None:
    if chance.random() < 0.5:
        damage(chance, path)
    else:
        write(path, pickle.dumps(mutated(chance, _dump(0), chance.choice((0.02, 0.1, 0.3)))))


def _rank_rows() -> list[dict[str, Any]]:
    place = {"dp_rk": 0, "pp_rk": 0, "tp_rk": 0, "dev": 0, "g_rk": 0}
    rows: list[dict[str, Any]] = []
    for _ in range(3):
        rows.append({"name": "iteration", "ph": "B", "rel_ts": 0, "pad_before": 1_000, **place})
        for at, name in ((1, "forward"), (3, "backward"), (5, "allreduce"), (7, "recv-warmup")):
            more = {"micro_batch_index": 0, "group": [1], "data": 100, "model_chunk": 0}
            rows.append({"name": name, "ph": "B", "rel_ts": at * 1_000, **place})
            rows.append({"name": name, "ph": "E", "rel_ts": at * 1_000 + 900, **place, **more})
        rows.append({"name": "iteration", "ph": "E", "rel_ts": 9_000, "duration_wall": 1, **place})
    return rows


def megascan(chance: random.Random, place: Path) -> None:
    good = as_json(_rank_rows())
    for rank in range(2):
        name = f"benchmark-data-{rank}-pipeline-0-tensor-0.json"
        of_json(name, _rank_rows())(chance, place) if chance.random() < 0.7 else write(place / name, good)


def merged() -> dict[str, Any]:
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"DP{pid}-PP0-TP0"}} for pid in range(2)
    ]
    for pid in range(2):
        for step in range(2):
            arguments = {"iteration": step, "pp_rank": 0, "model_chunk": 0, "microbatch": 0, "group": [1 - pid]}
            at = step * 100.0
            events.append({"ph": "B", "name": "iteration", "pid": pid, "tid": 0, "ts": at, "args": arguments})
            events += [
                {"ph": "X", "name": name, "pid": pid, "tid": 0, "ts": at + 1, "dur": 5.0, "args": arguments}
                for name in ("forward", "backward", "allreduce")
            ]
            events.append({"ph": "E", "name": "iteration", "pid": pid, "tid": 0, "ts": at + 50, "args": arguments})
    return {"traceEvents": events}


def profiler() -> dict[str, Any]:
    """Three steps of one rank, each with a kernel, its launch and its operator."""
    events: list[dict[str, Any]] = []

    def add(cat: str, name: str, tid: int, ts: float, dur: float, **args: Any) -> None:
        events.append({"ph": "X", "cat": cat, "name": name, "tid": tid, "ts": ts, "dur": dur, "args": args})

    for step, kernel in enumerate(("gemm", "ncclDevKernel_AllReduce", "gemm")):
        at = step * 1_000.0
        add("user_annotation", f"ProfilerStep#{step}", 1, at, 1_000.0)
        add("cpu_op", "aten::mm", 1, at + 10.0, 5.0)
        add("cuda_runtime", "cudaLaunchKernel", 1, at + 11.0, 2.0, correlation=step)
        add("kernel", kernel, 7, at + 20.0, 300.0, correlation=step, stream=7)
    return {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": events}


def compressed_profiler(chance: random.Random, place: Path) -> None:
    """Damaged within what is compressed, or without."""
    plain = place / "plain"
    of_json(plain.name, profiler())(chance, place)
    packed = gzip.compress(plain.read_bytes(), compresslevel=1)
    plain.unlink()
    write(place / "t.json.gz", damaged(chance, packed) if chance.random() < 0.4 else packed)


def megatrace() -> bytes:
    lines = (
        f"[save_count 1] [170000000{number}.{number:09}] [Rank 0] Fun {operation} Data 4096 stream 0x7f "
        f"opCount {number} groupHash {group}\n"
        for number in range(8)
        for operation, group in (("AllReduce", "a1"), ("Send", "b2"))
    )
    return "".join(lines).encode()


def megatrace_interceptor() -> bytes:
    lines = (
        f"[10.0.0.1] [node1] [save_count 1] [170000000{number}.{number:09}] [Rank 0] [PCI 0000:18:00.0] "
        f"[Func nccl{operation}] [Data 4096] [stream 0x7f] [opCount {number}] [groupHash 0x{group}]\n"
        for number in range(8)
        for operation, group in (("AllReduce", "a1"), ("Send", "b2"))
    )
    return "".join(lines).encode()


def megatrace_folder(folder: Path) -> Path:
    folder.mkdir(parents=True)
    write_run(folder, Run(PipelinedJob(tp=2, dp=2, pp=2), steps=6, slow=lambda rank, share: 2.0 if rank == 1 else 1.0))
    return folder


def config() -> bytes:
    return b"TP: 2\nPP: 2\nworld_size: 8\n"


def inspector() -> bytes:
    header = {"id": "0x9e", "comm_name": "unknown", "rank": 0, "n_ranks": 2, "nnodes": 1}
    metadata = {"hostname": "h", "pid": 7, "dump_timestamp_us": 1_700_000_000_000_000}
    records = (
        {"header": header | {"rank": rank}, "metadata": metadata | {"pid": rank}, "coll_perf": {
            "coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 4096, "coll_exec_time_us": 60 + 9 * rank,
        }}
        for number in range(24) for rank in range(2)
    )  # fmt: skip
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


def inspector_metrics() -> bytes:
    return b"".join(
        b'nccl_collective_exec_time_microseconds{node="n",gpu="%d",collective="AllReduce"} %d.5\n' % (gpu, 100 * gpu)
        for gpu in range(1, 5)
    )


def telemetry() -> bytes:
    now_ns = 1_790_000_000_000_000_000
    row = "2026010100{:04},7,{},1,0,2,{},10.0.0.1,10.0.0.2,{},3,65536,{}"
    rows = (row.format(number, number % 4, number // 4, 200, now_ns + 50_000 * number) for number in range(30))
    return "\n".join([HEADER, *rows, ""]).encode()


def scrape() -> bytes:
    lines = ["# TYPE XPU_TIMER_COMMON_HANG gauge"]
    return "\n".join([*lines, *(f'XPU_TIMER_COMMON_HANG{{rank="{rank}"}} {rank}' for rank in range(4)), ""]).encode()


def _messages() -> list[list[Any]]:
    """A rank's messages, of each of two ranks."""
    job = Job(Layout(dp=2, pp=1))
    found: list[list[Any]] = [[], []]
    for each in job.hellos():
        each.message.hello.identity.CopyFrom(each.identity)
        found[each.identity.rank].append(each.message)
    for step in range(1, 6):
        for each in job.step(step):
            found[each.identity.rank].append(each.message)
    return found


def trace_folder(folder: Path) -> Path:
    for rank, messages in enumerate(_messages()):
        path = trace_file.path_for(folder, "team/simulated", 1, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for message in messages:
                trace_file.write(file, message)
    return folder


def trace_bytes() -> bytes:
    file = BytesIO()
    for message in _messages()[0]:
        trace_file.write(file, message)
    return file.getvalue()


def hostile_trace(chance: random.Random, path: Path) -> None:
    if chance.random() < 0.3:
        damage(chance, path)
        return
    messages = list(trace_file.read(path))
    for message in chance.sample(messages, min(2, len(messages))):
        hostile.scramble(message, chance, chance.choice((0.02, 0.1, 0.4)))
    with path.open("wb") as file:
        for message in messages:
            trace_file.write(file, message)


def store(folder: Path) -> Path:
    shutil.copytree(ROOT / "tests/data/6491aef/stored/store", folder)
    return folder


def hostile_store(chance: random.Random, path: Path) -> None:
    if path.suffix == ".json":
        of_json(path.name, {"write": 1, "stored": 9, "published": 9, "dedup": [], "controls": {}, "owners": {}})(
            chance, path.parent
        )
    elif path.suffix == ".parquet" and chance.random() < 0.6:
        table = pq.read_table(path)
        name = chance.choice(table.column_names)
        column = table[name].to_pylist()
        changed = [chance.choice((each, any_value(chance, 0))) for each in column]
        if chance.random() < 0.3:
            changed = list(np.random.default_rng(chance.randrange(2**32)).permutation(np.array(column, dtype=object)))
        index = table.column_names.index(name)
        try:
            array = pa.array(changed, table.schema.field(name).type if chance.random() < 0.7 else None)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            array = pa.array([None] * len(column))
        pq.write_table(table.set_column(index, name, array), path)
    else:
        damage(chance, path)


def journal(folder: Path) -> Path:
    journal = Journal(folder, fsync=False)
    journal.write([(b"head", bytes([n]) * 100) for n in range(20)])
    journal.close()
    return folder


def quarantine(folder: Path) -> Path:
    folder.mkdir(parents=True)
    head = {"id": "a", "run": "r", "job": "t/j", "attempt": 1, "rank": 0, "reason": "x", "set_aside": "2026"}
    for number in range(3):
        write(folder / f"{number}.record", json.dumps(head).encode() + b"\n" + b"record")
    return folder
