"""Every reader of a file that somebody else wrote: good files, damaged or with any value anywhere.

A reader gives a value, or one of our errors in one line.
"""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from megatronapp.cli.kept_token import kept_token
from megatronapp.cli.local import find
from megatronapp.collector.journal import Journal
from megatronapp.collector.settings import CollectorSettings
from megatronapp.collector.store import Store
from megatronapp.core.errors import MegatronAppError
from megatronapp.core.quarantine import entries
from megatronapp.core.scenario import Scenario
from megatronapp.core.token_file import read_token
from megatronapp.core.trace import file as trace_file
from megatronapp.core.trace.megascan import read_megascan
from megatronapp.core.trainingjob import TrainingJob
from megatronapp.detector import analyze
from megatronapp.detector.formats.bytedance import read_meta
from tests.attack.inputs import any_value, as_json, damaged, mutated
from tests.attack.session import Harm
from tests.support import hostile
from tests.support.simulated import Job, Layout

ROOT = Path(__file__).parents[2]
MAX_LINE = 20_000
"""Characters of an error: it may name a value, and no file of them."""

Make = Callable[[random.Random, Path], None]
"""Write a hostile input into a folder."""


class Reader:
    """`read` is given the folder that `make` has filled."""

    def __init__(self, name: str, make: Make, read: Callable[[Path], object]) -> None:
        self.name, self.make, self.read = name, make, read


class Files:
    name = "files"
    at_once = 1

    def __init__(self, trainer: bool = True) -> None:
        """trainer: also its readers, which import torch."""
        self._trainer = trainer

    async def start(self, folder: Path) -> None:
        self._folder = folder
        self._readers = readers(folder / "good") + (trainer_readers() if self._trainer else [])

    async def execute(self, chance: random.Random) -> None:
        reader = chance.choice(self._readers)
        place = self._folder / "input"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        reader.make(chance, place)
        judge(reader, place)

    async def check(self) -> None:
        """There is nobody beside them."""

    async def stop(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def judge(reader: Reader, place: Path) -> None:
    """Raises Harm."""
    try:
        reader.read(place)
    except MegatronAppError as error:
        text = str(error)
        if "\n" in text.strip().split("\n  ")[0] or len(text) > MAX_LINE:
            raise Harm(f"{reader.name}: no line of an error but {text[:2_000]!r}") from error
    except Exception as error:
        raise Harm(f"{reader.name}: {type(error).__name__}: {str(error)[:500]}") from error


def readers(good: Path) -> list[Reader]:
    job = (ROOT / "examples/k8s/gpt-tiny.yaml").read_bytes()
    scenario = (ROOT / "examples/scenarios/two-at-once.yaml").read_bytes()
    traces, store, dumps = _trace_folder(good / "traces"), _store(good / "store"), _dumps(good / "dumps")
    settings = yaml.safe_dump({"host": "127.0.0.1", "grpc_port": 0, "max_jobs": 5}).encode()
    platform = {"collector_address": "127.0.0.1:1", "token_file": "t", "page": ""}
    return [
        Reader("TrainingJob", of_yaml("file.yaml", job), lambda place: TrainingJob.load(place / "file.yaml")),
        Reader("scenario", of_yaml("file.yaml", scenario), lambda place: Scenario.load(place / "file.yaml")),
        Reader("settings", of_yaml("file.yaml", settings), lambda p: CollectorSettings.load(p / "file.yaml")),
        Reader("metadata", of_yaml("meta-T.yaml", _meta()), lambda place: read_meta(place / "meta-T.yaml")),
        Reader("straggler table", straggler_table, lambda place: analyze._judge(place / "trace-T.parquet")),
        Reader("flight recorder", of_folder(dumps, _hostile_dump), analyze._judge),
        Reader("MegaScan", megascan, analyze._judge),
        Reader("MegaScan, merged", of_json("merged.json", _merged()), lambda p: analyze._judge(p / "merged.json")),
        Reader("MegaScan, aggregated", megascan, read_megascan),
        Reader("xpu_timer", of_bytes("scrape", _scrape()), lambda place: analyze._judge(place / "scrape")),
        Reader("trace folder", of_folder(traces, _hostile_trace), analyze._judge),
        Reader("trace file", of_bytes("rank-0.pb", _trace_bytes()), lambda p: list(trace_file.read(p / "rank-0.pb"))),
        Reader("store", of_folder(store, _hostile_store), analyze._judge),
        Reader("store, of the collector", of_folder(store, _hostile_store), _open_store),
        Reader("journal", of_folder(_journal(good / "journal"), _damage), _replay),
        Reader("quarantine", of_folder(_quarantine(good / "aside"), _damage), entries),
        Reader("token file", of_bytes("token", b"secret\n"), lambda place: read_token(str(place / "token"))),
        Reader("kept token", of_bytes("pod-token", b"secret\n"), lambda place: kept_token(place, "pod-token")),
        Reader("local platform", of_json("platform.json", platform), find),
    ]


def trainer_readers() -> list[Reader]:
    from megatronapp.trainer.checkpoint import CLAIM, COMPLETE, LATEST, RECIPE, Claim, _read_recipe, find_latest
    from megatronapp.trainer.recipe import SCHEMA

    recipe = {
        "schema": SCHEMA,
        "settings": {"model": {"num_layers": 4, "hidden_size": 64}, "training": {"lr": 0.1}},
        "tokenizer": {"class": "ByteTokenizer", "vocab_size": 256, "sha256": "", "special_tokens": {}},
        "versions": {"torch": "2"},
        "plugins": {"scan": {"flags": {"--trace": True}, "changes": {"a": "b"}}},
    }

    def checkpoint(chance: random.Random, place: Path) -> None:
        (place / "iter_0000005").mkdir()
        of_bytes(LATEST, b"5")(chance, place)
        of_json(COMPLETE, {"files": {"a": 1, "b": 2}})(chance, place / "iter_0000005")

    return [
        Reader("recipe", of_json(RECIPE, recipe), lambda place: _read_recipe(place / RECIPE)),
        Reader("checkpoint", checkpoint, find_latest),
        Reader("claim", of_json(CLAIM, {"run": "r", "attempt": 1}), lambda place: Claim(place, "r", 1).take()),
    ]


# ---- how an input is made of a good one


def of_bytes(name: str, good: bytes) -> Make:
    return lambda chance, place: _write(place / name, damaged(chance, good) if chance.random() < 0.95 else good)


def of_json(name: str, good: Any) -> Make:
    def make(chance: random.Random, place: Path) -> None:
        text = as_json(mutated(chance, good, chance.choice((0.02, 0.1, 0.5))))
        kind = chance.random()
        if kind < 0.3:
            text = damaged(chance, text)
        elif kind < 0.34:
            text = chance.choice((b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5_000, b"1e400", b"\xff\xfe", b""))
        _write(place / name, text)

    return make


YAML_BOMBS = (
    b"a: &a0 [x, x]\n" + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b"*a%d, " % (n - 1) * 10) for n in range(1, 30)),
    b"[" * 20_000,
    b"{a: " * 20_000,
    b"kind: &a [*a]",
    b"kind: " + b"9" * 5_000,
    b"kind: \xff\xfe",
    b"kind: 2026-13-45",
    b"- &a {<<: *a}",
    b"!!python/object/apply:os.system [ls]",
    b"? [a]\n: b",
)  # fmt: skip


def of_yaml(name: str, good: bytes) -> Make:
    documents = list(yaml.safe_load_all(good))
    lines = good.splitlines(keepends=True)

    def make(chance: random.Random, place: Path) -> None:
        kind = chance.random()
        if kind < 0.4:
            text = damaged(chance, good)
        elif kind < 0.8:
            text = b"---\n".join(
                as_json(mutated(chance, each, chance.choice((0.02, 0.2)))) + b"\n" for each in documents
            )
        elif kind < 0.9:
            text = b"".join(chance.choices(lines, k=len(lines)))
        else:
            text = chance.choice(YAML_BOMBS)
        _write(place / name, text)

    return make


def of_folder(good: Path, change: Callable[[random.Random, Path], None]) -> Make:
    """A copy of a good folder, of which some files are changed."""

    def make(chance: random.Random, place: Path) -> None:
        shutil.copytree(good, place, dirs_exist_ok=True)
        files = sorted(path for path in place.rglob("*") if path.is_file())
        for path in chance.sample(files, chance.randint(1, min(2, len(files)))):
            change(chance, path)

    return make


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _damage(chance: random.Random, path: Path) -> None:
    path.write_bytes(damaged(chance, path.read_bytes()))


# ---- the readers' formats


def _meta(**more: Any) -> bytes:
    sizes = {"trial_name": "T", "run_id": 1, "dp_size": 2, "pp_size": 2, "tp_size": 1, "vpp_size": 1, "world_size": 4}
    return yaml.safe_dump(sizes | more).encode()


def straggler_table(chance: random.Random, place: Path) -> None:
    of_yaml("meta-T.yaml", _meta())(chance, place) if chance.random() < 0.2 else _write(place / "meta-T.yaml", _meta())
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
        _damage(chance, path)


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


def _dumps(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for rank in range(2):
        _write(folder / f"nccl_trace_rank_{rank}", pickle.dumps(_dump(rank)))
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


def _hostile_dump(chance: random.Random, path: Path) -> None:
    if chance.random() < 0.5:
        _damage(chance, path)
    else:
        _write(path, pickle.dumps(mutated(chance, _dump(0), chance.choice((0.02, 0.1, 0.3)))))


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
        of_json(name, _rank_rows())(chance, place) if chance.random() < 0.7 else _write(place / name, good)


def _merged() -> dict[str, Any]:
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


def _scrape() -> bytes:
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


def _trace_folder(folder: Path) -> Path:
    for rank, messages in enumerate(_messages()):
        path = trace_file.path_for(folder, "team/simulated", 1, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            for message in messages:
                trace_file.write(file, message)
    return folder


def _trace_bytes() -> bytes:
    from io import BytesIO

    file = BytesIO()
    for message in _messages()[0]:
        trace_file.write(file, message)
    return file.getvalue()


def _hostile_trace(chance: random.Random, path: Path) -> None:
    if chance.random() < 0.3:
        _damage(chance, path)
        return
    messages = list(trace_file.read(path))
    for message in chance.sample(messages, min(2, len(messages))):
        hostile.scramble(message, chance, chance.choice((0.02, 0.1, 0.4)))
    with path.open("wb") as file:
        for message in messages:
            trace_file.write(file, message)


def _store(folder: Path) -> Path:
    shutil.copytree(ROOT / "tests/data/6491aef/stored/store", folder)
    return folder


def _hostile_store(chance: random.Random, path: Path) -> None:
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
        _damage(chance, path)


def _open_store(place: Path) -> None:
    from megatronapp.collector import notes

    store = Store(place)
    for _, note in store.notes():
        try:
            notes.unpack(note)
        except Exception:  # noqa: BLE001, S112  as the collector's start passes over it
            continue


def _journal(folder: Path) -> Path:
    journal = Journal(folder, fsync=False)
    journal.write([(b"head", bytes([n]) * 100) for n in range(20)])
    journal.close()
    return folder


def _replay(place: Path) -> None:
    journal = Journal(place, fsync=False)
    list(journal.replay())
    journal.close()


def _quarantine(folder: Path) -> Path:
    folder.mkdir(parents=True)
    head = {"id": "a", "run": "r", "job": "t/j", "attempt": 1, "rank": 0, "reason": "x", "set_aside": "2026"}
    for number in range(3):
        _write(folder / f"{number}.record", json.dumps(head).encode() + b"\n" + b"record")
    return folder
