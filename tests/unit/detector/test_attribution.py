"""One verdict a rank, of what several rules suspect of it."""

from __future__ import annotations

from dataclasses import replace

from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.attribution import FAR_MORE, settle
from tests.support.suspected import SLOW_GPU

SLOW_HOST = replace(SLOW_GPU, kind=Kind.SLOW_HOST, cause=Cause.HOST_CPU)


def test_what_stands_first_is_said_of_a_rank_unless_another_explains_far_more() -> None:
    hardly_more = replace(SLOW_HOST, lost_seconds=FAR_MORE * SLOW_GPU.lost_seconds)
    far_more = replace(SLOW_HOST, lost_seconds=1.01 * FAR_MORE * SLOW_GPU.lost_seconds)

    assert settle([SLOW_GPU, hardly_more]) == [SLOW_GPU]
    assert settle([SLOW_GPU, far_more]) == [replace(far_more, outweighs=Kind.SLOW_GPU)]


def test_ranks_are_judged_each_for_itself() -> None:
    other = replace(SLOW_HOST, ranks=(2,), lost_seconds=9.0)

    assert settle([SLOW_GPU, other]) == [SLOW_GPU, other]
