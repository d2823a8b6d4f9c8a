"""Every reader of a file that somebody else wrote: good files, damaged or with any value anywhere.

A reader gives a value, or one of our errors in one line.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import yaml

from megatronapp.cli.kept_token import kept_token
from megatronapp.cli.local import find
from megatronapp.collector.journal import Journal
from megatronapp.collector.settings import CollectorSettings
from megatronapp.collector.store import Store
from megatronapp.core.bounded_memory import bounded_memory
from megatronapp.core.errors import MegatronAppError
from megatronapp.core.quarantine import entries
from megatronapp.core.scenario import Scenario
from megatronapp.core.token_file import read_token
from megatronapp.core.trace import file as trace_file
from megatronapp.core.trace.megascan import read_megascan
from megatronapp.core.trainingjob import TrainingJob
from megatronapp.detector import analyze
from megatronapp.detector.formats.bytedance import read_meta
from megatronapp.detector.formats.layout import read_config
from tests.attack import recordings
from tests.attack.makers import Make, damage, of_bytes, of_folder, of_json, of_yaml
from tests.attack.session import HANG_SECONDS, MOST_BYTES, Harm

ROOT = Path(__file__).parents[2]
MAX_LINE = 20_000
"""Characters of an error: it may name a value, and no file of them."""


class Reader:
    """`read` is given the folder that `make` has filled. One of less weight gets fewer inputs."""

    def __init__(self, name: str, make: Make, read: Callable[[Path], object], weight: float = 1.0) -> None:
        self.name, self.make, self.read, self.weight = name, make, read, weight


class Files:
    name = "files"
    at_once = 1

    def __init__(self, trainer: bool = True) -> None:
        """trainer: also its readers."""
        self._trainer = trainer

    async def start(self, folder: Path) -> None:
        self._folder = folder
        self._readers = readers(folder / "good") + (trainer_readers(folder / "models") if self._trainer else [])
        self._weights = [reader.weight for reader in self._readers]

    async def execute(self, chance: random.Random) -> None:
        (reader,) = chance.choices(self._readers, self._weights)
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
    began = time.monotonic()
    try:
        with bounded_memory(MOST_BYTES):
            reader.read(place)
    except MegatronAppError as error:
        text = str(error)
        if "\n" in text.strip().split("\n  ")[0] or len(text) > MAX_LINE:
            raise Harm(f"{reader.name}: no line of an error but {text[:2_000]!r}") from error
    except Exception as error:
        raise Harm(f"{reader.name}: {type(error).__name__}: {str(error)[:500]}") from error
    if time.monotonic() - began > HANG_SECONDS:
        raise Harm(f"{reader.name}: it took {time.monotonic() - began:.0f} s")


def readers(good: Path) -> list[Reader]:
    job = (ROOT / "examples/k8s/gpt-tiny.yaml").read_bytes()
    scenario = (ROOT / "examples/scenarios/two-at-once.yaml").read_bytes()
    traces, store, dumps = (
        recordings.trace_folder(good / "traces"),
        recordings.store(good / "store"),
        recordings.dumps(good / "dumps"),
    )
    logs = recordings.megatrace_folder(good / "logs")
    settings = yaml.safe_dump({"host": "127.0.0.1", "grpc_port": 0, "max_jobs": 5}).encode()
    platform = {"collector_address": "127.0.0.1:1", "token_file": "t", "page": ""}
    return [
        Reader("TrainingJob", of_yaml("file.yaml", job), lambda place: TrainingJob.load(place / "file.yaml")),
        Reader("scenario", of_yaml("file.yaml", scenario), lambda place: Scenario.load(place / "file.yaml")),
        Reader("settings", of_yaml("file.yaml", settings), lambda p: CollectorSettings.load(p / "file.yaml")),
        Reader(
            "metadata", of_yaml("meta-T.yaml", recordings.metadata()), lambda place: read_meta(place / "meta-T.yaml")
        ),
        Reader("straggler table", recordings.straggler_table, lambda place: analyze._judge(place / "trace-T.parquet")),
        Reader("flight recorder", of_folder(dumps, recordings.hostile_dump), analyze._judge),
        Reader("MegaScan", recordings.megascan, analyze._judge),
        Reader(
            "MegaScan, merged", of_json("merged.json", recordings.merged()), lambda p: analyze._judge(p / "merged.json")
        ),
        Reader("MegaScan, aggregated", recordings.megascan, read_megascan),
        Reader("Megatrace", of_bytes("rank_0.log", recordings.megatrace()), analyze._judge),
        Reader("Megatrace's interceptor", of_bytes("pod-1.log", recordings.megatrace_interceptor()), analyze._judge),
        Reader("Megatrace, several ranks", of_folder(logs, damage), analyze._judge),
        Reader(
            "Megatrace's config", of_yaml("config.yaml", recordings.config()), lambda p: read_config(p / "config.yaml")
        ),
        Reader("Megatrace's telemetry", of_bytes("h_mlx5_Port0_A.log", recordings.telemetry()), analyze._judge),
        Reader("NCCL Inspector", of_bytes("h-pid1.log", recordings.inspector()), analyze._judge),
        Reader("NCCL Inspector's metrics", of_bytes("gpu.prom", recordings.inspector_metrics()), analyze._judge),
        Reader("kineto", of_json("t.json", recordings.profiler()), lambda place: analyze._judge(place / "t.json")),
        Reader("kineto, compressed", recordings.compressed_profiler, analyze._judge),
        Reader("xpu_timer", of_bytes("scrape", recordings.scrape()), lambda place: analyze._judge(place / "scrape")),
        Reader("trace folder", of_folder(traces, recordings.hostile_trace), analyze._judge),
        Reader(
            "trace file",
            of_bytes("rank-0.pb", recordings.trace_bytes()),
            lambda p: list(trace_file.read(p / "rank-0.pb")),
        ),
        Reader("store", of_folder(store, recordings.hostile_store), analyze._judge),
        Reader("store, of the collector", of_folder(store, recordings.hostile_store), _open_store),
        Reader("journal", of_folder(recordings.journal(good / "journal"), damage), _replay),
        Reader("quarantine", of_folder(recordings.quarantine(good / "aside"), damage), entries),
        Reader("token file", of_bytes("token", b"secret\n"), lambda place: read_token(str(place / "token"))),
        Reader("kept token", of_bytes("pod-token", b"secret\n"), lambda place: kept_token(place, "pod-token")),
        Reader("local platform", of_json("platform.json", platform), find),
    ]


def trainer_readers(good: Path) -> list[Reader]:
    """Those that import torch."""
    from megatronapp.trainer.agent import recorder_text
    from megatronapp.trainer.checkpoint_folder import CLAIM, COMPLETE, LATEST, RECIPE, Claim, find_latest, read_recipe
    from megatronapp.trainer.recipe import SCHEMA
    from tests.attack.models import WEIGHTS, model_readers

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

    dumps = of_folder(recordings.dumps(good.with_name("recorder")), recordings.hostile_dump)
    return [Reader(*each, WEIGHTS.get(each[0], 1.0)) for each in model_readers(good)] + [
        Reader("flight recorder, in words", dumps, lambda p: recorder_text.main(str(p / "nccl_trace_rank_0"))),
        Reader("recipe", of_json(RECIPE, recipe), lambda place: read_recipe(place)),
        Reader("checkpoint", checkpoint, find_latest),
        Reader("claim", of_json(CLAIM, {"run": "r", "attempt": 1}), lambda place: Claim(place, "r", 1).take()),
    ]


def _open_store(place: Path) -> None:
    from megatronapp.collector import notes

    store = Store(place)
    for _, note in store.notes():
        try:
            notes.unpack(note)
        except Exception:  # noqa: BLE001, S112  as the collector's start passes over it
            continue


def _replay(place: Path) -> None:
    journal = Journal(place, fsync=False)
    list(journal.replay())
    journal.close()
