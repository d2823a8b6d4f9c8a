"""A rank that is stuck in a native call ends when a peer is lost; one that finds out by itself is left alone."""

from __future__ import annotations

import subprocess
import sys
import time

from megatronapp.trainer.pipeline import lost_peers
from megatronapp.trainer.pipeline.lost_peers import LostPeers

WITHIN_SECONDS = 2.0
STUCK = """
import time
from megatronapp.trainer.pipeline.lost_peers import LostPeers
from tests.support.stuck import stuck
lost_at = time.monotonic() + 0.3
LostPeers(lambda: "rank 2 is lost: its socket closed" if time.monotonic() > lost_at else "")
print("stuck", flush=True)
stuck()
"""


def test_who_is_stuck_is_ended_with_the_name_of_the_lost_rank() -> None:
    rank = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    rank.stdout.readline()
    began = time.monotonic()

    _, said = rank.communicate(timeout=30)

    assert said == "error: rank 2 is lost: its socket closed\n"
    assert rank.returncode == 1
    assert time.monotonic() - began < 0.3 + WITHIN_SECONDS


def test_who_finds_out_in_time_goes_on() -> None:
    peers = LostPeers(lambda: "rank 2 is lost: its socket closed")
    time.sleep(lost_peers.LOOK_SECONDS * 2)

    peers.stop()

    time.sleep(lost_peers.GRACE_SECONDS)  # else this process has ended
