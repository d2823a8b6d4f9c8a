"""A rank that writes frames, for a reader in another process.

    frame_writer.py python|native BULK_BYTES FRAMES SEED    of random sizes; word i of frame n is n * 1000003 + i
    frame_writer.py python|native BULK_BYTES torn           a whole frame, and one in whose middle the process dies

Prints the segment's path, begins at a line of input, prints "done", and ends at the input's end.
"""

from __future__ import annotations

import mmap
import os
import random
import struct
import sys
import tempfile
from typing import Any

import numpy as np

FACTOR = 1_000_003
RING_BYTES = 4096


def payload(number: int, words: int) -> memoryview:
    return np.arange(number * FACTOR, number * FACTOR + words, dtype=np.uint64).data


def make_recorder(kind: str, bulk_bytes: int) -> Any:
    if kind == "native":
        from megatronapp.scan import Recorder

        return Recorder(bytes(1), bytes(1), None, 0, RING_BYTES, bulk_bytes)
    from megatronapp.trainer.plugins.scan.python_recorder import CpuTimebase, PythonRecorder

    return PythonRecorder(CpuTimebase(), RING_BYTES, bulk_bytes)


def write_frames(recorder: Any, frames: int, most_words: int, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(1, frames + 1):
        words = chance.randint(0, most_words)
        recorder.write_frame(struct.pack("<2Q", number, words), payload(number, words))


def die_in_the_middle(recorder: Any, words: int) -> None:
    """The copy runs into the part of a file that is not there any more."""
    recorder.write_frame(struct.pack("<2Q", 1, words), payload(1, words))
    with tempfile.TemporaryFile() as file:
        file.write(payload(2, words))
        file.flush()
        mapped = mmap.mmap(file.fileno(), 0)
        os.ftruncate(file.fileno(), len(mapped) // 2)
        recorder.write_frame(struct.pack("<2Q", 2, words), mapped)


def main(kind: str, bulk_bytes: int, what: str, seed: int) -> None:
    recorder = make_recorder(kind, bulk_bytes)
    most_words = bulk_bytes // 64 - 8
    print(f"/proc/{os.getpid()}/fd/{recorder.fd}", flush=True)
    sys.stdin.readline()
    if what == "torn":
        die_in_the_middle(recorder, most_words)
    else:
        write_frames(recorder, int(what), most_words, seed)
    print("done", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 0)
