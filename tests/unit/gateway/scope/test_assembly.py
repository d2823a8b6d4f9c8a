"""Shards wait for each other, but not for long."""

from megatronapp.core.scope.frame import Frame
from megatronapp.core.scope.stitch import Piece
from megatronapp.gateway.scope.assembly import (
    DEADLINE_SECONDS,
    MAX_PENDING,
    MAX_PENDING_BYTES,
    Assembly,
    Picture,
    PictureKey,
)

NEEDED: set[Piece] = {(0,), (1,)}


def add(assembly: Assembly, step: int, piece: int, layer: int = 0, now: float = 0.0) -> list[Picture]:
    key = PictureKey(layer, step, 0, "", (4,))
    return assembly.add(key, (piece,), Frame(step=step), NEEDED, now, generates=False)


def shown(pictures: list[Picture]) -> list[tuple[int, int]]:
    return [(picture.key.step, len(picture.frames)) for picture in pictures]


def test_a_picture_goes_when_its_last_shard_comes() -> None:
    assembly = Assembly()

    assert shown(add(assembly, 1, 0)) == []
    assert shown(add(assembly, 1, 1)) == [(1, 2)]


def test_a_newer_step_takes_along_older_ones_of_its_layer_as_they_are() -> None:
    assembly = Assembly()
    add(assembly, 1, 0)
    add(assembly, 1, 0, layer=1)
    add(assembly, 2, 0)

    assert shown(add(assembly, 2, 1)) == [(1, 1), (2, 2)]


def test_what_waits_too_long_goes_as_it_is() -> None:
    assembly = Assembly()
    add(assembly, 1, 0, now=0.0)
    add(assembly, 2, 0, layer=1, now=1.0)

    assert shown(assembly.overdue(DEADLINE_SECONDS)) == [(1, 1)]
    assert shown(assembly.overdue(DEADLINE_SECONDS)) == []


def test_a_shard_of_a_picture_that_is_gone_is_dropped() -> None:
    assembly = Assembly()
    add(assembly, 1, 0)
    add(assembly, 1, 1)

    assert shown(add(assembly, 1, 1)) == []
    assert assembly.late == 1


def test_the_same_shard_twice_counts_once() -> None:
    assembly = Assembly()
    add(assembly, 1, 0)

    assert shown(add(assembly, 1, 0)) == []


def test_what_waits_is_bounded() -> None:
    assembly = Assembly()

    gone = [picture for layer in range(MAX_PENDING + 3) for picture in add(assembly, 1, 0, layer=layer)]

    assert [picture.key.layer for picture in gone] == [0, 1, 2]


def test_the_bytes_that_wait_are_bounded() -> None:
    assembly = Assembly()
    large = Frame(step=1, payload=memoryview(bytes(MAX_PENDING_BYTES // 2)))

    def add_large(layer: int) -> list[Picture]:
        key = PictureKey(layer, 1, 0, "", (4,))
        return assembly.add(key, (0,), large, NEEDED, 0.0, generates=False)

    assert [[picture.key.layer for picture in add_large(layer)] for layer in range(4)] == [[], [], [0], [1]]
