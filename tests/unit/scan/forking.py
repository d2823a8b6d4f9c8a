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


def child(recorder: Recorder, track: int) -> int:
    recorder.set_step(99)
    recorder.enqueue(track, 0, 1, 0)
    recorder.begin(0)
    recorder.end()
    recorder.end_step((99,))
    return 0 if recorder.marks else 1


def main() -> None:
    recorder = Recorder(bytes(1), bytes(1), None, 0)
    reader = SegmentReader(recorder.fd)
    track = recorder.track(1, -1, False)
    recorder.set_step(5)
    stop = threading.Event()

    def record() -> None:
        while not stop.is_set():
            recorder.mark()

    busy = threading.Thread(target=record)
    busy.start()
    failed = 0
    for _ in range(FORKS):
        pid = os.fork()
        if pid == 0:
            os._exit(child(recorder, track))
        failed += os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    stop.set()
    busy.join()
    recorder.end_step((6,))
    recorder.close(10.0)
    print("children:", failed)
    print("step:", reader.state().step)
    print("operations:", reader.frontiers()[track].enqueued)
    print("steps ended:", *[step.end.step for step in reader.steps(COLUMNS)])


if __name__ == "__main__":
    main()
