"""MegaScope in Python: look into a model that is served or trained, disturb it, compare (docs/scope-client.md).

import megatronapp.scope as scope

model = scope.connect("http://127.0.0.1:8080", token=…)
cache = model.run_with_cache("The king", ["blocks.*.attn.hook_pattern"])
cache["blocks.3.attn.hook_pattern"]                       # [batch, head, query, key], float32
"""

from megatronapp.core.scope.intervention import (
    Intervention,
    mean_ablation,
    patch,
    steer,
    steer_between,
    zero_ablation,
)
from megatronapp.core.scope.measures import head_scores
from megatronapp.scope.cache import Cache, load_npz
from megatronapp.scope.model import Model, connect

__all__ = [
    "Cache",
    "Intervention",
    "Model",
    "connect",
    "head_scores",
    "load_npz",
    "mean_ablation",
    "patch",
    "steer",
    "steer_between",
    "zero_ablation",
]
