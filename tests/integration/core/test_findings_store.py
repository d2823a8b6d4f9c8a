"""One suite over all places that findings are kept in, Redis a real server."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from megatronapp.core.errors import ConfigError, DataError, UnavailableError
from megatronapp.core.findings import Cause, Evidence, Finding, Kind, State
from megatronapp.core.findings_store import (
    Annotation,
    AnnotationKind,
    Backend,
    FindingsStore,
    Limits,
    MemoryBackend,
    Row,
    connect,
)
from megatronapp.core.findings_store.redis import RedisBackend
from megatronapp.core.findings_store.sqlite import SqliteBackend
from tests.support.redis import RedisServer

DAY_NS = 86_400 * 10**9
NOW_NS = 1_790_000_000 * 10**9


@dataclass
class Clock:
    unix_ns: int = NOW_NS

    def __call__(self) -> int:
        self.unix_ns += 1
        return self.unix_ns


@dataclass
class Place:
    """Where findings lie; each `open` is one more process that works there."""

    new: Callable[[], Backend]
    clock: Clock
    registry: CollectorRegistry

    def open(self, **limits: float) -> FindingsStore:
        self.registry = CollectorRegistry()
        return FindingsStore(self.new(), Limits(**limits), self.registry, self.clock)  # type: ignore[arg-type]

    def dropped(self, reason: str) -> float:
        return self.registry.get_sample_value("megatronapp_findings_dropped_total", {"reason": reason}) or 0.0


@pytest.fixture(params=["memory", "sqlite", "redis"])
async def place(request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[Place]:
    memory = MemoryBackend()
    opened: list[Backend] = []

    def new() -> Backend:
        match request.param:
            case "memory":
                backend: Backend = memory
            case "sqlite":
                backend = SqliteBackend(tmp_path / "folder/findings.sqlite3")
            case _:
                backend = RedisBackend(redis_server.url)
        opened.append(backend)
        return backend

    yield Place(new, Clock(), CollectorRegistry())
    for backend in opened:
        await backend.close()


def finding(
    name: str, *, job: str = "team/gpt", state: State = State.OPEN, updated: int = 5, text: str = ""
) -> Finding:
    return Finding(
        id=name,
        run=f"run-of-{job.partition('/')[2]}",
        job=job,
        kind=Kind.SLOW_GPU,
        cause=Cause.COMPUTE,
        ranks=(1,),
        effect_ratio=1.25,
        cost_ratio=float("inf"),
        state=state,
        evidence=(
            Evidence(signal="compute_effect", text="slow", steps=(4, 5), values=(1.2, 1.3), expected=(1.0, 1.0)),
        ),
        summary="rank 1 computes 25 % slower than its peers",
        advice=text,
        updated_unix_ns=updated,
    )


def names(findings: list[Finding]) -> list[str]:
    return [found.id for found in findings]


async def test_what_was_put_is_found_by_another_process(place: Place) -> None:
    await place.open().put(finding("a"))
    await place.open().put(finding("b", job="team/other", state=State.RESOLVED))
    stored = place.registry.get_sample_value("megatronapp_findings_stored")

    reader = place.open()

    assert await reader.find() == [finding("a"), finding("b", job="team/other", state=State.RESOLVED)]
    assert await reader.get("a") == finding("a")
    assert await reader.get("nobody") is None
    assert names(await reader.find(run="run-of-gpt")) == ["a"]
    assert names(await reader.find(state=State.RESOLVED)) == ["b"]
    assert stored == 2


async def test_a_later_word_replaces_an_earlier_one_and_never_the_other_way_round(place: Place) -> None:
    store = place.open()

    kept = [
        await store.put(finding("a", state=state, updated=at)) for state, at in ((State.OPEN, 7), (State.RESOLVED, 8))
    ]
    late = await place.open().put(finding("a", updated=6))

    assert (kept, late) == ([True, True], False)
    assert [found.state for found in await store.find()] == [State.RESOLVED]


async def test_more_findings_than_are_read_at_once(place: Place) -> None:
    store = place.open()
    for number in range(100):
        await store.put(finding(f"f-{number}", job=f"team/job-{number % 20}"))

    assert names(await store.find()) == [f"f-{number}" for number in range(100)]


async def test_findings_go_when_they_are_old_by_the_writers_clock(place: Place) -> None:
    store = place.open(retention_seconds=86_400)
    await store.put(finding("of-the-future", updated=NOW_NS + 1000 * DAY_NS))
    place.clock.unix_ns += DAY_NS // 2
    await store.put(finding("newer"))
    place.clock.unix_ns += DAY_NS * 3 // 4

    await store.expire()

    assert names(await store.find()) == ["newer"]
    assert place.dropped("age") == 1


async def test_one_job_pushes_out_its_own_findings_and_nobody_elses(place: Place) -> None:
    store = place.open(max_findings=50)
    await store.put(finding("innocent", job="team/innocent", state=State.RESOLVED))
    with capture_logs() as logged:
        for number in range(200):
            await store.put(finding(f"flood-{number}", job="team/flood"))

    assert names(await store.find()) == ["innocent", *(f"flood-{number}" for number in range(195, 200))]
    assert place.dropped("size") == 195
    assert logged[0]["event"] == "findings_dropped_for_size"


async def test_bytes_are_bounded_and_the_oldest_resolved_goes_first(place: Place) -> None:
    store = place.open(max_bytes=200_000)
    text = "x" * 15_000
    for number in range(20):
        state = State.OPEN if number < 5 else State.RESOLVED
        await store.put(finding(f"f-{number}", job=f"team/job-{number}", state=state, text=text))

    left = names(await store.find())

    assert left == ["f-0", "f-1", "f-2", "f-3", "f-4", *(f"f-{number}" for number in range(20 - len(left) + 5, 20))]
    stored = place.registry.get_sample_value("megatronapp_findings_stored_bytes") or 0
    assert 180_000 < stored <= 200_000


async def test_smaller_limits_hold_after_a_restart(place: Place) -> None:
    store = place.open()
    for number in range(40):
        await store.put(finding(f"f-{number}", job=f"team/job-{number}"))

    smaller = place.open(max_findings=10)
    await smaller.expire()

    assert names(await smaller.find()) == [f"f-{number}" for number in range(30, 40)]


async def test_a_finding_of_another_jobs_id_is_refused(place: Place) -> None:
    store = place.open()
    await store.put(finding("a"))

    with pytest.raises(DataError, match="of job team/gpt"):
        await store.put(finding("a", job="team/thief", updated=100))

    assert await store.find() == [finding("a")]


async def test_a_finding_that_cannot_be_true_is_not_taken(place: Place) -> None:
    store = place.open()

    for change in ({"job": "nobody"}, {"id": "../a"}, {"ranks": (-1,)}, {"updated_unix_ns": 1 << 62}):
        with pytest.raises(DataError):
            await store.put(finding("a").model_copy(update=change))

    assert await store.find() == []
    assert place.dropped("unreadable") == 4


async def test_a_body_that_cannot_be_read_is_passed_over_and_counted_once(place: Place) -> None:
    store = place.open()
    await store.put(finding("good"))
    row = Row("bad", "run-of-gpt", "team/gpt", open=True, updated_unix_ns=1, stored_unix_ns=NOW_NS, bytes=3)
    await place.new().write(row, b"\xff\xff\xff", [])
    posing = Row("posing", "run-of-gpt", "team/gpt", open=True, updated_unix_ns=1, stored_unix_ns=NOW_NS, bytes=3)
    await place.new().write(posing, finding("good").to_proto().SerializeToString(), [])

    with capture_logs() as logged:
        found = [names(await store.find()) for _ in range(3)]

    assert found == [["good"]] * 3
    assert await store.get("bad") is None
    assert place.dropped("unreadable") == 2
    assert {entry["event"] for entry in logged} == {"stored_finding_unreadable"}


async def test_rows_that_somebody_else_broke_stop_nobody_and_go(tmp_path: Path, redis_server: RedisServer) -> None:
    sqlite, redis_backend = SqliteBackend(tmp_path / "f.sqlite3"), RedisBackend(redis_server.url)
    for backend in (sqlite, redis_backend):
        await FindingsStore(backend).put(finding("good"))
    with redis.Redis(port=redis_server.port) as client:
        for name, text in (("a", b"\xff"), ("b", b"[1]"), ("c", b"[" * 5000), ("d", b'["r","j",1,1,1,1e400]')):
            client.hset("megatronapp:findings-store:rows", name, text)
        client.hset("megatronapp:findings-store:rows", b"\xfe\xff", b"{}")
        client.hset("megatronapp:findings-store:bodies", "orphan", b"body")
    with sqlite3.connect(tmp_path / "f.sqlite3") as other:
        broken = ("run", "job", "many", "?", "?", -1, "text")
        other.execute("INSERT INTO findings VALUES ('a', ?, ?, ?, ?, ?, ?, ?)", broken)
        other.execute("INSERT INTO findings VALUES ('b', CAST(x'ff' AS TEXT), 'j', 1, 1, 1, 1, x'00')")

    for backend in (sqlite, redis_backend):
        store = FindingsStore(backend)
        before = names(await store.find())
        await store.expire()

        assert before == ["good"]
        assert [row.id for row in await backend.index()] == ["good"]
        await backend.close()


async def test_a_file_that_is_no_database_is_moved_aside(tmp_path: Path) -> None:
    path = tmp_path / "findings.sqlite3"
    path.write_bytes(b"no database at all" * 500)

    with capture_logs() as logged:
        backend = SqliteBackend(path)
    await FindingsStore(backend).put(finding("a"))

    assert names(await FindingsStore(backend).find()) == ["a"]
    assert [entry["event"] for entry in logged] == ["findings_unreadable"]
    (aside,) = tmp_path.glob("findings.sqlite3.broken-*")
    assert aside.read_bytes().startswith(b"no database")
    await backend.close()


async def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UnavailableError, match="can't be opened"):
        SqliteBackend(tmp_path / "file/findings.sqlite3")


async def test_an_absent_redis_is_a_clear_error_and_the_store_goes_on_when_it_is_back(
    start_redis: Callable[..., RedisServer],
) -> None:
    server = start_redis(persistent=True)
    store = FindingsStore(RedisBackend(server.url))
    await store.put(finding("a"))
    server.stop()

    calls: list[Callable[[], Awaitable[object]]] = [lambda: store.put(finding("b")), store.find, store.expire]
    for call in calls:
        with pytest.raises(UnavailableError, match="Redis"):
            await call()
    server.start()
    await store.put(finding("b"))

    assert names(await store.find()) == ["a", "b"]
    await store.close()


async def test_the_place_is_chosen_by_one_setting(tmp_path: Path, redis_server: RedisServer) -> None:
    chosen = {
        where: connect(where, url)
        for where, url in (
            ("memory", redis_server.url),
            ("redis", redis_server.url),
            (f"sqlite:{tmp_path / 'f'}", None),
        )
    }
    by_default = connect("", redis_server.url), connect("", None)

    kinds = [type(store._backend) for store in (*chosen.values(), *by_default)]
    assert kinds == [MemoryBackend, RedisBackend, SqliteBackend, RedisBackend, MemoryBackend]
    for where, url in (("redis", None), ("sqlite:", None), ("postgres", None)):
        with pytest.raises(ConfigError, match="findings_store is"):
            connect(where, url)
    for store in (*chosen.values(), *by_default):
        await store.close()


def said(text: str, finding_id: str, at: int = NOW_NS) -> Annotation:
    return Annotation(
        id=f"{finding_id}-{text}", finding=finding_id, kind=AnnotationKind.COMMENT, by="ann", unix_ns=at, text=text
    )


async def test_what_is_said_of_a_finding_is_kept_with_it_and_goes_with_it(place: Place) -> None:
    writer, gateway = place.open(), place.open()
    first, second = finding("f-1"), finding("f-2")
    for each in (first, second):
        await writer.put(each)

    kept = [await gateway.annotate(said(text, first.id)) for text in ("one", "two")]
    kept.append(await gateway.annotate(said("three", second.id)))
    kept.append(await gateway.annotate(said("lost", "nobody")))
    await writer.put(first.model_copy(update={"updated_unix_ns": first.updated_unix_ns + 1}))

    assert kept == [True, True, True, False]
    assert [each.text for each in await gateway.annotations([first.id, "nobody"])] == ["one", "two"]
    place.clock.unix_ns += 40 * DAY_NS
    await writer.expire()
    await writer.put(first.model_copy(update={"updated_unix_ns": place.clock.unix_ns}))
    assert await gateway.annotations([first.id, second.id]) == []


async def test_of_what_is_said_the_newest_is_kept(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megatronapp.core.findings_store.store.MAX_ANNOTATIONS", 3)
    store = place.open()
    await store.put(finding("f-1"))

    for number in range(5):
        await store.annotate(said(str(number), finding("f-1").id))

    assert [each.text for each in await store.annotations([finding("f-1").id])] == ["2", "3", "4"]


async def test_changes_are_what_one_does_not_know(place: Place) -> None:
    store = place.open()
    for number in (1, 2):
        await store.put(finding(f"f-{number}"))

    all_of_them, none_gone = await store.changes({})
    versions = {each.id: each.updated_unix_ns for each in all_of_them} | {"gone": 5}
    await store.put(finding("f-2").model_copy(update={"updated_unix_ns": versions[finding("f-2").id] + 1}))
    changed, gone = await store.changes(versions)

    assert {each.id for each in all_of_them} == {finding("f-1").id, finding("f-2").id}
    assert (none_gone, [each.id for each in changed], gone) == (set(), [finding("f-2").id], {"gone"})
