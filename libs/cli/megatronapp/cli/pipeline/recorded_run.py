"""`plan --from-run`: the options that a recorded run of the trainer answers by itself, from its recipe."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from megatronapp.cli.pipeline.disaggregated import Disaggregated
from megatronapp.cli.pipeline.options import Simulated
from megatronapp.cli.pipeline.recordings import rank_files, usual_tail_ns
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


@dataclass(frozen=True, kw_only=True)
class FromRun(Disaggregated, Simulated):
    """Recorded run."""

    from_run: Annotated[
        Path | None,
        typer.Option(
            help="a job's folder in --trace-dir: its times, with --forward-devices its model, sizes and optimizer, too"
        ),
    ] = None


Options = TypeVar("Options", bound=FromRun)


def completed(options: Options) -> Options:
    """The options with those of the run in the place of what was not given: what still has its default. Raises
    UsageError, DataError, and as read_recording."""
    folder = options.from_run
    if folder is None:
        return options
    if options.trace is not None:
        raise UsageError("--from-run takes times from the run: leave --trace out")
    recorded = {} if options.forward_devices is None else _options(*_hello(folder)) | _tail(options, folder)
    defaults = {field.name: field.default for field in fields(options)}
    asked_for = {name: value for name, value in recorded.items() if getattr(options, name) == defaults[name]}
    return replace(options, trace=folder, **asked_for)


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
    """By their names."""
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
        "parameter_bytes": 6 + 12 / replicas if spread else Disaggregated.parameter_bytes,
    }  # fmt: skip


def _tail(options: FromRun, folder: Path) -> dict[str, float]:
    """Where nothing is said of it."""
    return {} if options.grad_sync_ms else {"optimizer_ms": usual_tail_ns(folder) / 1e6}


def _attention(settings: dict[str, str]) -> dict[str, int]:
    heads = int(settings["num-attention-heads"])
    groups = int(settings["num-query-groups"]) if settings.get("group-query-attention") == ON else heads
    width = int(settings.get("kv-channels", int(settings["hidden-size"]) // heads))
    return {"num_query_groups": groups, "qkv_width": width * (heads + 2 * groups)}
