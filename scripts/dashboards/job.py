"""One job: its steps, what slows it, what its ranks wait for, how well it is seen."""

from __future__ import annotations

from typing import Any

from scripts.dashboards.panels import JOB, Panel, dashboard, quantile, stat, table, variable

VARIABLES = [
    variable("namespace", "label_values(megatronapp_job_slowdown_ratio, namespace)"),
    variable("training_job", 'label_values(megatronapp_job_slowdown_ratio{namespace=~"$namespace"}, training_job)'),
]


def build() -> dict[str, Any]:
    return dashboard("job", "Job", PANELS, VARIABLES)


PANELS = [
    stat("Ranks connected", f"sum(megatronapp_trace_ranks_connected{{{JOB}}})"),
    stat(
        "Slowdown",
        f"max(megatronapp_job_slowdown_ratio{{{JOB}}})",
        thresholds=[(1.02, "orange"), (1.05, "red")],
    ),
    stat("Stands still for", f"max(megatronapp_hang_seconds{{{JOB}}})", unit="s", thresholds=[(1, "red")]),
    stat("Time lost in the last day", f"sum(increase(megatronapp_job_lost_seconds_total{{{JOB}}}[1d]))", unit="s"),
    stat("Failed attempts", f"sum(megatronapp_job_restarts_total{{{JOB}}}) or vector(0)"),
    stat(
        "Clocks agree within",
        f'max(megatronapp_clock_residual_seconds{{{JOB}, scope="used", quantile="0.9"}})',
        unit="s",
        thresholds=[(0.001, "orange")],
    ),
    Panel(
        "Step time",
        [
            (quantile(0.5, "megatronapp_step_duration_seconds", "training_job", JOB), "{{training_job}} median"),
            (quantile(0.99, "megatronapp_step_duration_seconds", "training_job", JOB), "{{training_job}} 99 %"),
        ],
        unit="s",
    ),
    Panel("Slowdown", [(f"megatronapp_job_slowdown_ratio{{{JOB}}}", "{{namespace}}/{{training_job}}")]),
    table("Who is slow", f"megatronapp_suspect_info{{{JOB}}}", width=24),
    Panel(
        "Slow ranks: the job's step time with them over without them",
        [(f"megatronapp_rank_slowdown_ratio{{{JOB}}}", "rank {{rank}} on {{node}}")],
    ),
    Panel(
        "Time lost, by cause",
        [(f"sum by (cause) (rate(megatronapp_job_lost_seconds_total{{{JOB}}}[$__rate_interval]))", "{{cause}}")],
        unit="percentunit",
    ),
    Panel(
        "Waits in collectives, 90 %",
        [(quantile(0.9, "megatronapp_collective_wait_seconds", "group_kind, op", JOB), "{{group_kind}} {{op}}")],
        unit="s",
    ),
    Panel(
        "Operations between a communicator's first and last member",
        [(f"megatronapp_progress_lag_operations{{{JOB}}}", "{{group_kind}}")],
    ),
    Panel("Pipeline bubble", [(f"megatronapp_pipeline_bubble_ratio{{{JOB}}}", "{{training_job}}")], unit="percentunit"),
    Panel(
        "MegaDPP: choosing an operation",
        [(f"megatronapp_pipeline_decision_seconds{{{JOB}}}", "{{training_job}}")],
        unit="s",
        thresholds=[(0.0001, "orange")],
    ),
    Panel(
        "Activations in flight on a pipeline stage",
        [
            (f"megatronapp_pipeline_peak_activations{{{JOB}}}", "held at most"),
            (
                f"megatronapp_pipeline_stock_peak_activations{{{JOB}}}",
                "megatron-core's schedule (default cap)",
            ),
        ],
    ),
    Panel(
        "MegaFBD: waiting for the other role, in a step",
        [(f"megatronapp_fbd_wait_seconds{{{JOB}}}", "{{role}} stage {{stage}}, for {{waits_for}}")],
        unit="s",
    ),
    Panel(
        "MegaFBD: slots held when a microbatch begins",
        [(f"megatronapp_fbd_slots_held{{{JOB}}}", "{{role}} stage {{stage}}")],
    ),
    Panel(
        "Speed of suspected links",
        [(f"megatronapp_link_bandwidth_bytes_per_second{{{JOB}}}", "{{src_node}} → {{dst_node}} ({{kind}})")],
        unit="Bps",
    ),
    Panel(
        "NCCL: bus bandwidth, the slowest communicator beside the median one",
        [
            (
                f"megatronapp_nccl_bus_bandwidth_bytes_per_second{{{JOB}}}",
                "{{group_kind}} {{op}} {{algorithm}}, {{size}}: {{of}}",
            )
        ],
        unit="Bps",
    ),
    Panel(
        "NCCL: speed of messages between nodes, the slowest",
        [(f"megatronapp_nccl_link_bandwidth_bytes_per_second{{{JOB}}}", "{{src_node}} → {{dst_node}}")],
        unit="Bps",
    ),
    Panel(
        "NCCL: what ranks send while proxies wait for it or ports are busy, the slowest",
        [(f"megatronapp_nccl_send_bytes_per_second{{{JOB}}}", "rank {{rank}} on {{node}}")],
        unit="Bps",
    ),
    Panel(
        "NCCL: what proxies wait for in a step",
        [(f"megatronapp_nccl_proxy_wait_seconds{{{JOB}}}", "{{waits_for}}")],
        unit="s",
    ),
    Panel(
        "NCCL: who begins last, and how long others wait in a step",
        [
            (
                f"megatronapp_nccl_late_start_seconds{{{JOB}}}",
                "rank {{rank}} on {{node}}, persistent: {{persistent}}",
            )
        ],
        unit="s",
    ),
    Panel("Corrections of nodes' clocks", [(f"megatronapp_clock_offset_seconds{{{JOB}}}", "{{node}}")], unit="s"),
    Panel(
        "Spans",
        [
            (f"sum(rate(megatronapp_trace_events_received_total{{{JOB}}}[$__rate_interval]))", "received"),
            (f"sum(rate(megatronapp_trace_events_dropped_total{{{JOB}}}[$__rate_interval]))", "lost"),
            (f"sum(rate(megatronapp_trace_operations_lost_total{{{JOB}}}[$__rate_interval]))", "NCCL operations lost"),
        ],
        unit="ops",
    ),
    Panel(
        "Messages of ranks, by kind",
        [(f"sum by (kind) (rate(megatronapp_trace_messages_total{{{JOB}}}[$__rate_interval]))", "{{kind}}")],
        unit="ops",
    ),
]
