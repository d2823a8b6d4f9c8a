"""The shared memory of a rank and its agent: its writer in C++ in one process, a reader in another."""

from __future__ import annotations

import contextlib
import random
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.segment import Record, SegmentReader

FACTOR = 1_000_003


class Writer:
    def __init__(self, program: Path, *arguments: object) -> None:
        command = [str(program), *map(str, arguments)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdin
        assert self._process.stdout
        self._input, self._output = self._process.stdin, self._process.stdout
        self.reader = SegmentReader(self._output.readline().strip())

    def start(self) -> None:
        self._input.write("\n")
        self._input.flush()

    def wait(self) -> None:
        assert self._output.readline() == "done\n"

    def close(self) -> None:
        self._input.close()
        self._process.wait(30)
        self._output.close()


@contextlib.contextmanager
def writer(program: Path, *arguments: object) -> Iterator[Writer]:
    process = Writer(program, *arguments)
    try:
        yield process
    finally:
        process.close()


def check(record: Record) -> None:
    words = struct.unpack(f"<{len(record.payload) // 8}Q", record.payload)
    assert words == tuple(range(record.number * FACTOR, record.number * FACTOR + len(words))), "a torn record"


@pytest.mark.parametrize("ring_bytes", [4096, 1 << 16])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**31), pauses_ms=st.sampled_from([0, 1, 5]))
def test_a_slow_reader_takes_no_torn_record_and_counts_each_overwritten_one(
    compiled: Path, ring_bytes: int, seed: int, pauses_ms: int
) -> None:
    chance, total, accepted = random.Random(seed), 3000, 0
    with writer(compiled, "ring", ring_bytes, total, seed) as process:
        reader = process.reader
        process.start()
        for _ in range(200):
            records = reader.records()
            for record in records:
                check(record)
            accepted += len(records)
            time.sleep(chance.random() * pauses_ms / 1000)
        process.wait()
        rest = reader.records()
        for record in rest:
            check(record)
        accepted += len(rest)

        assert rest[-1].number == total if rest else accepted
        assert accepted + reader.overwritten == total
        assert reader.head() - reader.tail() <= ring_bytes


def test_what_fits_into_the_ring_is_read_whole(compiled: Path) -> None:
    with writer(compiled, "ring", 1 << 20, 8, 1) as process:
        process.start()
        process.wait()
        records = process.reader.records()

        assert [record.number for record in records] == list(range(1, 9))
        assert process.reader.overwritten == 0


def test_fields_under_a_sequence_lock_are_read_all_of_one_change(compiled: Path) -> None:
    updates = 300_000
    with writer(compiled, "lock", updates) as process:
        process.start()
        seen: set[int] = set()
        while max(seen, default=0) < updates:
            state = process.reader.state()
            assert len(set(state)) == 1, state
            seen.add(state.step)

        assert len(seen) > 10
