"""Ranks of tests that stay for several calls."""

from __future__ import annotations

import os

import pytest

from tests.support.forked import RankFailedError, Ranks
from tests.support.training import TINY, train

LAYOUT = "--tensor-model-parallel-size 2"


def process() -> tuple[int, str]:
    return os.getpid(), os.environ["MASTER_PORT"]


def fail(rank: int) -> None:
    if int(os.environ["RANK"]) == rank:
        raise ValueError("as asked")


def losses(flags: str) -> list[float]:
    return train(f"{TINY} --train-iters 3 {flags}").losses


def test_the_same_processes_answer_each_call_under_a_port_of_its_own() -> None:
    with Ranks(2) as ranks:
        one, other = ranks.call(process), ranks.call(process)

    assert [each[0] for each in one] == [each[0] for each in other]
    assert len({port for _, port in one + other}) == 2


def test_behind_a_failure_others_answer() -> None:
    with Ranks(2) as ranks:
        before = ranks.call(process)
        with pytest.raises(RankFailedError, match="as asked"):
            ranks.call(fail, 1)
        after = ranks.call(process)

    assert {pid for pid, _ in before}.isdisjoint(pid for pid, _ in after)


def test_a_run_behind_another_has_the_losses_that_it_has_alone() -> None:
    with Ranks(2) as alone, Ranks(2) as ranks:
        ranks.call(losses, LAYOUT)

        assert ranks.call(losses, "--use-distributed-optimizer") == alone.call(losses, "--use-distributed-optimizer")
