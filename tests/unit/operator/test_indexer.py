"""What is kept of the objects that lists and events tell of, and whom their news matter to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.operator.indexer import Indexer
from megatronapp.operator.informers import InformerCache
from megatronapp.operator.kinds import JOBS, NODES, PODS
from megatronapp.operator.names import JOB_LABEL, Key
from megatronapp.operator.snapshots import Unreadable


def body(uid: str, value: int, group: str = "a", version: int = 1) -> dict[str, Any]:
    return {"metadata": {"uid": uid, "name": uid, "group": group, "resourceVersion": str(version)}, "value": value}


def indexer() -> Indexer[str, int]:
    return Indexer("things", lambda found: found["metadata"]["group"], _value, set_aside.append)


set_aside: list[Unreadable] = []


@pytest.fixture(autouse=True)
def _nothing_set_aside() -> None:
    set_aside.clear()


def _value(found: dict[str, Any]) -> int | None:
    if found["value"] == WRONG:
        raise ValueError("wrong")
    return None if found["value"] == FOREIGN else int(found["value"])


WRONG, FOREIGN = -1, -2


def test_what_changes_nothing_that_is_kept_is_no_news() -> None:
    found = indexer()

    assert found.put(body("x", 1)) == "a"
    assert found.put(body("x", 1)) is None
    assert found.put(body("x", 2)) == "a"
    assert found.get("a") == (2,)


def test_what_can_not_be_read_is_told_once_a_version_and_hinders_nothing() -> None:
    found = indexer()

    assert found.replace([body("x", WRONG), body("y", 2)]) == {"a"}
    assert found.replace([body("x", WRONG), body("y", 2)]) == set()

    assert found.get("a") == (2,)
    assert [one.text for one in found.unreadable("a")] == [
        "things/x can't be read (ValueError: wrong); correct or delete it"
    ]
    assert len(set_aside) == 1
    found.put(body("x", WRONG, version=2))
    assert len(set_aside) == 2


def test_what_is_mended_or_gone_is_no_longer_unreadable() -> None:
    found = indexer()
    found.put(body("x", WRONG))
    found.put(body("y", WRONG))

    assert found.put(body("x", 1)) == "a"
    assert found.drop(body("y", WRONG)) == "a"

    assert (found.get("a"), found.unreadable("a")) == ((1,), ())


def test_nothing_is_kept_of_what_is_not_ours() -> None:
    found = indexer()

    assert found.put(body("x", FOREIGN)) is None
    found.put(body("y", 1))
    assert found.put(body("y", FOREIGN)) == "a"
    assert list(found) == []


def test_what_a_list_no_longer_has_is_gone() -> None:
    found = indexer()
    found.put(body("x", 1))
    found.put(body("y", 2, "b"))

    assert found.replace([body("x", 1)]) == {"b"}
    assert list(found) == ["a"]


def test_an_object_that_moves_to_another_group_leaves_the_first() -> None:
    found = indexer()
    found.put(body("x", 1, "a"))
    found.put(body("x", 2, "b"))

    assert (found.get("a"), found.get("b")) == ((), (2,))


def test_an_object_that_comes_again_is_there_again() -> None:
    found = indexer()
    found.put(body("x", 1))

    assert found.drop(body("x", 2)) == "a"
    assert found.put(body("x", 3)) == "a"


def test_an_object_that_was_never_heard_of_still_matters_when_it_goes() -> None:
    assert indexer().drop(body("x", 1, "b")) == "b"


@given(
    changes=st.lists(st.tuples(st.sampled_from("xyz"), st.booleans()), max_size=12),
    lost=st.integers(0, 12),
    listed=st.integers(0, 12),
)
def test_whatever_was_lost_before_a_list_all_ends_in_what_is_there(
    changes: list[tuple[str, bool]], lost: int, listed: int
) -> None:
    """Events are heard until the watch breaks, lost until a list is made, and heard again after it."""
    found, server = indexer(), dict[str, int]()
    for number, (uid, wish_gone) in enumerate(changes):
        if number == max(lost, listed):
            found.replace([body(uid, value) for uid, value in server.items()])
        gone = wish_gone and server.pop(uid, None) is not None
        if not gone:
            server[uid] = number
        if not lost <= number < listed:
            (found.drop if gone else found.put)(body(uid, number))
    if len(changes) <= max(lost, listed):
        found.replace([body(uid, value) for uid, value in server.items()])

    assert sorted(found.get("a")) == sorted(server.values())


# ---- whom news matter to


def kubernetes(name: str, **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "team", "uid": name, "labels": {JOB_LABEL: "gpt"}}, **more}


def test_a_node_matters_to_the_jobs_with_a_pod_on_it() -> None:
    found = InformerCache()
    found.event(PODS, kubernetes("gpt-1-0", spec={"nodeName": "n1"}), deleted=False)

    assert found.event(NODES, kubernetes("n1"), deleted=False) == {Key("team", "gpt")}
    assert found.event(NODES, kubernetes("n2"), deleted=False) == set()
    assert found.listed(NODES, [kubernetes("n2")]) == {Key("team", "gpt")}


def test_a_deleted_child_matters_to_its_job() -> None:
    found = InformerCache()

    assert found.event(JOBS, kubernetes("gpt-1"), deleted=True) == {Key("team", "gpt")}
