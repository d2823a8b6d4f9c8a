"""A constant that is judged by is put back, and is the one that the rules read."""

import contextlib

import pytest

from bench.scale.constants import CONSTANTS, Constant, standing


@pytest.mark.parametrize("constant", CONSTANTS, ids=lambda constant: constant.name)
def test_another_value_stands_in_every_module_until_the_jobs_are_judged(constant: Constant) -> None:
    now = [getattr(module, constant.name) for module in constant.modules]

    with contextlib.suppress(RuntimeError), standing(constant, 17.0):
        there = [getattr(module, constant.name) for module in constant.modules]
        raise RuntimeError

    assert there == [17.0] * len(constant.modules)
    assert [getattr(module, constant.name) for module in constant.modules] == now
    assert set(now) == {now[0]}
    assert now[0] in constant.values
