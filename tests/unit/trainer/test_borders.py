"""All ranks come to the same border after the same step, for one look into the store a step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import DistNetworkError, HashStore

from megatronapp.core.errors import TrainingError
from megatronapp.trainer.borders import Border, Borders


class CountingStore:
    def __init__(self) -> None:
        self._store = HashStore()
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def counted(*args: Any) -> Any:
            self.calls[name] += 1
            return method(*args)

        return counted


def test_nothing_asked_costs_one_look_into_the_store_a_step() -> None:
    store: Any = CountingStore()
    borders = Borders(store)

    found = [borders.after(step) for step in range(1, 11)]

    assert set(found) == {Border.NOTHING}
    assert store.calls == {"check": 10}


def test_a_border_comes_after_the_next_step_once() -> None:
    borders = Borders(HashStore())
    borders.request()
    borders.request()

    found = [borders.after(step) for step in range(1, 6)]

    assert found == [Border.NOTHING, Border.PLUGINS, Border.NOTHING, Border.NOTHING, Border.NOTHING]


def test_a_border_can_be_asked_for_again() -> None:
    borders = Borders(HashStore())
    found = []
    for step in range(1, 8):
        if step in (1, 2, 4):
            borders.request()
        found.append(borders.after(step))

    assert [step for step, border in enumerate(found, start=1) if border] == [2, 5]


def test_a_rank_that_always_comes_second_is_heard_too() -> None:
    store = HashStore()
    plugin, stopped = Borders(store), Borders(store)
    stopped._ask(Border.STOP)
    plugin.request()

    found = [(plugin.after(step), stopped.after(step)) for step in (1, 2)]

    assert found == [(Border.NOTHING, Border.NOTHING), (Border.PLUGINS | Border.STOP,) * 2]


@given(st.data())
def test_ranks_that_run_apart_come_to_the_same_borders(data: st.DataObject) -> None:
    """A rank may ask at any time, and be up to one step ahead of another, as no step ends without all of them."""
    store, steps = HashStore(), 8
    ranks = [Borders(store) for _ in range(3)]
    asked = {(r, s): data.draw(st.sampled_from(Border)) for r in range(3) for s in range(1, steps + 1)}
    done = [0] * len(ranks)
    found: list[list[Border]] = [[] for _ in ranks]
    while min(done) < steps:
        # A rank ends step n only when all have begun it, which they do after their look at the end of step n - 1.
        able = [r for r in range(3) if done[r] == min(done)]
        rank = data.draw(st.sampled_from(able))
        done[rank] += 1
        ranks[rank]._ask(asked[rank, done[rank]])
        found[rank].append(ranks[rank].after(done[rank]))

    assert found[0] == found[1] == found[2]
    wanted = Border.NOTHING
    for (_, step), what in asked.items():
        if step <= 2:
            wanted |= what
    granted = Border.NOTHING
    for border in found[0]:
        granted |= border
    assert wanted in granted


def test_who_was_asked_to_end_knows_it_from_then_on() -> None:
    """Whoever holds the ranks at a border must let them go, also at the one after which all end."""
    borders = Borders(HashStore())
    assert not borders.stopping()

    borders._ask(Border.STOP)
    asked = [borders.stopping()]
    borders.after(1)
    assert borders.after(2) is Border.STOP

    assert [*asked, borders.stopping()] == [True, True]


class LostStore:
    def check(self, keys: list[str]) -> bool:
        raise DistNetworkError("Connection reset by peer")


def test_a_store_that_is_gone_is_told_as_such() -> None:
    store: Any = LostStore()

    with pytest.raises(TrainingError, match="the launcher or rank 0, has ended"):
        Borders(store).after(1)
