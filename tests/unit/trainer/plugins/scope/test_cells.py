"""What depends on axes and operations alone is worked out once, on the host and on the device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from megatronapp.core.scope.operations import Slice, Take
from megatronapp.core.scope.sites import Axis, Rule, Split
from megatronapp.trainer.plugins.scope.cells import Chosen, grouped, of_axes, sliced

AXIS = Axis("token", 12, (Split(Rule.CONTEXT, 1, 2),))


def test_the_same_axes_and_operations_are_the_same_answer() -> None:
    [once], [again] = of_axes((AXIS,)), of_axes((Axis("token", 12, (Split(Rule.CONTEXT, 1, 2),)),))

    assert once is again
    assert sliced(once, Take("token", Slice(2))) is sliced(again, Take("token", Slice(2)))
    assert grouped(once, 3, drop=False) is grouped(again, 3, drop=False)


def test_a_stretch_is_a_view_and_the_whole_of_it_the_tensor_itself() -> None:
    values = torch.arange(12.0).view(4, 3)

    part, whole = Chosen.of(np.arange(1, 3)).take(values, 0), Chosen.of(np.arange(4)).take(values, 0)

    assert part.data_ptr() == values[1].data_ptr()
    assert whole is values


def test_indexes_come_to_a_device_once(monkeypatch: pytest.MonkeyPatch) -> None:
    brought: list[object] = []
    real = torch.from_numpy

    def bring(array: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> torch.Tensor:
        brought.append(array)
        return real(array)

    monkeypatch.setattr(torch, "from_numpy", bring)
    values, chosen = torch.arange(12.0).view(4, 3), Chosen.of(np.array([3, 0]))
    groups = grouped(of_axes((AXIS,))[0], 5, drop=False)

    found = [chosen.take(values, 0) for _ in range(3)]
    numbers = [groups.numbers(values.device) for _ in range(3)]

    assert torch.equal(found[2], values[[3, 0]])
    assert numbers[0] is numbers[2]
    assert len(brought) == 2
