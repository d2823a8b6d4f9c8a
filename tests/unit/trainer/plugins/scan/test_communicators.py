"""What the groups of megatron-core are called."""

from __future__ import annotations

import ast
import inspect

import pytest
from megatron.core import parallel_state

from megatronapp.core.trace.group_kinds import GroupKind
from megatronapp.trainer.plugins.scan.communicators import KIND_OF_DESCRIPTION, kind_of

DESCRIBED = sorted(
    keyword.value.value
    for call in ast.walk(ast.parse(inspect.getsource(parallel_state)))
    if isinstance(call, ast.Call)
    for keyword in call.keywords
    if keyword.arg == "group_desc" and isinstance(keyword.value, ast.Constant)
)


def test_every_group_that_megatron_core_describes_is_of_a_known_kind() -> None:
    assert {"TENSOR_MODEL_PARALLEL_GROUP", "EXPERT_DATA_PARALLEL_GROUP_GLOO"} <= set(DESCRIBED)
    assert {description for description in DESCRIBED if kind_of(description) not in set(GroupKind)} == set()


def test_no_two_groups_are_of_one_kind() -> None:
    assert len(set(KIND_OF_DESCRIPTION.values())) == len(KIND_OF_DESCRIPTION)
    assert set(KIND_OF_DESCRIPTION.values()) == set(GroupKind) - {GroupKind.P2P}


@pytest.mark.parametrize(
    ("description", "kind"),
    [("default_pg", "world"), ("HYBRID_DP_CP_GROUP_4", "hybrid_dp_cp_group_4"), ("MINE_GROUP", "mine"), ("", "group")],
)
def test_what_megatron_core_does_not_describe_is_called_by_its_description(description: str, kind: str) -> None:
    assert kind_of(description) == kind
