"""observe → decide → act, for one TrainingJob at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import ValidationError

from megatronapp.core.errors import UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.core.trainingjob import Status, TrainingJob
from megatronapp.core.trainingjob.job import first_message
from megatronapp.core.trainingjob.spec import MANAGER
from megatronapp.operator import nodes, remediate, startup
from megatronapp.operator.actions import Action, Create, Delete, StartJob, StopJob, TripBreaker
from megatronapp.operator.api import ConflictError, GoneError, RefusedError
from megatronapp.operator.backends import unsupported
from megatronapp.operator.cache import Cache
from megatronapp.operator.executor import Executor
from megatronapp.operator.invalid_spec import invalid_spec
from megatronapp.operator.metrics import Metrics
from megatronapp.operator.names import Key
from megatronapp.operator.observation import Breaker, Explanation, Limits, Observation, Refusal
from megatronapp.operator.pod_policy import PodPolicy, denied
from megatronapp.operator.reconcile import decide
from megatronapp.operator.reconcile_error import UnreadableError, with_error, without_error
from megatronapp.operator.render import Plan, RenderSettings
from megatronapp.operator.render.pod import pod_template
from megatronapp.operator.settings import OperatorSettings
from megatronapp.operator.snapshots import Report, parse_time

log = get_logger(__name__)

RETRY_ON = (ConflictError, UnavailableError)
REFUSED_SECONDS = 60


class Controller:
    """Brings what is there and what a TrainingJob asks for together, however often it is asked to."""

    def __init__(
        self, cache: Cache, executor: Executor, settings: OperatorSettings, metrics: Metrics, breaker: BreakerState
    ) -> None:
        self._cache = cache
        self._executor = executor
        self._settings = settings
        self._metrics = metrics
        self._breaker = breaker
        self._render_settings = _render_settings(settings)
        self._limits = _limits(settings)
        self._pod_policy = _pod_policy(settings)
        self._denials: dict[Key, tuple[str, int, str]] = {}
        """Of which uid and generation, and what of it is not allowed."""
        self._refusals: dict[Key, Refusal] = {}
        self._reports: dict[str, Report] = {}
        self._explanations: dict[Key, Explanation] = {}

    async def reconcile(self, key: Key) -> float | None:
        """Seconds until the next look; None: nothing is awaited. Raises one of RETRY_ON, or what nobody expected; then
        the job has been told."""
        started = time.perf_counter()
        try:
            again = await self._reconcile(key)
            await self._report_error(key, None)
            return again
        except RETRY_ON:
            raise
        except Exception as error:
            if not isinstance(error, UnreadableError):
                self._metrics.errors.inc()
            await self._report_error(key, error)
            raise
        finally:
            self._metrics.reconciled.observe(time.perf_counter() - started)

    def update_reports(self, reports: dict[str, Report]) -> list[Key]:
        """Take in what the platform says now. Returns the jobs for which it says something new."""
        before, self._reports = self._reports, reports
        return [
            key
            for key in self._cache.job_keys()
            if (body := self._cache.job(key)) is not None
            and before.get(body["metadata"]["uid"]) != reports.get(body["metadata"]["uid"])
        ]

    async def _reconcile(self, key: Key) -> float | None:
        body = self._cache.job(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self._cache.forget(key)
            self._refusals.pop(key, None)
            self._denials.pop(key, None)
            self._explanations.pop(key, None)
            if body is None:
                self._metrics.forget(key)
            return None
        if not is_ours(body):
            return None
        if unreadable := self._cache.unreadable(key):
            raise UnreadableError(unreadable)
        now = datetime.now(UTC)
        try:
            job = parsed(body)
        except ValidationError as error:
            await self._refuse_spec(key, body, error, now)
            return None
        observation = await self._explained(key, self._observe(key, job, now))
        return await self._act(key, body, observation)

    def _observe(self, key: Key, job: TrainingJob, now: datetime) -> Observation:
        uid = job.metadata.uid
        return Observation(
            job=job,
            children=self._cache.children(key, uid),
            pods=self._cache.pods(key),
            service=self._cache.has_service(key, uid),
            nodes=self._cache.nodes(),
            report=self._reports.get(uid),
            refusal=self._refusal(key, job, now),
            now=now,
            platform=self._render_settings,
            limits=self._limits,
            breaker=self._circuit(job, now),
            explanation=self._explanations.get(key),
        )

    async def _explained(self, key: Key, observation: Observation) -> Observation:
        """With what events say of an attempt that has not started for a while."""
        subject = startup.to_ask(observation)
        if subject is None:
            return observation
        events = await self._executor.events_of(key.namespace, subject.kind, subject.name)
        self._explanations[key] = startup.explanation(subject, events, observation.now)
        return replace(observation, explanation=self._explanations[key])

    async def _act(self, key: Key, body: dict[str, Any], observation: Observation) -> float | None:
        decision = decide(observation)
        await self._write_status(key, body, observation.job.status, decision.status)
        for action in decision.actions:
            try:
                await self._do(key, action, observation)
            except RefusedError as error:
                return await self._refused(key, observation, str(error))
        return decision.again_seconds

    async def _write_status(self, key: Key, body: dict[str, Any], before: Status | None, after: Status) -> None:
        if after == before:
            return
        try:
            self._cache.wrote_job(key, await self._executor.write_status(body, before, after))
        except GoneError:
            self._cache.forget(key)
        self._metrics.note(key, before or Status(), after)

    async def _do(self, key: Key, action: Action, observation: Observation) -> None:
        if isinstance(action, TripBreaker):
            await self._breaker.trip(action.message)
            return
        body = await self._executor.do(action, observation)
        if isinstance(action, Create | StopJob | StartJob) and body is not None and body.get("kind") == "Job":
            self._cache.wrote_child(key, body)
        if isinstance(action, Delete):
            self._cache.deleted_child(key, action.name)

    async def _refused(self, key: Key, observation: Observation, message: str) -> float | None:
        """Say so in the status, and try again after a while: quota and the like may change."""
        log.warning("refused", job=str(key), error=message)
        until = observation.now + timedelta(seconds=REFUSED_SECONDS)
        self._refusals[key] = Refusal(message, observation.job.metadata.generation, until)
        body = self._cache.job(key)
        if body is None:
            return None
        again = replace(observation, job=parsed(body), refusal=self._refusals[key])
        decision = decide(again)
        await self._write_status(key, body, again.job.status, decision.status)
        return decision.again_seconds

    async def _refuse_spec(self, key: Key, body: dict[str, Any], error: ValidationError, now: datetime) -> None:
        """A spec that passed the server's rules but not the model's own: nothing is made of it."""
        before = Status.model_validate(body["status"]) if body.get("status") else None
        generation = body["metadata"].get("generation", 0)
        status = invalid_spec(before or Status(), generation, first_message(error), now)
        await self._write_status(key, body, before, status)

    async def _report_error(self, key: Key, error: Exception | None) -> None:
        """Say in the status what keeps the operator from the job, or that nothing does any more; as well as can be."""
        body = self._cache.job(key)
        if body is None or not is_ours(body):
            return
        status, generation, now = body.get("status") or {}, body["metadata"].get("generation", 0), datetime.now(UTC)
        try:
            patched = with_error(status, generation, error, now) if error else without_error(status, generation, now)
            if patched is not None:
                self._cache.wrote_job(key, await self._executor.replace_status(body, patched))
        except Exception as failure:  # noqa: BLE001  # the log has both
            log.warning("error_not_told", job=str(key), error=str(failure))

    def _refusal(self, key: Key, job: TrainingJob, now: datetime) -> Refusal | None:
        """The last refusal, while it holds: until the spec is changed or its time is up."""
        message = unsupported(job.spec, self._limits.backends) or self._denied(key, job)
        if message:
            return Refusal(message, job.metadata.generation, now)
        refusal = self._refusals.get(key)
        if refusal is None or refusal.generation != job.metadata.generation or now >= refusal.until:
            self._refusals.pop(key, None)
            return None
        return refusal

    def _denied(self, key: Key, job: TrainingJob) -> str:
        """Rendered once for each version of a spec."""
        uid, generation = job.metadata.uid, job.metadata.generation
        known = self._denials.get(key)
        if known is None or known[:2] != (uid, generation):
            template = pod_template(Plan(job, 1, job.spec.nodes, (), self._render_settings))
            known = uid, generation, denied(job.spec, template, self._pod_policy)
            self._denials[key] = known
        return known[2]

    def _circuit(self, job: TrainingJob, now: datetime) -> Breaker:
        """Only asked for by jobs that may be moved: it looks at all jobs and nodes."""
        if job.spec.remediation.mode == remediate.MODES[0]:
            return Breaker()
        settings = self._settings
        since = max(nodes.window_start(now, settings.breaker_window_seconds), self._breaker.reset_at)
        acted = nodes.acted_since(self._cache.nodes().values(), since) | self._excluded_since(since)
        limit = nodes.breaker_limit(len(self._cache.nodes()), settings.breaker_nodes, settings.breaker_ratio)
        return Breaker(frozenset(acted), limit, self._breaker.tripped)

    def _excluded_since(self, since: datetime) -> set[str]:
        bodies = (self._cache.job(key) for key in self._cache.job_keys())
        entries = (entry for body in bodies if body for entry in _excluded(body))
        return {name for name, moment in entries if moment >= since}


def is_ours(body: dict[str, Any]) -> bool:
    return str((body.get("spec") or {}).get("managedBy", MANAGER)) == MANAGER


def parsed(body: dict[str, Any]) -> TrainingJob:
    """The server has refused unknown keys already; one that it knows and this operator does not is a newer version's,
    which is on its way."""
    return TrainingJob.model_validate(body, extra="ignore")


def _excluded(body: dict[str, Any]) -> Iterator[tuple[str, datetime]]:
    """A job's excluded nodes, and since when. All jobs are looked at for one: a status that can't be read is passed."""
    status = body.get("status")
    entries = status.get("excludedNodes") if isinstance(status, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("name"), str):
            moment = parse_time(entry.get("since"))
            if moment is not None:
                yield entry["name"], moment


class BreakerState:
    """Whether the circuit breaker is open, as it stands on the operator's Lease."""

    def __init__(self, trip: Callable[[str], Any]) -> None:
        self._trip = trip
        self.tripped = False
        self.reset_at = datetime.min.replace(tzinfo=UTC)

    async def trip(self, message: str) -> None:
        log.warning("breaker_open", message=message)
        self.tripped = True
        await self._trip(message)

    def set(self, tripped: bool) -> None:
        """As the Lease says now. Closed by a person: what was done before no longer counts."""
        if self.tripped and not tripped:
            self.reset_at = datetime.now(UTC)
        self.tripped = tripped


def _render_settings(settings: OperatorSettings) -> RenderSettings:
    return RenderSettings(
        trainer_image=settings.trainer_image,
        collector_address=settings.collector_address,
        collector_shards=settings.collector_shards,
        gateway_address=settings.gateway_address,
        network_policy=settings.network_policy,
        collector_tls_secret=settings.collector_tls_secret,
        collector_mutual_tls=settings.collector_mutual_tls,
    )


def _pod_policy(settings: OperatorSettings) -> PodPolicy:
    return PodPolicy(
        settings.pod_security, settings.pod_template_fields, settings.service_accounts, settings.secret_names
    )


def _limits(settings: OperatorSettings) -> Limits:
    asked = {"Coscheduling": settings.coscheduling, "Volcano": settings.volcano, "JobSet": settings.jobset}
    return Limits(
        remediation=settings.remediation_limit,
        exclusion_seconds=settings.exclusion_seconds,
        progress_seconds=settings.progress_seconds,
        backends=frozenset(name for name, on in asked.items() if on),
    )
