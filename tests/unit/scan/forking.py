"""A rank that is forked over and over while it records, as by a loader of data. Says what its segment then holds."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from megatronapp.scan import COLUMNS, Recorder
from tests.support.segment import SegmentReader

FORKS = 20
PAYLOAD = b"parent.." * 12_000


def child(recorder: Recorder, track: int) -> int:
    recorder.set_step(99)
    recorder.enqueue(track, 0, 1, 0)
    recorder.begin(0)
    recorder.end()
    recorder.end_step((99,))
    recorder.write_frame(b"", b"child" * 1000)
    return 0 if recorder.marks else 1


def main() -> None:
    recorder = Recorder(bytes(1), bytes(1), None, 0, 1 << 24, 1 << 20)
    reader = SegmentReader(recorder.fd)
    track = recorder.track(1, -1, False)
    recorder.set_step(5)
    stop = threading.Event()

    def record() -> None:
        while not stop.is_set():
            recorder.mark()

    def write_frames() -> None:
        while not stop.is_set():
            recorder.write_frame(b"", PAYLOAD)  # without the interpreter's lock

    busy = [threading.Thread(target=record), threading.Thread(target=write_frames)]
    for thread in busy:
        thread.start()
    failed = 0
    for _ in range(FORKS):
        pid = os.fork()
        if pid == 0:
            os._exit(child(recorder, track))
        failed += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    stop.set()
    for thread in busy:
        thread.join()
    recorder.end_step((6,))
    recorder.close(10.0)
    print("children:", failed)
    print("step:", reader.state().step)
    print("operations:", reader.frontiers()[track].enqueued)
    print("steps ended:", *[step.end.step for step in reader.steps(COLUMNS)])
    frames = SegmentReader(recorder.fd, bulk=True).records()
    print("frames:", "whole" if frames and all(frame.payload[16:] == PAYLOAD for frame in frames) else "damaged")


if __name__ == "__main__":
    main()
