"""The API server's rules and the model take the same sizes and schedules."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from megatronapp.core.trainingjob import Spec
from megatronapp.operator.crd import definition
from megatronapp.operator.crd.rules import SPEC_RULES
from tests.support.cel import holds

SCHEMA = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
DRAWS = 3000
SIZES = (1, 1, 2, 2, 3)
FBD: dict[str, Sequence[Any]] = {
    "mode": ("Input", "Linears", "Layers", "Auto"),
    "forwardTensor": SIZES,
    "forwardPipeline": SIZES,
    "ignoreForwardTensorParallel": (True, False),
    "forwardNodeSelector": ({}, {"pool": "old"}),
}
DPP: dict[str, Sequence[Any]] = {
    "policy": ("Auto", "Interleaved", "InterleavedZb", "ZbH1", "ZbH2"),
    "cap": SIZES,
    "split": (True, False),
}
OTHERS: dict[str, Sequence[Any]] = {
    "nodes": (1, 2, 3, 4),
    "elastic": tuple({"minNodes": least, "maxNodes": most} for least, most in ((1, 2), (2, 4), (2, 2))),
    "backend": ("JobSet",),
    "scheduling": ({"queue": ""}, {"queue": "lab"}),
}


def some(random: Random, fields: dict[str, Sequence[Any]], share: float) -> dict[str, Any]:
    return {name: random.choice(values) for name, values in fields.items() if random.random() < share}


def drawn(random: Random) -> dict[str, Any]:
    """Few things at a time are other than they are where nothing is said, so that many specs keep all rules but one."""
    sizes = some(random, dict.fromkeys(("tensor", "pipeline", "context"), SIZES), 0.8)
    sizes |= some(random, dict.fromkeys(("expert", "virtualPipeline"), SIZES), 0.2)
    fbd = some(random, FBD, 0.3)
    tensor, pipeline, context = (sizes.get(name, 1) for name in ("tensor", "pipeline", "context"))
    forward = fbd.get("forwardTensor", tensor) * fbd.get("forwardPipeline", pipeline)
    replica = (forward + tensor * pipeline) * context
    return {
        "procPerNode": random.choice((1, 2, 3, 4, 6, 12, replica, replica, 2 * replica)),
        "parallelism": sizes,
        "plugins": {
            "fbd": {"enabled": random.random() < 0.6, **fbd},
            "dpp": {"enabled": random.random() < 0.3, **some(random, DPP, 0.4)},
            "scope": {"enabled": random.random() < 0.1},
        },
        **some(random, OTHERS, 0.2),
    }


def filled_in(value: Any, schema: dict[str, Any]) -> Any:
    """With the defaults that the server fills in before it looks at rules."""
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    known = schema["properties"]
    whole = {name: field["default"] for name, field in known.items() if "default" in field} | value
    return {name: filled_in(each, known.get(name, {})) for name, each in whole.items()}


def broken(given: dict[str, Any]) -> list[str]:
    """What the server would say."""
    spec = filled_in(given, SCHEMA)
    return [message for rule, message in SPEC_RULES if not holds(rule, self=spec)]


def refusal(given: dict[str, Any]) -> str:
    try:
        Spec.model_validate(given)
    except ValueError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("seed", range(4))
def test_they_agree(seed: int) -> None:
    random, taken = Random(seed), 0

    for _ in range(DRAWS):
        spec = drawn(random)
        refused, said = refusal(spec), broken(spec)
        assert bool(refused) is bool(said), (spec, refused, said)
        taken += spec["plugins"]["fbd"]["enabled"] and not refused

    assert taken > DRAWS // 100  # with MegaFBD, or little would be compared


BESIDE = {"parallelism": {"tensor": 2, "pipeline": 2}, "procPerNode": 8}


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({**BESIDE, "procPerNode": 12}, "a replica's forward and backward ranks"),
        ({**BESIDE, "plugins": {"fbd": {"enabled": True, "forwardTensor": 3}}}, "forwardTensor must divide"),
        ({**BESIDE, "parallelism": {"context": 2}}, "pipeline of at least 2, as the last stage runs its own forward"),
        ({**BESIDE, "plugins": {"fbd": {"enabled": True}, "scope": {"enabled": True}}}, "with plugins.dpp or scope"),
        (
            {**BESIDE, "plugins": {"fbd": {"enabled": True, "forwardNodeSelector": {"pool": "old"}}}},
            "forward ranks of all replicas must be a multiple of procPerNode",
        ),
    ],
)
def test_a_spec_that_breaks_one_is_told_what_to_change(spec: dict[str, Any], said: str) -> None:
    told = broken({"plugins": {"fbd": {"enabled": True}}, **spec})

    assert any(said in each for each in told)


def test_a_spec_that_keeps_all_is_taken() -> None:
    assert broken({**BESIDE, "plugins": {"fbd": {"enabled": True}}}) == []
