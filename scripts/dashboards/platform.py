"""The platform itself: is it there, does it keep up, does it reach people."""

from __future__ import annotations

from typing import Any

from scripts.dashboards.panels import Panel, dashboard, quantile, stat


def build() -> dict[str, Any]:
    return dashboard("platform", "Platform", PANELS)


def up(component: str) -> Panel:
    query = f'sum(up{{part_of="megatronapp", component="{component}"}}) or vector(0)'
    return stat(f"{component.capitalize()}s up", query)


PANELS = [
    *(up(component) for component in ("collector", "detector", "gateway", "operator")),
    stat(
        "Disks that take no data", "count(megatronapp_trace_disk_writable == 0) or vector(0)", thresholds=[(1, "red")]
    ),
    stat("Viewers", "sum(megatronapp_gateway_viewers)"),
    Panel(
        "Spans taken in",
        [("sum by (instance) (rate(megatronapp_trace_events_received_total[$__rate_interval]))", "{{instance}}")],
        unit="ops",
    ),
    Panel(
        "From arrival to the journal, 99 %",
        [(quantile(0.99, "megatronapp_trace_ingest_lag_seconds", "instance"), "{{instance}}")],
        unit="s",
        thresholds=[(1, "red")],
    ),
    Panel(
        "Batches, and messages that came twice",
        [
            ("sum(rate(megatronapp_trace_batches_total[$__rate_interval]))", "batches"),
            ("sum(rate(megatronapp_trace_duplicates_total[$__rate_interval]))", "duplicates"),
        ],
        unit="ops",
    ),
    Panel(
        "Spans lost, streams refused",
        [
            ("sum by (reason) (rate(megatronapp_trace_events_dropped_total[$__rate_interval]))", "lost: {{reason}}"),
            ("sum by (reason) (rate(megatronapp_trace_refused_total[$__rate_interval]))", "refused: {{reason}}"),
        ],
        unit="ops",
    ),
    Panel(
        "Disk",
        [
            ("megatronapp_trace_journal_bytes", "journal {{instance}}"),
            ("megatronapp_trace_store_bytes", "store {{instance}}"),
        ],
        unit="bytes",
    ),
    Panel("Messages that wait for the bus", [("megatronapp_trace_bus_backlog_messages", "{{instance}}")]),
    Panel(
        "Time to answer, 99 %",
        [(quantile(0.99, "megatronapp_gateway_request_seconds", "operation"), "{{operation}}")],
        unit="s",
    ),
    Panel(
        "Answers by status",
        [("sum by (status) (rate(megatronapp_gateway_request_seconds_count[$__rate_interval]))", "{{status}}")],
        unit="reqps",
    ),
    Panel(
        "Messages of the bus",
        [
            ("sum by (topic) (rate(megatronapp_gateway_messages_total[$__rate_interval]))", "{{topic}}"),
            (
                "sum by (topic) (rate(megatronapp_gateway_bad_messages_total[$__rate_interval]))",
                "unreadable: {{topic}}",
            ),
        ],
        unit="ops",
    ),
    Panel("Jobs that the gateway lists", [("max by (instance) (megatronapp_gateway_jobs)", "{{instance}}")]),
    Panel("Open incidents", [("max by (level) (megatronapp_gateway_incidents)", "{{level}}")]),
    Panel(
        "Notifications an hour",
        [
            (
                "sum by (receiver, outcome) (increase(megatronapp_gateway_notifications_total[1h]))",
                "{{receiver}} {{outcome}}",
            )
        ],
    ),
    Panel(
        "Time to bring a job up to date",
        [
            (quantile(0.5, "megatronapp_operator_reconcile_seconds", ""), "median"),
            (quantile(0.99, "megatronapp_operator_reconcile_seconds", ""), "99 %"),
        ],
        unit="s",
    ),
    Panel(
        "Operator",
        [
            ("sum(megatronapp_operator_leader)", "leaders"),
            ("max(megatronapp_operator_queue_length)", "jobs that wait"),
            ("max(megatronapp_operator_breaker_open)", "circuit breaker open"),
        ],
    ),
]
