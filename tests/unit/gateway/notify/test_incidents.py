"""People are told once: of what opens, gets worse, goes on for long, and ends; however many gateways there are."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from megatronapp.gateway.notify.events import AlertReceived, Claimed, GroupState, NotificationSent
from megatronapp.gateway.notify.incidents import CLAIM_SECONDS, MAX_INCIDENTS, Due, Incidents, Rules
from megatronapp.gateway.notify.levels import Level

DAY = 86_400.0
RULES = Rules(
    levels={"slack": Level.P2, "phone": Level.P0},
    repeat_seconds=DAY,
    flap_seconds=1_200,
    reporters=frozenset({"slack"}),
)


def state(*, firing: bool = True, level: Level = Level.P1, group: str = "g") -> GroupState:
    return GroupState(group=group, firing=firing, name="SlowGPU", level=level, summary="s", since_unix_seconds=0.0)


def heard(at: float, **how: object) -> AlertReceived:
    return AlertReceived(at=at, state=state(**how))  # type: ignore[arg-type]


def tell(known: Incidents, at: float, *, delivered: bool = True) -> list[tuple[str, str]]:
    """Claim and tell all that is due; (receiver, reason) of each."""
    told = []
    for number, due in enumerate(known.due(at)):
        claim = f"{at}-{number}"
        assert known.apply(Claimed(at=at, claim=claim, subject=due.subject, receiver=due.receiver))
        known.apply(told_of(due, claim, at, known, delivered=delivered))
        told.append((due.receiver, due.reason))
    return told


def told_of(due: Due, claim: str, at: float, known: Incidents, *, delivered: bool = True) -> NotificationSent:
    level = known.incidents[due.subject].state.level
    return NotificationSent(
        at=at, claim=claim, subject=due.subject, receiver=due.receiver, delivered=delivered, level=level,
        resolved=due.reason == "resolved",
    )  # fmt: skip


def test_an_incident_is_told_once_when_it_opens_and_once_when_it_ends() -> None:
    known = Incidents(RULES)

    known.apply(heard(10))
    first = tell(known, 11)
    known.apply(heard(70))
    again = tell(known, 71)
    known.apply(heard(130, firing=False))
    last = tell(known, 131)

    assert (first, again, last) == ([("slack", "opened")], [], [("slack", "resolved")])
    assert tell(known, 10 * DAY) == []


def test_a_receiver_hears_of_its_levels_alone() -> None:
    known = Incidents(RULES)

    known.apply(heard(10, level=Level.P3, group="a"))
    known.apply(heard(10, level=Level.P0, group="b"))

    assert tell(known, 11) == [("slack", "opened"), ("phone", "opened")]


def test_what_gets_worse_is_told_again_and_does_not_calm_down_until_it_ends() -> None:
    known = Incidents(RULES)
    known.apply(heard(10, level=Level.P1))
    tell(known, 11)

    known.apply(heard(70, level=Level.P0))
    worse = tell(known, 71)
    known.apply(heard(130, level=Level.P2))

    assert worse == [("slack", "worse"), ("phone", "opened")]
    assert tell(known, 131) == []
    assert [incident.state.level for incident in known.incidents.values()] == [Level.P0]


def test_what_stays_open_is_told_again_after_a_day() -> None:
    known = Incidents(RULES)
    known.apply(heard(10))
    tell(known, 11)

    assert tell(known, 11 + DAY - 1) == []
    assert tell(known, 11 + DAY) == [("slack", "still")]


def test_what_flaps_is_one_incident_and_is_told_again_only_when_it_stays() -> None:
    known = Incidents(RULES)
    known.apply(heard(10))
    tell(known, 11)
    known.apply(heard(100, firing=False))
    tell(known, 101)

    known.apply(heard(200))
    at_once = tell(known, 201)
    known.apply(heard(300, firing=False))
    ended = tell(known, 301)
    known.apply(heard(400))

    assert (at_once, ended) == ([], [])
    assert tell(known, 400 + 1_199) == []
    assert tell(known, 400 + 1_200) == [("slack", "opened")]
    assert [incident.flaps for incident in known.incidents.values()] == [2]


def test_what_comes_back_later_is_another_incident() -> None:
    known = Incidents(RULES)
    known.apply(heard(10))
    known.apply(heard(100, firing=False))

    known.apply(heard(100 + 1_201))

    assert [(i.open, i.opened) for i in known.incidents.values()] == [(False, 0.0), (True, 1_301.0)]


def test_what_ended_before_anybody_was_told_is_not_told() -> None:
    known = Incidents(RULES)
    known.apply(heard(10))
    known.apply(heard(11, firing=False))

    assert tell(known, 12) == []


def test_the_end_is_told_also_when_it_came_while_the_beginning_was_being_told() -> None:
    known = Incidents(RULES)
    known.apply(heard(10))
    (due,) = known.due(11)
    known.apply(Claimed(at=11, claim="c", subject=due.subject, receiver="slack"))

    known.apply(heard(12, firing=False))
    known.apply(told_of(due, "c", 13, known))

    assert tell(known, 14) == [("slack", "resolved")]


def test_of_two_gateways_that_claim_the_first_tells() -> None:
    known = Incidents(RULES)
    known.apply(heard(10))
    (due,) = known.due(11)
    claims = [Claimed(at=11, claim=name, subject=due.subject, receiver="slack") for name in ("a", "b")]

    assert [known.apply(claim) for claim in claims] == [True, False]
    assert known.due(12) == []


def test_a_claim_whose_gateway_died_passes_to_another() -> None:
    known = Incidents(RULES)
    known.apply(heard(10))
    (due,) = known.due(11)
    known.apply(Claimed(at=11, claim="dead", subject=due.subject, receiver="slack"))

    assert known.due(11 + CLAIM_SECONDS - 1) == []
    assert tell(known, 11 + CLAIM_SECONDS) == [("slack", "opened")]


def test_a_receiver_that_fails_is_tried_again_less_and_less_often() -> None:
    known = Incidents(RULES)
    known.apply(heard(0))
    tries = [second for second in range(3_000) if tell(known, float(second), delivered=False)]

    gaps = [later - earlier for earlier, later in pairwise(tries)]
    assert gaps[:6] == [10, 20, 40, 80, 160, 320]
    assert max(gaps) == 600


def test_the_report_of_a_week_is_told_once() -> None:
    known = Incidents(RULES)
    (due,) = known.due(11, week="1000")
    claim = Claimed(at=11, claim="c", subject=due.subject, receiver=due.receiver)

    assert (due.subject, due.receiver, due.reason) == ("report-1000", "slack", "report")
    assert known.apply(claim, week="1000")
    known.apply(
        NotificationSent(
            at=12, claim="c", subject=due.subject, receiver="slack", delivered=True, level=Level.P3, resolved=False
        )
    )
    assert known.due(13, week="1000") == []
    assert len(known.due(13, week="2000")) == 1


def test_incidents_are_bounded_and_open_ones_stay() -> None:
    known = Incidents(RULES)
    for number in range(MAX_INCIDENTS + 10):
        known.apply(heard(number, group=str(number)))
        known.apply(heard(number, group=str(number), firing=number < 5))

    assert len(known.incidents) == MAX_INCIDENTS
    assert sum(incident.open for incident in known.incidents.values()) == 5


EVENTS = st.lists(
    st.tuples(st.floats(0, 900), st.booleans(), st.sampled_from(list(Level)), st.sampled_from("ab"), st.booleans()),
    max_size=40,
)


@given(EVENTS)
def test_whatever_happens_nobody_is_told_the_same_twice_in_a_row(
    events: list[tuple[float, bool, Level, str, bool]],
) -> None:
    """Between two tellings of "opened" to one receiver there is a "resolved"; gateways that fold the same agree."""
    known, other = Incidents(RULES), Incidents(RULES)
    now, last = 0.0, {}
    for gap, firing, level, group, delivered in events:
        now += gap
        event = heard(now, firing=firing, level=level, group=group)
        known.apply(event)
        other.apply(event)
        assert known.due(now) == other.due(now)
        for number, due in enumerate(known.due(now)):
            claim = Claimed(at=now, claim=f"{now}-{number}", subject=due.subject, receiver=due.receiver)
            told = told_of(due, claim.claim, now, known, delivered=delivered)
            assert known.apply(claim) == other.apply(claim) is True
            known.apply(told)
            other.apply(told)
            if delivered:
                before = last.get((due.subject, due.receiver))
                assert due.reason != before or due.reason in {"worse", "still"}
                assert due.reason != "resolved" or before is not None
                last[due.subject, due.receiver] = due.reason
