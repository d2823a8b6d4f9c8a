"""`plan --from-run`: the options that a recorded run of the trainer answers by itself, from its recipe."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from megatronapp.cli.pipeline.recordings import rank_files
from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.trace import file
from megatronapp.v1 import trace_pb2

ON = "on"
NUMBERS = {
    "layers": "num-layers",
    "hidden_size": "hidden-size",
    "ffn_hidden_size": "ffn-hidden-size",
    "seq_length": "seq-length",
    "micro_batch_size": "micro-batch-size",
    "vocab_size": "vocab-size",
    "tensor": "tensor-model-parallel-size",
}
SWITCHES = {"swiglu": ("swiglu", "geglu"), "sequence_parallel": ("sequence-parallel",)}
"""Any of which turns it on."""
DEFAULTS = {"micro_batch_size": 1, "vocab_size": 50304, "tensor": 1, "replicas": 1, "parameter_bytes": 18.0}
"""An option that still has it was not given; others are empty then."""


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """A command's options with those of the run in the place of what was not given. Raises UsageError, DataError, and
    as read_recording."""
    folder: Path | None = values["from_run"]
    if folder is None:
        return dict(values)
    if values["trace"] is not None:
        raise UsageError("--from-run takes times from the run: leave --trace out")
    recorded = {} if values["forward_devices"] is None else _options(*_hello(folder))
    given = {
        name: value for name, value in values.items() if value != DEFAULTS.get(name) and value not in (None, False)
    }
    return {**values, **recorded, **given, "trace": folder}


def _hello(folder: Path) -> tuple[dict[str, str], trace_pb2.ParallelSizes]:
    for rank_file in rank_files(folder):
        for message in file.read(rank_file):
            if message.WhichOneof("body") == "hello" and message.hello.recipe.settings:
                settings = {each.name: each.value for each in message.hello.recipe.settings}
                return settings, message.hello.placement.sizes
    raise DataError(
        f"{folder} is no recorded run of the trainer with its recipe: name the folder of one, or use --trace"
    )


def _options(settings: dict[str, str], sizes: trace_pb2.ParallelSizes) -> dict[str, Any]:
    """By the names of a command's local variables."""
    if "recompute-granularity" in settings:
        raise UsageError(
            "the run recomputed its activations, so that its backward times hold a forward: record without"
        )
    if "num-experts" in settings or settings.get("model-type", "gpt") != "gpt":
        raise UsageError("MegaFBD is planned for GPTs without experts: the run trained another model")
    found: dict[str, Any] = {name: int(settings[flag]) for name, flag in NUMBERS.items() if flag in settings}
    found |= {name: any(settings.get(flag) == ON for flag in flags) for name, flags in SWITCHES.items()}
    replicas = max(1, sizes.data)
    spread = settings.get("use-distributed-optimizer") == ON
    return found | _attention(settings) | {
        "replicas": replicas,
        "parameter_bytes": 6 + 12 / replicas if spread else DEFAULTS["parameter_bytes"],
    }  # fmt: skip


def _attention(settings: dict[str, str]) -> dict[str, int]:
    heads = int(settings["num-attention-heads"])
    groups = int(settings["num-query-groups"]) if settings.get("group-query-attention") == ON else heads
    width = int(settings.get("kv-channels", int(settings["hidden-size"]) // heads))
    return {"num_query_groups": groups, "qkv_width": width * (heads + 2 * groups)}
