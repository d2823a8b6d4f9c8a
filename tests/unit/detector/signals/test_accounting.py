"""Where a step went."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from megatronapp.detector.signals import accounting

TWO_REPLICAS = SimpleNamespace(ranks=SimpleNamespace(data=np.array([0, 0, 1, 1])))


def beside_garbage(*seconds: float) -> list[bool]:
    accounts = SimpleNamespace(garbage=np.array(seconds))
    return accounting.beside_garbage(TWO_REPLICAS, accounts, least_seconds=0.01).tolist()


def test_the_stages_of_a_replica_are_late_where_one_of_them_collects_garbage() -> None:
    assert beside_garbage(0.0, 0.0, 0.3, 0.0) == [False, False, True, True]


def test_nobody_is_late_for_what_all_do_or_takes_no_time() -> None:
    assert not any(beside_garbage(0.3, 0.3, 0.305, 0.3))


def test_nothing_is_known_of_a_rank_that_did_not_tell() -> None:
    assert not any(beside_garbage(0.0, np.nan, 0.0, 0.0))
