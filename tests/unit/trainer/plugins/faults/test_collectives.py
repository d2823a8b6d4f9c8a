"""What the faults of a program make of a step's all-reduces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from megatronapp.core.scenario import FaultKind
from megatronapp.trainer.plugins.faults.collectives import WrongCollective


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Elements of each all-reduce that is called."""
    sizes: list[int] = []

    def all_reduce(tensor: torch.Tensor, *_: object, **__: object) -> None:
        sizes.append(tensor.numel())

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 1 if group == "alone" else 4)
    return sizes


@pytest.fixture
def fault(called: list[int]) -> Iterator[WrongCollective]:
    fault = WrongCollective()
    yield fault
    fault.close()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (FaultKind.SKIP_COLLECTIVE, [2, 3]),
        (FaultKind.WRONG_SIZE, [2, 2, 3]),
        (FaultKind.WRONG_ORDER, [2, 1, 3]),
    ],
)
def test_the_first_of_a_step_is_wrong_and_no_other(
    fault: WrongCollective, called: list[int], kind: FaultKind, expected: list[int]
) -> None:
    fault.arm(kind)

    for size in (1, 2, 3):
        dist.all_reduce(torch.ones(size))

    assert called == expected


def test_groups_of_one_rank_are_left_alone(fault: WrongCollective, called: list[int]) -> None:
    fault.arm(FaultKind.SKIP_COLLECTIVE)

    dist.all_reduce(torch.ones(7), group="alone")  # type: ignore[arg-type]
    dist.all_reduce(torch.ones(1))

    assert called == [7]


def test_who_waits_for_what_was_not_called_goes_on(fault: WrongCollective, called: list[int]) -> None:
    fault.arm(FaultKind.SKIP_COLLECTIVE)

    work = dist.all_reduce(torch.ones(1), async_op=True)

    assert work is not None
    assert work.wait()
    assert called == []


def test_after_the_end_nothing_is_wrong(called: list[int]) -> None:
    original, fault = dist.all_reduce, WrongCollective()
    fault.arm(FaultKind.SKIP_COLLECTIVE)

    fault.close()

    assert dist.all_reduce is original
