"""Cookies can't be forged, expire, and can be closed; links work once."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.auth import Role
from megatronapp.gateway.sessions import Sessions, SignInLinks


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_cookie_proves_its_session_until_it_expires() -> None:
    clock = Clock()
    sessions = Sessions(b"key", 60, clock)
    cookie, ticket = sessions.open(Role.VIEWER)

    assert sessions.find(cookie) == ticket
    clock.now += 61
    assert sessions.find(cookie) is None


def test_a_closed_session_stays_closed() -> None:
    sessions = Sessions(b"key", 60)
    cookie, ticket = sessions.open(Role.VIEWER)
    other, _ = sessions.open(Role.VIEWER)

    sessions.close(ticket)

    assert sessions.find(cookie) is None
    assert sessions.find(other) is not None


def test_a_viewers_cookie_can_not_be_made_an_operators() -> None:
    sessions = Sessions(b"key", 60)
    cookie, _ = sessions.open(Role.VIEWER)

    assert sessions.find(cookie.replace("viewer", "operator")) is None


def test_another_key_is_another_server() -> None:
    cookie, _ = Sessions(b"key", 60).open(Role.OPERATOR)

    assert Sessions(b"other", 60).find(cookie) is None


@settings(deadline=None, max_examples=50)
@given(st.text())
def test_no_text_is_a_session(text: str) -> None:
    assert Sessions(b"key", 60).find(text) is None


@pytest.mark.parametrize("expires", ["nan", "inf", "1e309", "-1", ""])
def test_no_time_but_the_signed_one_counts(expires: str) -> None:
    sessions = Sessions(b"key", 60)
    number, role, _, signature = sessions.open(Role.VIEWER)[0].split("~")

    assert sessions.find(f"{number}~{role}~{expires}~{signature}") is None


def test_a_link_works_once_and_not_for_ever() -> None:
    clock = Clock()
    links = SignInLinks(60, clock)
    used, late = links.new(Role.OPERATOR), links.new(Role.OPERATOR)

    assert links.use(used) is Role.OPERATOR
    assert links.use(used) is None
    clock.now += 61
    assert links.use(late) is None
    assert links.use("guess") is None


def test_half_a_character_is_neither_a_session_nor_a_link() -> None:
    sessions, links = Sessions(b"key", 60.0), SignInLinks(60.0)

    assert sessions.find("a~viewer~9999999999~\ud800") is None
    assert sessions.find("\ud800~viewer~9999999999~a") is None
    assert links.use("\ud800") is None
