"""The reader's end of a ring, against a writer that is faster at the worst moment."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.ring import RingReader
from megatronapp.trainer.plugins.scan.ring_writer import RingWriter

RING = 4096
READ_WORD = 0
AT = 64


class OvertakingMemory(mmap.mmap):
    """Between the halves of a copy something happens."""

    between: Callable[[], object] = staticmethod(lambda: None)

    def __getitem__(self, key: Any) -> Any:
        half = (key.start + key.stop) // 2
        before = super().__getitem__(slice(key.start, half))
        self.between()
        return before + super().__getitem__(slice(half, key.stop))


def ring() -> tuple[OvertakingMemory, RingReader, RingWriter]:
    memory = OvertakingMemory(-1, AT + layout.RING_HEADER_BYTES + RING)
    words = memoryview(memory).cast("Q")
    return memory, RingReader(memory, words, AT, RING, READ_WORD), RingWriter(memory, words, AT, RING)


def write(writer: RingWriter, first: int, last: int) -> None:
    """Each as large as can be, and filled with its number."""
    for number in range(first, last + 1):
        writer.put(layout.FRAME, bytes([number]) * writer.most_content)


def test_a_record_that_is_overwritten_while_it_is_copied_is_lost_and_not_torn() -> None:
    memory, reader, writer = ring()
    write(writer, 1, 3)

    def overtake() -> None:
        memory.between = lambda: None
        write(writer, 4, 9)

    memory.between = overtake
    records = reader.records(reader.head()) + reader.records(reader.head())

    assert [record.number for record in records] == list(range(2, 10))
    assert all(set(record.content) == {record.number} for record in records)
    assert reader.lost == 1


def test_a_writer_that_comes_close_while_a_record_is_copied_costs_nothing() -> None:
    memory, reader, writer = ring()
    write(writer, 1, 3)

    def fill() -> None:
        memory.between = lambda: None
        write(writer, 4, 8)

    memory.between = fill
    records = reader.records(reader.head()) + reader.records(reader.head())

    assert [record.number for record in records] == list(range(1, 9))
    assert reader.lost == 0
