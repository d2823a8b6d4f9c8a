"""What a viewer saw is kept, and shown again without a model; what somebody brings is read before it is believed."""

import asyncio
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from megatronapp.core.scope.frame import Frame
from megatronapp.gateway.scope.recordings.format import HEADER_BYTES, MAGIC, Kind, packed_entry
from megatronapp.v1 import scope_pb2
from tests.integration.gateway.conftest import OPERATOR, VIEWER, Served, Start
from tests.integration.gateway.scope.conftest import Viewer, address, opened, viewing, with_pods
from tests.support.scope_pods import attached, ranks

ONE = "layers[0].resid_post | token(0) | batch(0)"
API = "/api/v1/scope/recordings"


@pytest.fixture
async def recording(start: Start, tmp_path: Path) -> Served:
    return await with_pods(start, scope_recordings_dir=tmp_path / "recordings", scope_max_fps=1e6)


def content(frame: Frame) -> bytes:
    return bytes(frame.payload)


async def recorded(scope: Served, steps: int = 4, **record: Any) -> tuple[str, list[Frame]]:
    """The id of a recording of some steps and events, and what its viewer got."""
    async with attached(address(scope), ranks()) as pods, viewing(scope, OPERATOR) as viewer:
        await viewer.subscribe(1, ONE, credits=1000)
        await pods[0].asked(1)
        await pods[0].step(1)
        seen = [await viewer.frame()]
        await viewer.send(command={"id": "r", "record": {"do": "start", "view": "/jobs/run-1/scope?at=1", **record}})
        begun = await viewer.text("recording", state="recording")
        for step in range(2, steps + 1):
            await pods[0].step(step)
            seen.append(await viewer.frame())
            await pods[0].event(series=scope_pb2.ScopeSeries(name="loss", step=step, value=1.0))
            await viewer.event("series")
        await viewer.send(command={"id": "s", "record": {"do": "stop"}})
        ended = await viewer.text("recording", state="finished")
        assert ended["id"] == begun["id"]
    return str(ended["id"]), seen


@asynccontextmanager
async def replaying(scope: Served, recording: str) -> AsyncIterator[Viewer]:
    async with opened(scope) as socket:
        viewer = Viewer(socket)
        await viewer.send(join={"client": "test", "recording": recording})
        await viewer.text("welcome")
        yield viewer


async def list_of(scope: Served) -> list[dict[str, Any]]:
    async with scope.client() as client:
        return list((await client.get(API)).json())


async def test_a_session_is_shown_again_frame_by_frame_without_its_ranks(recording: Served) -> None:
    name, seen = await recorded(recording)
    async with replaying(recording, name) as viewer:
        state = await viewer.text("replay")
        described = await viewer.text("description")
        answer = await viewer.subscribe(7, ONE, credits=1000)
        shown = [await viewer.frame()]
        while shown[-1].step < 4:
            shown.append(await viewer.frame())
        series = [(await viewer.event("series"))["event"]["series"]["step"] for _ in range(3)]
        over = await viewer.text("replay", durationSeconds=state["durationSeconds"])

    assert described["replay"] is True
    assert described["sites"]
    assert answer["axes"] == ["chan"]
    assert [one["expression"] for one in state["subscriptions"]] == [ONE]
    by_step = {frame.step: content(frame) for frame in seen}
    assert all(content(frame) == by_step[frame.step] and frame.subscription == 7 for frame in shown)
    assert series == ["2", "3", "4"]
    assert "playing" not in over
    assert over["seconds"] == over["durationSeconds"]


async def test_a_jump_back_begins_anew_and_tells_everything_up_to_there(recording: Served) -> None:
    name, _ = await recorded(recording)
    async with replaying(recording, name) as viewer:
        await viewer.subscribe(1, ONE, credits=1000)
        while (await viewer.frame()).step < 4:
            pass
        await viewer.send(replay={"do": "pause"})
        await viewer.send(replay={"do": "seek", "seconds": 0})
        again = await viewer.text("welcome")
        viewer.frames.clear()
        await viewer.subscribe(1, ONE, credits=1000)
        first = await viewer.frame()
        await viewer.send(replay={"do": "play", "speed": 64})
        last = first
        while last.step < 4:
            last = await viewer.frame()

    assert again["epoch"]
    assert (first.step, last.step) == (1, 4)


async def test_what_was_not_recorded_and_what_would_change_something_is_refused(recording: Served) -> None:
    name, _ = await recorded(recording)
    async with replaying(recording, name) as viewer:
        unknown = await viewer.refused(subscribe={"id": 1, "expression": "layers[1].resid_post"})
        nonsense = await viewer.refused(subscribe={"id": 1, "expression": "layers[1"})
        command = await viewer.refused(command={"id": "c", "train": {"do": "pause"}})
        backwards = await viewer.refused(replay={"do": "seek", "seconds": -1})
        wild = await viewer.refused(replay={"do": "play", "speed": 1e9})

    assert (unknown["code"], ONE in unknown["hint"]) == ("not_recorded", True)
    assert [one["code"] for one in (nonsense, command, backwards, wild)] == ["syntax", "replay", "invalid", "invalid"]


async def test_a_snapshot_keeps_what_is_on_the_screen(recording: Served) -> None:
    async with attached(address(recording), ranks()) as pods, viewing(recording, OPERATOR) as viewer:
        await viewer.subscribe(1, ONE, credits=1000)
        await pods[0].asked(1)
        for step in (1, 2):
            await pods[0].step(step)
            seen = await viewer.frame()
        await viewer.send(snapshot={"view": "/jobs/run-1/scope?p=x"})
        taken = await viewer.text("snapshot")
    async with replaying(recording, taken["id"]) as later:
        await later.subscribe(1, ONE)
        kept = await later.frame()
        state = await later.text("replay")

    (listed,) = await list_of(recording)
    assert (kept.step, content(kept)) == (2, content(seen))
    assert "durationSeconds" not in state
    assert (listed["snapshot"], listed["seconds"], listed["view"]) == (True, 0, "/jobs/run-1/scope?p=x")


async def test_recordings_are_listed_downloaded_brought_and_deleted(recording: Served) -> None:
    name, _ = await recorded(recording, name="a spike")
    async with recording.client(OPERATOR) as client:
        (listed,) = await list_of(recording)
        file = (await client.get(f"{API}/{name}/file")).content
        brought = await client.post(API, content=file)
        assert (await client.delete(f"{API}/{name}")).status_code == 204
        gone = await client.get(f"{API}/{name}")
    (left,) = await list_of(recording)
    async with replaying(recording, left["id"]) as viewer:
        await viewer.subscribe(1, ONE, credits=1000)
        assert (await viewer.frame()).step >= 1

    assert (listed["name"], listed["run"], listed["frames"], listed["snapshot"]) == ("a spike", "run-1", 4, False)
    assert listed["bytes"] == len(file)
    assert brought.status_code == 201
    assert (left["id"] != name, left["name"], left["by"], left["frames"]) == (True, "a spike", "operator", 4)
    assert gone.status_code == 404


async def test_a_viewer_looks_and_changes_nothing(recording: Served) -> None:
    name, _ = await recorded(recording)
    async with recording.client(VIEWER) as client:
        answers = [await client.post(API, content=b""), await client.delete(f"{API}/{name}")]
        file = await client.get(f"{API}/{name}/file")
    async with recording.client("") as nobody:
        outside = await nobody.get(API)
    async with attached(address(recording), ranks()), viewing(recording, VIEWER) as viewer:
        record = await viewer.refused(command={"id": "r", "record": {"do": "start"}})
        snapshot = await viewer.refused(snapshot={"view": ""})

    assert [answer.status_code for answer in (*answers, file, outside)] == [403, 403, 200, 401]
    assert (record["code"], record["command"], snapshot["code"]) == ("forbidden", "r", "forbidden")
    assert len(await list_of(recording)) == 1


HEADER = MAGIC + json.dumps({"run": "r"}).encode().ljust(HEADER_BYTES - len(MAGIC))
HOSTILE = {
    "nothing": b"",
    "another file": b"\x7fELF" + bytes(5000),
    "a header that is none": MAGIC + b"{" * (HEADER_BYTES - len(MAGIC)),
    "a name that is too long": MAGIC + json.dumps({"name": "x" * 500}).encode().ljust(HEADER_BYTES - len(MAGIC)),
    "numbers that are none": MAGIC + b'{"seconds": NaN}'.ljust(HEADER_BYTES - len(MAGIC)),
    "a newer version": HEADER.replace(MAGIC, b"MSCOPE\x02\x00"),
    "an entry of four gigabytes": HEADER + struct.pack("<IB3xQ", 0xFFFFFFFF, 2, 0),
    "an entry that is cut off": HEADER + packed_entry(Kind.TEXT, 0, b"{}")[:-1],
    "an entry of no kind": HEADER + struct.pack("<IB3xQ", 0, 9, 0),
    "times that go backwards": HEADER
    + packed_entry(Kind.TEXT, 5, b'{"description": {}}')
    + packed_entry(Kind.TEXT, 4, b'{"description": {}}'),
    "a time in a year": HEADER + packed_entry(Kind.TEXT, 1 << 62, b'{"description": {}}'),
    "a text that is none": HEADER + packed_entry(Kind.TEXT, 0, b"\xff\xfe"),
    "a text deeper than any": HEADER + packed_entry(Kind.TEXT, 0, b'{"a":' * 5000),
    "a text of the connection": HEADER + packed_entry(Kind.TEXT, 0, b'{"goAway": {"retryMilliseconds": 1}}'),
    "an answer to nothing": HEADER + packed_entry(Kind.TEXT, 0, b'{"subscribed": {"id": 3}}'),
    "an expression that is none": HEADER + packed_entry(Kind.ASKED, 0, b'{"id": 1, "expression": "layers["}'),
    "a frame that is none": HEADER + packed_entry(Kind.FRAME, 0, bytes(80)),
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_a_file_that_is_no_recording_is_refused_and_leaves_nothing(recording: Served, what: str) -> None:
    async with recording.client(OPERATOR) as client:
        answer = await client.post(API, content=HOSTILE[what])
    folder = recording.gateway._scope.recordings.folder  # type: ignore[union-attr]

    assert answer.status_code == 422, answer.text
    assert list(folder.iterdir()) == []


async def test_a_file_that_is_too_large_is_refused_announced_or_not(start: Start, tmp_path: Path) -> None:
    scope = await with_pods(start, scope_recordings_dir=tmp_path / "r", scope_max_recording_bytes=1 << 16)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield bytes(4096)

    async with scope.client(OPERATOR) as client:
        answers = [await client.post(API, content=bytes(1 << 17)), await client.post(API, content=chunks())]

    assert [answer.status_code for answer in answers] == [413, 413]
    assert not list((tmp_path / "r").glob("*"))


@pytest.mark.parametrize("name", ["../../etc/passwd", "..%2F..%2Fetc%2Fpasswd", "0" * 16, "0" * 16 + ".mscope"])
async def test_no_name_leads_out_of_the_folder(recording: Served, name: str) -> None:
    (recording.gateway._scope.recordings.folder.parent / "secret.mscope").write_bytes(b"x")  # type: ignore[union-attr]
    async with recording.client(OPERATOR) as client:
        answers = [await client.get(f"{API}/{name}/file"), await client.delete(f"{API}/{name}")]
    async with opened(recording) as socket:
        viewer = Viewer(socket)
        await viewer.send(join={"client": "test", "recording": name})
        await asyncio.wait_for(socket.wait_closed(), 30)

    assert {answer.status_code for answer in answers} <= {404, 405}
    assert socket.close_code == 4400


async def test_a_recording_ends_by_itself_at_its_limit_and_is_whole(start: Start, tmp_path: Path) -> None:
    scope = await with_pods(start, scope_recordings_dir=tmp_path / "r", scope_max_recording_bytes=1 << 16)
    async with attached(address(scope), ranks()) as pods, viewing(scope, OPERATOR) as viewer:
        await viewer.subscribe(1, ONE, credits=4000)
        await pods[0].asked(1)
        await viewer.send(command={"id": "r", "record": {"do": "start"}})
        await viewer.text("recording", state="recording")
        for step in range(1, 9):
            await pods[0].event(alert=scope_pb2.ScopeAlert(kind="nonfinite", detail="x" * 12_000, step=step))
        ended = await viewer.text("recording", state="finished")
    (listed,) = await list_of(scope)

    assert ended["limit"] == "bytes"
    assert 0 < listed["events"] < 8
    assert listed["bytes"] <= (1 << 16) + HEADER_BYTES


async def test_a_viewer_that_leaves_has_its_recording(recording: Served) -> None:
    async with attached(address(recording), ranks()) as pods, viewing(recording, OPERATOR) as viewer:
        await viewer.subscribe(1, ONE, credits=1000)
        await pods[0].asked(1)
        await viewer.send(command={"id": "r", "record": {"do": "start"}})
        await viewer.text("recording", state="recording")
        await pods[0].step(1)
        await viewer.frame()
    listed = await recording.until(API, lambda answer: len(answer) == 1)

    assert listed[0]["frames"] == 1
