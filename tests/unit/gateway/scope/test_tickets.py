"""A ticket is good once and not for long."""

import pytest

from megatronapp.core.auth import Role
from megatronapp.core.errors import AuthError
from megatronapp.gateway.errors import TooManyError
from megatronapp.gateway.scope.tickets import MAX_OPEN, TICKET_SECONDS, Admission, Tickets

ADMISSION = Admission(Role.VIEWER, "viewer abc", None)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_a_ticket_is_good_once() -> None:
    tickets = Tickets()
    ticket = await tickets.issue(ADMISSION)

    assert await tickets.use(ticket) is ADMISSION
    with pytest.raises(AuthError):
        await tickets.use(ticket)


@pytest.mark.parametrize("ticket", ["", "x", "\ud800", "x" * 10**6])
async def test_what_is_no_ticket_opens_nothing(ticket: str) -> None:
    with pytest.raises(AuthError):
        await Tickets().use(ticket)


async def test_a_ticket_expires() -> None:
    clock = Clock()
    tickets = Tickets(clock=clock)
    ticket = await tickets.issue(ADMISSION)
    clock.now = TICKET_SECONDS

    with pytest.raises(AuthError):
        await tickets.use(ticket)


async def test_open_tickets_are_bounded_and_expired_ones_make_room() -> None:
    clock = Clock()
    tickets = Tickets(clock=clock)
    for number in range(MAX_OPEN):
        tickets._open[number.to_bytes(4, "big")] = (TICKET_SECONDS, ADMISSION)

    with pytest.raises(TooManyError):
        await tickets.issue(ADMISSION)
    clock.now = TICKET_SECONDS
    assert await tickets.issue(ADMISSION)
