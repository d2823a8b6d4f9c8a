"""Lists and events come by different connections, each late by its own time."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from megatronapp.operator.kinds import JOBS, NODES, PODS
from megatronapp.operator.names import JOB_LABEL, Key
from megatronapp.operator.shelf import Shelf
from megatronapp.operator.watched import Watched


def body(uid: str, version: int, group: str = "a") -> dict[str, Any]:
    return {"metadata": {"uid": uid, "resourceVersion": str(version), "group": group}, "value": version}


def shelf() -> Shelf[str, int]:
    return Shelf(lambda found: found["metadata"]["group"], lambda found: found["value"])


def test_the_newer_version_wins_however_late_the_older_comes() -> None:
    found = shelf()

    assert found.put(body("x", 5)) == "a"
    assert found.put(body("x", 4)) is None
    assert found.get("a") == (5,)


def test_what_changes_nothing_that_is_kept_is_no_news() -> None:
    found = shelf()
    found.put(body("x", 1))

    assert found.put({**body("x", 2), "value": 1}) is None
    assert found.put(body("x", 2)) is None
    assert found.put(body("x", 3)) == "a"


def test_what_a_list_no_longer_has_is_gone() -> None:
    found = shelf()
    found.put(body("x", 1))
    found.put(body("y", 2, "b"))

    assert found.replace([body("x", 1)], version=7) == {"b"}
    assert list(found) == ["a"]


def test_what_is_newer_than_a_list_stays() -> None:
    found = shelf()
    found.put(body("x", 8))

    assert found.replace([], version=7) == set()
    assert found.get("a") == (8,)


def test_a_list_does_not_bring_back_what_was_deleted_while_it_was_made() -> None:
    found = shelf()
    found.put(body("x", 1))
    found.drop(body("x", 8))

    found.replace([body("x", 1)], version=7)

    assert len(found) == 0


def test_an_object_that_moves_to_another_group_leaves_the_first() -> None:
    found = shelf()
    found.put(body("x", 1, "a"))
    found.put(body("x", 2, "b"))

    assert (found.get("a"), found.get("b")) == ((), (2,))


@given(
    changes=st.lists(st.tuples(st.sampled_from("xyz"), st.booleans()), max_size=12),
    lost=st.integers(0, 12),
    late=st.integers(0, 12),
)
def test_whatever_was_lost_before_a_list_and_however_late_it_comes_all_ends_in_what_is_there(
    changes: list[tuple[str, bool]], lost: int, late: int
) -> None:
    """The first events are lost in a gap; a list is made after it, and arrives when later events have been heard."""
    found, made = shelf(), 0
    server: dict[str, int] = {}
    snapshot: list[dict[str, Any]] = []
    following = []
    for version, (name, wish_gone) in enumerate(changes, start=1):
        uid = next((uid for uid in server if uid.startswith(name)), f"{name}{version}")
        gone = wish_gone and uid in server
        if gone:
            del server[uid]
        else:
            server[uid] = version
        if version <= lost:
            snapshot, made = [body(uid, at) for uid, at in server.items()], version
        else:
            following.append((found.drop if gone else found.put, body(uid, version)))

    for tell, event in following[:late]:
        tell(event)
    found.replace(snapshot, made)
    for tell, event in following[late:]:
        tell(event)

    assert sorted(found.get("a")) == sorted(server.values())


# ---- whom news matter to


def kubernetes(name: str, version: int, **more: Any) -> dict[str, Any]:
    meta = {"name": name, "namespace": "team", "uid": name, "resourceVersion": str(version)}
    return {"metadata": {**meta, "labels": {JOB_LABEL: "gpt"}}, **more}


def test_a_node_matters_to_the_jobs_with_a_pod_on_it() -> None:
    found = Watched()
    found.event(PODS, kubernetes("gpt-1-0", 1, spec={"nodeName": "n1"}), deleted=False)

    assert found.event(NODES, kubernetes("n1", 2), deleted=False) == {Key("team", "gpt")}
    assert found.event(NODES, kubernetes("n2", 3), deleted=False) == set()
    assert found.listed(NODES, [kubernetes("n2", 3)], version=4) == {Key("team", "gpt")}


def test_a_deleted_child_matters_to_its_job() -> None:
    found = Watched()

    assert found.event(JOBS, kubernetes("gpt-1", 2), deleted=True) == {Key("team", "gpt")}
