"""What is made for a step that may not come is sent when it does, and not at all where it does not."""

from __future__ import annotations

from functools import partial

from megatronapp.trainer.plugins.fbd.held import Held


def test_nothing_is_held_unless_it_is_asked_for() -> None:
    sent: list[int] = []

    Held().send(partial(sent.append, 1))

    assert sent == [1]


def test_what_is_held_is_sent_in_its_order_and_what_follows_at_once() -> None:
    held, sent = Held(), list[int]()
    held.hold()
    for number in (1, 2):
        held.send(partial(sent.append, number))
    before = list(sent)

    held.release()
    held.send(partial(sent.append, 3))

    assert (before, sent) == ([], [1, 2, 3])


def test_what_is_dropped_is_never_sent() -> None:
    held, sent = Held(), list[int]()
    held.hold()
    held.send(partial(sent.append, 1))

    held.drop()
    held.release()

    assert sent == []
