"""`megatronapp config`: the questions of `accelerate config` about Megatron-LM, answered into its YAML."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from megatronapp.trainer.accelerate.plugin import PREFIX

Ask = Callable[[str, Any], Any]
"""ask(question, default): the answer, of the default's type."""


def answered(ask: Ask) -> dict[str, Any]:
    """The document, as Accelerate writes it."""
    tensor = ask("Tensor parallel size", 1)
    own: dict[str, Any] = {"tp_degree": tensor}
    if tensor > 1:
        own["sequence_parallelism"] = ask("Sequence parallelism", True)
    own["pp_degree"] = ask("Pipeline stages", 1)
    if own["pp_degree"] > 1:
        own["num_micro_batches"] = ask("Microbatches of a step", 1)
    own["recompute_activations"] = ask("Compute activations of attention again in backward", True)
    own["use_distributed_optimizer"] = ask("Shard the optimizer over the data-parallel ranks", True)
    own["gradient_clipping"] = ask("Clip gradients to this norm (0: never)", 1.0)
    return {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "MEGATRON_LM",
        f"{PREFIX}config": {PREFIX + name: value for name, value in own.items()},
        "mixed_precision": ask("Precision (no, fp16 or bf16)", "no"),
        "num_machines": 1,
        "num_processes": ask("Ranks on this machine", tensor * own["pp_degree"]),
    }


def write(file: Path, ask: Ask) -> None:
    file.write_text(yaml.safe_dump(answered(ask)))
