"""The Jobs of one attempt, as one: where forward ranks have nodes of their own there is one for each role. Pure.

They begin and end together. What is to happen to one of them and has not yet, as the operator was killed between two
writes or as only one has failed, is made up for whenever the job is looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime

from megatronapp.core.trainingjob import Reason
from megatronapp.operator.snapshots import ChildJob

FOLLOWS = str(Reason.RANK_FAILED)
"""Why a Job was stopped whose fellow has failed: it is part of that failure."""


def as_one(parts: tuple[ChildJob, ...]) -> ChildJob | None:
    """None without any. What one role has done alone, whose fellow was never made, is no attempt that has succeeded."""
    if len(parts) < 2:
        return next((replace(part, complete=part.complete and not part.role) for part in parts), None)
    failed = [part for part in parts if part.failing or part.failed]
    first = min(failed, key=lambda part: (part.failed_at is None, part.failed_at), default=parts[0])
    return replace(
        parts[0],
        nodes=sum(part.nodes for part in parts),
        digest=parts[0].digest if len({part.digest for part in parts}) == 1 else "",
        stopped=next((part.stopped for part in parts if part.stopped not in ("", FOLLOWS)), ""),
        suspended=all(part.suspended for part in parts),
        held=any(part.held for part in parts),
        complete=all(part.complete for part in parts),
        failing=bool(failed),
        failed=any(part.failed for part in parts),
        reason=first.reason,
        message=first.message,
        created=min(_known(part.created for part in parts), default=None),
        failed_at=min(_known(part.failed_at for part in parts), default=None),
    )


def to_stop(parts: tuple[ChildJob, ...]) -> tuple[tuple[ChildJob, Reason], ...]:
    """Those that go on though a fellow was stopped or has failed, and why they are to be stopped."""
    stopped = next((part.stopped for part in parts if part.stopped), "")
    if not stopped and not any(part.failing or part.failed for part in parts):
        return ()
    return tuple((part, Reason(stopped or FOLLOWS)) for part in parts if not part.ending)


def to_start(parts: tuple[ChildJob, ...]) -> tuple[ChildJob, ...]:
    """Those that still wait though a fellow was let run."""
    if any(part.ending for part in parts) or all(part.suspended for part in parts):
        return ()
    return tuple(part for part in parts if part.suspended)


def _known(moments: Iterable[datetime | None]) -> list[datetime]:
    return [moment for moment in moments if moment is not None]
