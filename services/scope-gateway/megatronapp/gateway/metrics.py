"""What the gateway tells Prometheus of itself."""

from __future__ import annotations

import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from megatronapp.core.job_series import JobSeries
from megatronapp.core.metrics import JOB_LABELS


class GatewayMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self.series = JobSeries(registry)
        self.scope = ScopeMetrics(registry)
        self.requests = Histogram(
            "megatronapp_gateway_request_seconds",
            "Time to answer a request, to its first byte.",
            ["method", "operation", "status"],
            registry=registry,
        )
        self.messages = Counter(
            "megatronapp_gateway_messages_total", "Messages read from the bus.", ["topic"], registry=registry
        )
        self.bad_messages = Counter(
            "megatronapp_gateway_bad_messages_total",
            "Bus messages that could not be decoded.",
            ["topic"],
            registry=registry,
        )
        self.quarantined = Counter(
            "megatronapp_gateway_quarantined_records_total",
            "Records set aside because they can't be processed.",
            JOB_LABELS,
            registry=registry,
        )
        self.series.hold(self.quarantined)
        self.hidden_jobs = Gauge(
            "megatronapp_gateway_hidden_jobs", "Jobs that can't be shown because of their data.", registry=registry
        )
        self.viewers = Gauge("megatronapp_gateway_viewers", "Event streams that are open.", registry=registry)
        self.live_dropped = Counter(
            "megatronapp_gateway_live_dropped_total",
            "Live messages that a slow viewer will never get.",
            ["topic"],
            registry=registry,
        )
        self.jobs = Gauge("megatronapp_gateway_jobs", "Jobs that are listed.", registry=registry)
        self.notifications = Counter(
            "megatronapp_gateway_notifications_total",
            "Messages to receivers; outcome: sent, failed.",
            ["receiver", "outcome"],
            registry=registry,
        )
        self.incidents = Gauge(
            "megatronapp_gateway_incidents", "Incidents that are open.", ["level"], registry=registry
        )


class ScopeMetrics:
    """Of MegaScope's half of the gateway."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.ranks = Gauge(
            "megatronapp_gateway_scope_ranks", "Ranks that are connected to MegaScope.", registry=registry
        )
        self.viewers = Gauge("megatronapp_gateway_scope_viewers", "Viewers of MegaScope.", registry=registry)
        self.frames = Counter("megatronapp_gateway_scope_frames_total", "Frames that ranks sent.", registry=registry)
        self.frames_dropped = Counter(
            "megatronapp_gateway_scope_frames_dropped_total",
            "Frames that were not shown; reason: stale, malformed, unfit, slow_viewer.",
            ["reason"],
            registry=registry,
        )
        self.refused_streams = Counter(
            "megatronapp_gateway_scope_refused_streams_total",
            "Streams of ranks that were refused or ended, by reason.",
            ["reason"],
            registry=registry,
        )
        self.refused_events = Counter(
            "megatronapp_gateway_scope_refused_events_total", "Events of ranks that were dropped.", registry=registry
        )
        self.closed = Counter(
            "megatronapp_gateway_scope_closed_total",
            "Connections of viewers that the gateway ended, by close code.",
            ["code"],
            registry=registry,
        )


class RequestTimer:
    """Observes each request under its operation's name, so that the number of series is bounded."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin = time.perf_counter()

        async def observed(message: Message) -> None:
            if message["type"] == "http.response.start":
                route: BaseRoute | None = scope.get("route")
                labels = (scope["method"], getattr(route, "name", "static"), str(message["status"]))
                self._metrics.requests.labels(*labels).observe(time.perf_counter() - begin)
            await send(message)

        await self._app(scope, receive, observed if scope["type"] == "http" else send)
