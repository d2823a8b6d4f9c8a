"""Whatever is sent, stored, asked, listed or read: nothing crashes, nothing hangs, memory stays, and an innocent job
beside it is unharmed. The long form is `python -m bench.attack --executions 1000000`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import attack as attack_bench
from megatronapp.collector.ingest import TraceIngest
from megatronapp.core.bounded_memory import bounded_memory
from megatronapp.core.errors import MegatronAppError
from megatronapp.detector.engine import Engines
from megatronapp.gateway.state import JobStore
from tests.attack import agent, files, platform, session
from tests.attack.inputs import deep, mutated
from tests.attack.makers import of_bytes
from tests.attack.session import MOST_BYTES, Harm, Target, attack, resident_bytes
from tests.attack.targets import TARGETS

BURST = 20
"""Inputs of one example: what one leaves behind may harm the next."""
EXAMPLES = {
    "platform": 100,
    "scope": 30,
    "operator": 100,
    "files": 60,
    "tokens": 80,
    "receivers": 60,
    "redis": 40,
    "agent": 30,
}
MAX_GROWTH_BYTES = 512 << 20
SLOW = settings(deadline=None, database=None)


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("part", [0.4, pytest.param(1.0, marks=pytest.mark.long)])
def test_no_input_crashes_hangs_or_harms_anybody(tmp_path: Path, name: str, part: float) -> None:
    make, _ = TARGETS[name]
    with asyncio.Runner() as runner:
        target = make()
        runner.run(target.start(tmp_path))
        begin = resident_bytes()

        @settings(SLOW, max_examples=int(part * EXAMPLES[name]))
        @given(st.integers(0, 2**40))
        def attacked(seed: int) -> None:
            runner.run(burst(target, seed))

        try:
            with bounded_memory(MOST_BYTES):
                attacked()
            assert resident_bytes() - begin < MAX_GROWTH_BYTES
        finally:
            runner.run(target.stop())


async def burst(target: Target, seed: int) -> None:
    seeds = range(seed * BURST, (seed + 1) * BURST)
    for first in seeds[:: target.at_once]:
        async with asyncio.TaskGroup() as tasks:
            for each in range(first, min(first + target.at_once, seeds.stop)):
                tasks.create_task(attack(target, each))
    await target.check()


HARD = {
    "deep JSON": b"[" * 100_000,
    "deep JSON, objects": b'{"a":' * 100_000,
    "a number beyond all": b'[{"ph": "B", "name": "iteration", "rel_ts": 1e400, "g_rk": 1e400}]',
    "5,000 digits": b"[" + b"9" * 5_000 + b"]",
    "not UTF-8": b'[{"ph": "\xff\xfe"}]',
    "half a character": b'[{"ph": "\\ud800", "name": "\\ud800", "rel_ts": 1}]',
    "null": b"null",
    "empty": b"",
}
JSON_READERS = ("MegaScan, merged", "store", "recipe", "checkpoint", "claim", "local platform")
"""Beside those of YAML, which have a test of their own (tests/unit/core/test_yaml_text.py)."""
NAMES = {"MegaScan, merged": "merged.json", "store": "manifest.json", "recipe": "recipe.json", "claim": "claim.json"}
NAMES |= {"local platform": "platform.json", "checkpoint": "iter_0000005/complete.json"}


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, files.Reader]:
    good = tmp_path_factory.mktemp("good")
    found = files.readers(good / "readers") + files.trainer_readers(good / "models")
    return {reader.name: reader for reader in found}


@pytest.mark.parametrize("text", HARD.values(), ids=HARD)
@pytest.mark.parametrize("name", JSON_READERS)
def test_a_file_of_json_that_is_hard_to_read_is_one_error(
    tmp_path: Path, readers: dict[str, files.Reader], name: str, text: bytes
) -> None:
    path = tmp_path / NAMES[name]
    path.parent.mkdir(exist_ok=True)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("5")
    path.write_bytes(text)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        files.judge(readers[name], tmp_path)


def test_what_a_reader_fails_with_is_seen(tmp_path: Path) -> None:
    def fail(error: Exception) -> Callable[[Path], object]:
        def read(place: Path) -> None:
            raise error

        return read

    broken = files.Reader("broken", of_bytes("a", b"a"), fail(KeyError("a")))
    wordy = files.Reader("wordy", of_bytes("a", b"a"), fail(MegatronAppError("two\nlines")))

    for reader in (broken, wordy):
        with pytest.raises(AssertionError, match=reader.name):
            files.judge(reader, tmp_path)


@pytest.mark.parametrize("part", [Engines, JobStore])
async def test_an_innocent_that_is_harmed_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: type) -> None:
    target = platform.Stack()
    await target.start(tmp_path)
    monkeypatch.setattr(platform, "SETTLE_SECONDS", 1.0)
    monkeypatch.setattr(part, "take" if part is Engines else "apply_message", lambda *_: [])

    with pytest.raises(Harm, match="not in time"):
        await checked_twice(target)
    await target.stop()


async def checked_twice(target: Target) -> None:
    """A step is judged when the next one has come."""
    await target.check()
    await target.check()


async def test_an_input_that_hangs_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = platform.Stack()
    await target.start(tmp_path)
    monkeypatch.setattr(session, "HANG_SECONDS", 0.5)

    async def wait(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(TraceIngest, "_hello", wait)
    monkeypatch.setattr(target, "_doors", [target._stream])
    with pytest.raises(Harm, match=r"it hangs, .*test_attack\.py:.* wait in "):
        await attack(target, 1)
    await target.stop()


class Stubborn:
    """A target whose input goes on when it is told to end."""

    name = "stubborn"
    at_once = 1

    async def start(self, folder: Path) -> None: ...

    async def execute(self, chance: random.Random) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    async def check(self) -> None: ...

    async def stop(self) -> None: ...


async def test_an_input_that_can_not_be_ended_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "HANG_SECONDS", 0.1)
    monkeypatch.setattr(session, "END_SECONDS", 0.1)

    async with asyncio.timeout(10):
        with pytest.raises(Harm, match="stubborn 1: it hangs"):
            await attack(Stubborn(), 1)


async def test_an_answer_that_can_t_be_read_ends_a_connection_and_not_the_agent_s_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = agent.Agent()
    await target.start(tmp_path)
    monkeypatch.setattr(agent, "_reply", lambda _chance: b"\xff")

    for seed in range(5):
        await attack(target, seed)

    await target.check()
    await target.stop()


class Endless:
    """A target whose every input is harm."""

    name, at_once = "endless", 1

    async def start(self, folder: Path) -> None: ...

    async def stop(self) -> None: ...

    async def check(self) -> None: ...

    async def execute(self, chance: random.Random) -> None:
        raise Harm("always")


@pytest.mark.parametrize("grows", [False, True])
def test_the_long_form_ends_a_target_that_takes_memory_or_only_harms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grows: bool
) -> None:
    taken = iter(range(1, 1 << 50, attack_bench.MAX_GROWTH_BYTES if grows else 1))
    monkeypatch.setattr(attack_bench, "resident_bytes", lambda: next(taken))
    monkeypatch.setattr(attack_bench, "WARM_UP", 1)
    monkeypatch.setitem(TARGETS, "endless", (Endless, 1.0))
    run = attack_bench.Run("endless", range(10**6), tmp_path / "failures.jsonl")

    assert not asyncio.run(run.attack())

    assert run.executions <= (4 if grows else attack_bench.MAX_HARMS)


def test_the_long_form_waits_for_each_input_and_for_start_and_end_alone_however_long_all_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    armed: list[float] = []
    monkeypatch.setattr("faulthandler.dump_traceback_later", lambda seconds, **_: armed.append(seconds))
    monkeypatch.setitem(TARGETS, "endless", (Endless, 1.0))

    asyncio.run(attack_bench.Run("endless", range(3), tmp_path / "failures.jsonl").attack())

    assert armed == [attack_bench.WATCHDOG_SECONDS] * (1 + 3 + 1)


class Greedy(Endless):
    name = "greedy"

    async def execute(self, chance: random.Random) -> None:
        bytearray(8 << 30)


def test_the_long_form_saves_the_seed_of_an_input_that_takes_all_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TARGETS, "greedy", (Greedy, 1.0))
    run = attack_bench.Run("greedy", [7], tmp_path / "failures.jsonl")

    assert not asyncio.run(run.attack())

    assert json.loads(run.failures.read_text()) == {"target": "greedy", "seed": 7, "harm": "MemoryError: "}


def test_a_deep_list_whose_items_are_repeated_stays_small() -> None:
    """It was terabytes of text now and then, which took the machine along."""
    sizes = [size(mutated(random.Random(seed), deep(300), 0.2), {}) for seed in range(1_000)]

    assert max(sizes) < 1_000_000


def size(value: object, known: dict[int, int]) -> int:
    """Values in lists; those that are one and the same object are walked through once."""
    if not isinstance(value, list):
        return 1
    if id(value) not in known:
        known[id(value)] = 1 + sum(size(each, known) for each in value)
    return known[id(value)]


def test_a_reader_that_takes_all_memory_is_a_harm(tmp_path: Path) -> None:
    greedy = files.Reader("greedy", lambda _, __: None, lambda _: bytearray(8 << 30))

    with pytest.raises(Harm, match="greedy: MemoryError"):
        files.judge(greedy, tmp_path)
