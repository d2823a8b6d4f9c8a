"""Agreements: whatever ranks publish and whenever, all take up the same documents at the same borders, each once."""

from __future__ import annotations

import math
import random
import threading
import time
from typing import Any

import pytest
from torch.distributed import HashStore

from megatronapp.core.errors import DataError
from megatronapp.core.trace.values import Progress
from megatronapp.trainer.borders import Border, Borders
from megatronapp.trainer.plugins.scope.commands import MAX_DOCUMENT_BYTES, Agreement
from megatronapp.trainer.plugins.scope.training import TrainControl, hold, may_be_last

RANKS, STEPS = 3, 15


class Job:
    """Ranks as threads, whose steps end together as those of a training do."""

    def __init__(self, seed: int) -> None:
        self.store = HashStore()
        self.together = threading.Barrier(RANKS)
        self.seed = seed
        self.accepted: list[list[tuple[int, Any]]] = [[] for _ in range(RANKS)]
        self.failed: list[BaseException] = []

    def run(self) -> None:
        threads = [threading.Thread(target=self._guarded, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not self.failed, self.failed

    def _guarded(self, rank: int) -> None:
        try:
            self._rank(rank)
        except BaseException as error:  # noqa: BLE001
            self.failed.append(error)
            self.together.abort()

    def _rank(self, rank: int) -> None:
        chance = random.Random(f"{self.seed}/{rank}")
        borders = Borders(self.store)
        agreement = Agreement(self.store, rank, borders.request)
        for step in range(1, STEPS + 1):
            for number in range(chance.choice([0, 0, 0, 1, 2])):
                time.sleep(chance.choice([0, 0.001]))
                shared = chance.random() < 0.3
                identifier = f"shared/{step // 3}" if shared else f"{rank}/{step}/{number}"
                agreement.publish(identifier, {"id": identifier})
            self.together.wait(20)
            time.sleep(chance.choice([0, 0, 0.002]))
            if Border.PLUGINS in borders.after(step):
                self.accepted[rank] += [(step, document["id"]) for document in agreement.take()]


@pytest.mark.parametrize("seed", range(8))
def test_all_ranks_take_up_the_same_at_the_same_borders(seed: int) -> None:
    job = Job(seed)

    job.run()

    assert job.accepted[0] == job.accepted[1] == job.accepted[2]
    identifiers = [identifier for _, identifier in job.accepted[0]]
    assert len(identifiers) == len(set(identifiers)) > 0


def test_a_document_that_is_too_large_is_refused_before_anybody_sees_it() -> None:
    agreement = Agreement(HashStore(), 0, lambda: None)

    with pytest.raises(DataError, match="at most"):
        agreement.publish("x", {"id": "x" * MAX_DOCUMENT_BYTES})

    assert not agreement.pending()


class Paused:
    """Ranks that hold; what each is told, and when it went on."""

    def __init__(self, lease_seconds: float) -> None:
        store = HashStore()
        self.agreements = [Agreement(store, rank, lambda: None) for rank in range(RANKS)]
        self.controls = [TrainControl() for _ in range(RANKS)]
        self.stopping = [False] * RANKS
        self.accepted: list[list[str]] = [[] for _ in range(RANKS)]
        self.settled = [0] * RANKS
        for control in self.controls:
            control.apply({"do": "pause", "lease_seconds": lease_seconds}, 5)
        self.threads = [threading.Thread(target=self._hold, args=(rank,), daemon=True) for rank in range(RANKS)]
        for thread in self.threads:
            thread.start()

    def _hold(self, rank: int) -> None:
        def take_up(document: dict[str, Any]) -> None:
            self.accepted[rank].append(next(iter(document)))
            if "train" in document:
                self.controls[rank].apply(document["train"], 5)
            elif "stop" in document:
                self.controls[rank].release()

        def settle() -> None:
            self.settled[rank] += 1

        hold(
            self.controls[rank],
            self.agreements[rank],
            rank,
            listen=lambda: None,
            stopping=lambda: self.stopping[rank],
            take_up=take_up,
            settle=settle,
        )

    def have_settled(self, times: int, seconds: float = 20.0) -> bool:
        deadline = time.monotonic() + seconds
        while min(self.settled) < times and time.monotonic() < deadline:
            time.sleep(0.01)
        return min(self.settled) >= times

    def ended(self, seconds: float = 20.0) -> bool:
        for thread in self.threads:
            thread.join(seconds)
        return not any(thread.is_alive() for thread in self.threads)


def test_a_pause_ends_for_all_with_one_ranks_command() -> None:
    paused = Paused(600)
    paused.agreements[2].publish("a", {"other": 1})
    assert not paused.ended(0.2)

    paused.agreements[1].publish("b", {"train": {"do": "step", "steps": 3}})

    assert paused.ended()
    assert paused.accepted[0] == paused.accepted[1] == paused.accepted[2]
    assert paused.accepted[0][-1] == "train"
    assert {control.pause_after for control in paused.controls} == {8}


def test_who_hears_after_the_others_have_taken_it_up_has_a_round_of_its_own() -> None:
    paused = Paused(600)
    paused.agreements[0].publish("demand", {"other": 1})
    assert paused.have_settled(1)

    paused.agreements[1].publish("demand", {"other": 1})

    assert paused.have_settled(2)
    assert paused.accepted == [["other"]] * RANKS
    paused.agreements[0].publish("end", {"stop": 0})
    assert paused.ended()


def test_a_pause_that_nobody_renews_ends_by_itself() -> None:
    assert Paused(0.3).ended()


def test_a_pause_ends_when_any_rank_is_asked_to_end() -> None:
    paused = Paused(600)

    paused.stopping[1] = True

    assert paused.ended()
    assert [accepted[-1] for accepted in paused.accepted] == ["stop"] * RANKS


@pytest.mark.parametrize(
    ("wish", "last"), [({"do": "step"}, 6), ({"do": "step", "steps": "3"}, 8), ({"do": "run_to", "until_step": 9}, 9)]
)
def test_a_training_goes_on_to_the_step_that_was_asked_for_and_pauses_again(wish: dict[str, Any], last: int) -> None:
    control = TrainControl()
    control.apply({"do": "pause"}, 5)

    control.apply(wish, 5)

    assert not control.paused
    for step in range(6, last):
        control.after(step)
        assert not control.paused
    control.after(last)
    assert control.paused
    assert 0 < control.left_seconds <= control.lease_seconds


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"do": "explode"},
        {"do": "pause", "lease_seconds": -1},
        {"do": "pause", "lease_seconds": "long"},
        {"do": "run_to", "until_step": 5},
        {"do": "step", "steps": "many"},
        {"do": 3},
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(wish: dict[str, Any]) -> None:
    control = TrainControl()

    with pytest.raises(DataError):
        control.apply(wish, 5)

    assert not control.paused
    assert control.pause_after is None


@pytest.mark.parametrize(
    ("progress", "last"),
    [
        (None, False),  # of a step that the log leaves out
        (Progress(loss=2.0, grad_norm=0.5), False),
        (Progress(loss=2.0), False),  # float16 has overflowed: the step is left out
        (Progress(loss=2.0, grad_norm=math.nan), True),
        (Progress(grad_norm=0.5), True),  # of a stage that does not know the loss
        (Progress(loss=math.inf, grad_norm=0.5), True),
        (Progress(), True),
    ],
)
def test_a_step_may_be_the_last_unless_its_loss_and_gradients_are_known_to_be_numbers(
    progress: Progress | None, last: bool
) -> None:
    assert may_be_last(progress) is last
