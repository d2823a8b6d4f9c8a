"""Runs as a whole: their curves, where their time went, what happened when, and what their recipes differ in."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Annotated

from fastapi import APIRouter, Query, Request

from megatronapp.core.errors import NotFoundError, UsageError
from megatronapp.core.findings import Finding
from megatronapp.core.trace.limits import MAX_STEP
from megatronapp.gateway import recipes, views
from megatronapp.gateway.deps import GatewayParts, KnownJob, Now, Parts, find_job
from megatronapp.gateway.exports import while_connected
from megatronapp.gateway.markers import markers
from megatronapp.gateway.models import Recipe
from megatronapp.gateway.routes.findings import findings_of
from megatronapp.gateway.run_history import attempt_histories
from megatronapp.gateway.run_models import Marker, RecipeDifference, RunHistory, TimeSpent
from megatronapp.gateway.time_spent import time_spent
from megatronapp.v1 import trace_pb2

router = APIRouter(tags=["runs"])

MAX_RUNS = 8
MAX_POINTS = 5_000
WHOLE_BINS = 100_000
"""Of what sums are made of: up to so many steps each is a bin of its own."""


class Axis(StrEnum):
    STEP = "step"
    TIME = "time"


Runs = Annotated[
    list[str], Query(alias="run", min_length=1, max_length=MAX_RUNS, description="may be given several times")
]
Step = Annotated[int, Query(ge=0, le=MAX_STEP)]
Unix = Annotated[float, Query(ge=0, le=4e9, description="seconds since 1970; 0: no bound")]


@router.get("/history")
async def get_history(
    request: Request,
    gateway: GatewayParts,
    run: Runs,
    from_step: Step = 0,
    to_step: Annotated[int, Query(ge=0, le=MAX_STEP, description="inclusive; 0: the newest")] = 0,
    from_unix_seconds: Unix = 0,
    to_unix_seconds: Unix = 0,
    by: Annotated[Axis, Query(description="bins of equally many steps, or of equal time")] = Axis.STEP,
    points: Annotated[int, Query(ge=3, le=MAX_POINTS, description="bins of each run, at most")] = 600,
) -> list[RunHistory]:
    """The whole of some runs, all their attempts, in the order asked: loss, step time and so on over steps or time,
    thinned to bins with the least, the most and the mean. It reaches back as far as the trace-collector keeps
    histories."""
    wanted = trace_pb2.ReadHistoryRequest(
        from_step=from_step,
        to_step=to_step,
        from_unix_ns=int(from_unix_seconds * 1e9),
        to_unix_ns=int(to_unix_seconds * 1e9),
        by_time=by is Axis.TIME,
        bins=points,
    )
    _check_runs(run)
    return await while_connected(request, _histories(gateway, run, wanted))


@router.get("/history/recipe-difference")
async def get_recipe_difference(gateway: GatewayParts, run: Runs) -> RecipeDifference:
    """Settings and versions in which the runs differ."""
    _check_runs(run)
    jobs = await asyncio.gather(*(find_job(gateway, each) for each in run))
    found: list[Recipe] = []
    for name, job in zip(run, jobs, strict=True):
        if job.membership.recipe is None:
            raise NotFoundError(f"no rank of run {name!r} has told its recipe")
        found.append(views.recipe_view(job.membership.recipe))
    return recipes.difference(run, found)


@router.get("/jobs/{run}/time-spent")
async def get_time_spent(request: Request, job: KnownJob, gateway: GatewayParts, now: Now) -> TimeSpent:
    """Where the time of the run went, over all its attempts: compute, and what is lost and to what."""
    attempts, findings = await while_connected(request, _whole(gateway, job.run))
    return time_spent(attempts, findings, now / 1e9)


@router.get("/jobs/{run}/markers")
async def list_markers(request: Request, job: KnownJob, gateway: GatewayParts) -> list[Marker]:
    """Findings that paged, starts, checkpoints and evaluations: the newest 1,000 of each, ordered by step."""
    attempts, findings = await while_connected(request, _whole(gateway, job.run))
    return markers(attempts, findings)


async def _histories(gateway: Parts, runs: list[str], wanted: trace_pb2.ReadHistoryRequest) -> list[RunHistory]:
    return list(await asyncio.gather(*(_history(gateway, run, wanted) for run in runs)))


async def _history(gateway: Parts, run: str, wanted: trace_pb2.ReadHistoryRequest) -> RunHistory:
    job, answer = await asyncio.gather(find_job(gateway, run), gateway.collector.history(_of(run, wanted)))
    return RunHistory(run=run, job=job.job, attempts=attempt_histories(answer.attempts))


async def _whole(gateway: Parts, run: str) -> tuple[list[trace_pb2.AttemptHistory], list[Finding]]:
    wanted = trace_pb2.ReadHistoryRequest(run=run, bins=WHOLE_BINS)
    answer, findings = await asyncio.gather(gateway.collector.history(wanted), findings_of(gateway, run))
    return list(answer.attempts), findings


def _of(run: str, wanted: trace_pb2.ReadHistoryRequest) -> trace_pb2.ReadHistoryRequest:
    request = trace_pb2.ReadHistoryRequest(run=run)
    request.MergeFrom(wanted)
    return request


def _check_runs(runs: list[str]) -> None:
    if len(set(runs)) < len(runs) or any(len(run) > 256 for run in runs):
        raise UsageError("run: name each run once, by its id")
