"""Which replica judges which run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from megatronapp.core.errors import UnavailableError
from megatronapp.detector import ownership
from megatronapp.detector.ownership import Ownership, preferred

RUNS = [f"run-{number}" for number in range(60)]


class Table:
    """Leases of all replicas, in memory; time does not pass in it."""

    def __init__(self) -> None:
        self.holders: dict[str, str] = {}
        self.living: set[str] = set()
        self.away = False


class FakeLeases:
    seconds = 10.0

    def __init__(self, table: Table, holder: str) -> None:
        self._table, self.holder = table, holder

    async def meet(self) -> list[str]:
        if self._table.away:
            raise UnavailableError("away")
        self._table.living.add(self.holder)
        return sorted(self._table.living)

    async def hold(self, names: Sequence[str]) -> set[str]:
        return {name for name in names if self._table.holders.setdefault(name, self.holder) == self.holder}

    async def release(self, names: Sequence[str]) -> None:
        for name in names:
            if self._table.holders.get(name) == self.holder:
                del self._table.holders[name]

    async def leave(self) -> None:
        self._table.living.discard(self.holder)


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The monotonic clock, which the test sets."""
    clock = [100.0]
    monkeypatch.setattr(ownership.time, "monotonic", lambda: clock[0])
    return clock


def of(replica: Ownership) -> set[str]:
    return {run for run in RUNS if replica.owns(run)}


async def test_one_alone_owns_all() -> None:
    assert await Ownership().renew(RUNS) == (frozenset(), frozenset())
    assert of(Ownership()) == set(RUNS)


async def test_replicas_share_all_runs_and_never_the_same(now: list[float]) -> None:
    table = Table()
    replicas = [Ownership(FakeLeases(table, name)) for name in "abc"]
    for _ in range(3):
        for replica in replicas:
            await replica.renew(RUNS)
            assert sum(map(len, map(of, replicas))) == len(set().union(*map(of, replicas)))

    assert set().union(*map(of, replicas)) == set(RUNS)
    assert min(len(of(replica)) for replica in replicas) > 8


async def test_when_a_replica_goes_only_its_runs_move(now: list[float]) -> None:
    before = {run: preferred(run, "abc") for run in RUNS}
    after = {run: preferred(run, "ab") for run in RUNS}

    assert Counter(before.values()).keys() == set("abc")
    assert all(after[run] == owner for run, owner in before.items() if owner != "c")


async def test_what_a_replica_gives_away_is_lost_and_gained_once(now: list[float]) -> None:
    table = Table()
    first, second = (Ownership(FakeLeases(table, name)) for name in "ab")
    gained, _ = await first.renew(RUNS)
    await second.renew(RUNS)

    _, lost = await first.renew(RUNS)
    taken, _ = await second.renew(RUNS)

    assert gained == set(RUNS)
    assert lost == taken == of(second)
    assert of(first) == set(RUNS) - lost


async def test_a_replica_that_was_paused_owns_nothing_until_it_asks_again(now: list[float]) -> None:
    table = Table()
    replica = Ownership(FakeLeases(table, "a"))
    await replica.renew(RUNS)

    now[0] += FakeLeases.seconds
    paused = of(replica)
    gained, lost = await replica.renew(RUNS)

    assert paused == set()
    assert gained == lost == set(RUNS)


async def test_leases_outlast_a_redis_that_is_away_for_less_than_their_time(now: list[float]) -> None:
    table = Table()
    replica = Ownership(FakeLeases(table, "a"))
    await replica.renew(RUNS)
    table.away = True

    now[0] += FakeLeases.seconds / 2
    changed = await replica.renew(RUNS)
    owned = of(replica)
    now[0] += FakeLeases.seconds / 2
    _, lost = await replica.renew(RUNS)

    assert changed == (frozenset(), frozenset())
    assert owned == lost == set(RUNS)


async def test_who_leaves_lets_go(now: list[float]) -> None:
    table = Table()
    replica = Ownership(FakeLeases(table, "a"))
    await replica.renew(RUNS)

    await replica.leave()

    assert (of(replica), table.holders, table.living) == (set(), {}, set())
