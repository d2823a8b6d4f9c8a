"""When heartbeats are due, and what they tell of a device."""

import itertools
import mmap

from megatronapp.core.trace.limits import MAX_TIME_NS
from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.heartbeat import INTERVAL_SECONDS, BeatClock
from megatronapp.trainer.plugins.scan.python_recorder import CpuTimebase, PythonRecorder
from tests.unit.trainer.plugins.scan.recorded import Reader

NOW = 1_000.0


def moments(rank: int, seconds: float = 10.0, tick: float = 0.01) -> list[float]:
    clock = BeatClock(rank, NOW)
    return [NOW + i * tick for i in range(round(seconds / tick)) if clock.due(NOW + i * tick)]


def test_a_rank_beats_once_in_an_interval() -> None:
    beats = moments(3)

    assert len(beats) == 10
    assert max(b - a for a, b in itertools.pairwise(beats)) < 1.02 * INTERVAL_SECONDS


def test_ranks_that_came_together_beat_at_moments_of_their_own() -> None:
    beats = sorted(moment for rank in range(8) for moment in moments(rank))

    assert max(b - a for a, b in itertools.pairwise(beats)) < 0.25 * INTERVAL_SECONDS


def test_beats_that_were_missed_are_not_made_up_for() -> None:
    clock = BeatClock(0, NOW)

    assert clock.due(NOW + 7.4)
    assert not clock.due(NOW + 7.5)
    assert clock.due(NOW + 8.0)


def test_a_heartbeat_tells_of_the_mark_that_the_device_does_not_pass_whatever_a_rank_writes_there() -> None:
    recorder = PythonRecorder(CpuTimebase())
    reader = Reader(recorder)
    at = reader.segment.sections.state + 8 * layout.UNPASSED_MARK_WORD

    told = []
    with mmap.mmap(recorder.fd, 0) as memory:
        for value in (0, 17, (1 << 64) - 1):
            memory[at : at + 8] = value.to_bytes(8, "little")
            told.append(reader.heartbeat().unpassed_mark_ns)

    assert told == [0, 17, MAX_TIME_NS]
