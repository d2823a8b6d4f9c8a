"""All jobs: who is slow, what it costs, what is done about it."""

from __future__ import annotations

from typing import Any

from scripts.dashboards.panels import Panel, dashboard, quantile, stat, table

WARN = [(1.0, "orange")]


def build() -> dict[str, Any]:
    return dashboard("fleet", "Fleet", PANELS)


PANELS = [
    stat("Jobs that train", "count(megatronapp_job_slowdown_ratio) or vector(0)"),
    stat("Jobs that hang", "count(megatronapp_hang_seconds > 0) or vector(0)", thresholds=[(1, "red")]),
    stat(
        "Open findings that page",
        'count(megatronapp_suspect_info{page="true"}) or vector(0)',
        thresholds=WARN,
    ),
    stat(
        "Nodes named by findings",
        'count(count by (node) (megatronapp_suspect_info{node!=""})) or vector(0)',
        thresholds=WARN,
    ),
    stat(
        "Training time lost now",
        "1 - 1 / avg(megatronapp_job_slowdown_ratio)",
        unit="percentunit",
        thresholds=[(0.02, "orange"), (0.1, "red")],
        description="Mean over jobs of the share of their step time that is lost by what was found.",
    ),
    stat("Open P0 and P1 incidents", 'sum(megatronapp_gateway_incidents{level=~"P0|P1"})', thresholds=[(1, "red")]),
    table(
        "Jobs, the slowest first",
        "sort_desc(megatronapp_job_slowdown_ratio)",
        description="1.2: without what was found the job would be 1.2 times as fast.",
    ),
    table("Who is slow", "megatronapp_suspect_info"),
    Panel(
        "Time lost, by cause",
        [("sum by (cause) (rate(megatronapp_job_lost_seconds_total[$__rate_interval]))", "{{cause}}")],
        unit="percentunit",
        description="Of a second of training, summed over jobs.",
    ),
    Panel(
        "Slowdown of jobs",
        [("megatronapp_job_slowdown_ratio", "{{namespace}}/{{training_job}}")],
        thresholds=[(1.05, "orange")],
    ),
    Panel(
        "Findings opened an hour, by cause",
        [("sum by (cause) (increase(megatronapp_detections_total[1h]))", "{{cause}}")],
    ),
    Panel(
        "From the first slow step to the finding",
        [
            (quantile(0.5, "megatronapp_detection_latency_seconds", ""), "median"),
            (quantile(0.9, "megatronapp_detection_latency_seconds", ""), "90 %"),
        ],
        unit="s",
    ),
    Panel("Jobs by phase", [("max by (phase) (megatronapp_jobs)", "{{phase}}")]),
    Panel(
        "Restarts and moves an hour",
        [
            ("sum(increase(megatronapp_job_restarts_total[1h]))", "failed attempts"),
            ("sum(increase(megatronapp_job_remediations_total[1h]))", "moves away from slow nodes"),
        ],
    ),
]
