"""All metric names of the platform, in one list; a test compares it with what the services expose.

Alerts and dashboards may use these names and those of the exporters that docs/monitoring.md names, and no others.
Labels `training_job` and `namespace` name the job: `job` belongs to Prometheus.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

JOB_LABELS = ("training_job", "namespace")


def job_labels(job: str) -> dict[str, str]:
    """`<namespace>/<name>` as labels."""
    namespace, _, name = job.partition("/")
    return {"training_job": name, "namespace": namespace}


class Metric(NamedTuple):
    name: str
    """As in the exposition: a counter ends in `_total`."""
    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str


METRICS: dict[str, tuple[Metric, ...]] = {
    "collector": (
        Metric("megatronapp_trace_events_received_total", "counter", JOB_LABELS, "Spans accepted"),
        Metric("megatronapp_trace_events_dropped_total", "counter", (*JOB_LABELS, "reason"), "Spans lost, by reason"),
        Metric("megatronapp_trace_operations_lost_total", "counter", JOB_LABELS, "Operations of NCCL without a record"),
        Metric("megatronapp_trace_batches_total", "counter", JOB_LABELS, "Batches of spans accepted"),
        Metric("megatronapp_trace_messages_total", "counter", (*JOB_LABELS, "kind"), "Messages journalled, by kind"),
        Metric("megatronapp_trace_duplicates_total", "counter", JOB_LABELS, "Messages that had arrived before"),
        Metric("megatronapp_trace_refused_total", "counter", ("reason",), "Streams ended by the collector, by reason"),
        Metric(
            "megatronapp_trace_quarantined_records_total", "counter", JOB_LABELS, "Records that could not be processed"
        ),
        Metric("megatronapp_trace_ingest_lag_seconds", "histogram", JOB_LABELS, "From arrival to the journal"),
        Metric("megatronapp_trace_ranks_connected", "gauge", JOB_LABELS, "Ranks with an open stream"),
        Metric(
            "megatronapp_clock_residual_seconds",
            "gauge",
            (*JOB_LABELS, "scope", "quantile"),
            "Disagreement of clocks on collectives left out of the fit; scope: used, raw",
        ),
        Metric(
            "megatronapp_clock_offset_seconds", "gauge", (*JOB_LABELS, "node"), "Fitted correction of a node's clock"
        ),
        Metric("megatronapp_trace_journal_bytes", "gauge", (), "Size of the journal"),
        Metric("megatronapp_trace_store_bytes", "gauge", (), "Size of the store"),
        Metric(
            "megatronapp_trace_expired_bytes_total",
            "counter",
            ("reason",),
            "Traces deleted from the store; reason: age, size",
        ),
        Metric(
            "megatronapp_trace_disk_writable",
            "gauge",
            (),
            "1: journal and store take data; 0: the disk is full or broken",
        ),
        Metric("megatronapp_trace_bus_backlog_messages", "gauge", (), "Messages that wait for the bus"),
    ),
    "detector": (
        Metric(
            "megatronapp_detector_quarantined_records_total",
            "counter",
            JOB_LABELS,
            "Records set aside because they can't be judged.",
        ),
        Metric(
            "megatronapp_detector_suspended",
            "gauge",
            JOB_LABELS,
            "1 while a job is not judged because its records cause errors.",
        ),
        Metric(
            "megatronapp_detector_dropped_summaries_total",
            "counter",
            (*JOB_LABELS, "reason"),
            "Summaries of the newest attempt's steps that were not judged: late, far ahead, or not understood.",
        ),
        Metric("megatronapp_step_duration_seconds", "histogram", JOB_LABELS, "Duration of a training step."),
        Metric(
            "megatronapp_collective_wait_seconds",
            "histogram",
            (*JOB_LABELS, "group_kind", "op"),
            "Mean time in a step that members wait for the last one.",
        ),
        Metric(
            "megatronapp_job_lost_seconds_total",
            "counter",
            (*JOB_LABELS, "cause"),
            "Time that the job lost by what was found.",
        ),
        Metric("megatronapp_detections_total", "counter", (*JOB_LABELS, "cause"), "Findings opened."),
        Metric("megatronapp_findings_refuted_total", "counter", ("kind",), "Findings that a person has called none."),
        Metric(
            "megatronapp_detection_latency_seconds", "histogram", JOB_LABELS, "From the first slow step to the finding."
        ),
        Metric(
            "megatronapp_detector_owner", "gauge", (*JOB_LABELS, "replica"), "1 for each job that this replica judges."
        ),
        Metric(
            "megatronapp_job_slowdown_ratio",
            "gauge",
            JOB_LABELS,
            "The job's step time over what it would be without what was found.",
        ),
        Metric(
            "megatronapp_rank_slowdown_ratio",
            "gauge",
            (*JOB_LABELS, "rank", "node"),
            "The job's step time with this slow rank over without it.",
        ),
        Metric(
            "megatronapp_rank_effect_ratio",
            "gauge",
            (*JOB_LABELS, "rank", "node", "signal"),
            "The rank's time over the expected one.",
        ),
        Metric(
            "megatronapp_rank_evidence_log10",
            "gauge",
            (*JOB_LABELS, "rank", "node", "signal"),
            "Weight of the evidence against the rank.",
        ),
        Metric(
            "megatronapp_suspect_info",
            "gauge",
            (*JOB_LABELS, "rank", "node", "gpu_uuid", "kind", "cause", "page"),
            "1 for each open finding.",
        ),
        Metric(
            "megatronapp_link_bandwidth_bytes_per_second",
            "gauge",
            (*JOB_LABELS, "src_node", "dst_node", "kind"),
            "Speed of suspected links.",
        ),
        Metric(
            "megatronapp_nccl_bus_bandwidth_bytes_per_second",
            "gauge",
            (*JOB_LABELS, "group_kind", "op", "algorithm", "size", "of"),
            "Bus bandwidth of NCCL's operations, as nccl-tests has it: of the median and of the slowest communicator.",
        ),
        Metric(
            "megatronapp_nccl_link_bandwidth_bytes_per_second",
            "gauge",
            (*JOB_LABELS, "src_node", "dst_node"),
            "Speed of messages between two nodes; the slowest pairs.",
        ),
        Metric(
            "megatronapp_nccl_send_bytes_per_second",
            "gauge",
            (*JOB_LABELS, "rank", "node"),
            "What a rank sends over the network, over the time that proxies wait or ports are busy; the slowest.",
        ),
        Metric(
            "megatronapp_nccl_proxy_wait_seconds",
            "gauge",
            (*JOB_LABELS, "waits_for"),
            "What a rank's proxies wait for in a step, all together: mean.",
        ),
        Metric(
            "megatronapp_nccl_late_start_seconds",
            "gauge",
            (*JOB_LABELS, "rank", "node", "persistent"),
            "What others of its stage waited in a step for a rank that began last; the latest.",
        ),
        Metric(
            "megatronapp_pipeline_bubble_ratio",
            "gauge",
            JOB_LABELS,
            "Share of the pipeline's time in which its stages compute nothing.",
        ),
        Metric(
            "megatronapp_pipeline_decision_seconds",
            "gauge",
            JOB_LABELS,
            "What choosing one operation takes MegaDPP's slowest stage.",
        ),
        Metric(
            "megatronapp_pipeline_peak_activations",
            "gauge",
            JOB_LABELS,
            "Most microbatches x chunks whose activations a stage held.",
        ),
        Metric(
            "megatronapp_pipeline_stock_peak_activations",
            "gauge",
            JOB_LABELS,
            "What a stage of megatron-core's own schedule holds at most.",
        ),
        Metric(
            "megatronapp_fbd_slots_held",
            "gauge",
            (*JOB_LABELS, "role", "stage"),
            "Slots of a backward stage that are held when a microbatch begins: mean.",
        ),
        Metric(
            "megatronapp_fbd_wait_seconds",
            "gauge",
            (*JOB_LABELS, "role", "stage", "waits_for"),
            "A stage's wait for the other role in a step.",
        ),
        Metric(
            "megatronapp_progress_lag_operations",
            "gauge",
            (*JOB_LABELS, "group_kind"),
            "Operations between a communicator's first and last member.",
        ),
        Metric(
            "megatronapp_hang_seconds", "gauge", JOB_LABELS, "Time since anything moved while the job hangs, else 0."
        ),
    ),
    "gateway": (
        Metric(
            "megatronapp_gateway_quarantined_records_total",
            "counter",
            JOB_LABELS,
            "Records set aside because they can't be processed.",
        ),
        Metric("megatronapp_gateway_hidden_jobs", "gauge", (), "Jobs that can't be shown because of their data."),
        Metric(
            "megatronapp_gateway_request_seconds",
            "histogram",
            ("method", "operation", "status"),
            "Time to answer a request, to its first byte.",
        ),
        Metric("megatronapp_gateway_messages_total", "counter", ("topic",), "Messages read from the bus."),
        Metric(
            "megatronapp_gateway_bad_messages_total",
            "counter",
            ("topic",),
            "Bus messages that could not be decoded.",
        ),
        Metric("megatronapp_gateway_viewers", "gauge", (), "Event streams that are open."),
        Metric(
            "megatronapp_gateway_live_dropped_total",
            "counter",
            ("topic",),
            "Live messages that a slow viewer will never get.",
        ),
        Metric("megatronapp_gateway_jobs", "gauge", (), "Jobs that are listed."),
        Metric(
            "megatronapp_gateway_notifications_total",
            "counter",
            ("receiver", "outcome"),
            "Messages to receivers; outcome: sent, failed.",
        ),
        Metric("megatronapp_gateway_incidents", "gauge", ("level",), "Incidents that are open."),
        Metric("megatronapp_gateway_scope_ranks", "gauge", (), "Ranks that are connected to MegaScope."),
        Metric("megatronapp_gateway_scope_viewers", "gauge", (), "Viewers of MegaScope."),
        Metric("megatronapp_gateway_scope_frames_total", "counter", (), "Frames that ranks sent."),
        Metric(
            "megatronapp_gateway_scope_frames_dropped_total",
            "counter",
            ("reason",),
            "Frames that were not shown; reason: stale, malformed, unfit, slow_viewer.",
        ),
        Metric(
            "megatronapp_gateway_scope_refused_streams_total",
            "counter",
            ("reason",),
            "Streams of ranks that were refused or ended, by reason.",
        ),
        Metric("megatronapp_gateway_scope_refused_events_total", "counter", (), "Events of ranks that were dropped."),
        Metric(
            "megatronapp_gateway_scope_closed_total",
            "counter",
            ("code",),
            "Connections of viewers that the gateway ended, by close code.",
        ),
    ),
    "findings-store": (
        Metric("megatronapp_findings_stored", "gauge", (), "Findings in the store."),
        Metric("megatronapp_findings_stored_bytes", "gauge", (), "Size of the findings in the store."),
        Metric(
            "megatronapp_findings_dropped_total",
            "counter",
            ("reason",),
            "Findings that left the store, or could not enter; reason: age, size, unreadable.",
        ),
    ),
    "operator": (
        Metric("megatronapp_operator_reconcile_seconds", "histogram", (), "Time to bring one job up to date."),
        Metric("megatronapp_operator_leader", "gauge", (), "1 on the operator that holds the Lease."),
        Metric(
            "megatronapp_operator_breaker_open", "gauge", (), "1 while remediation is stopped until a person looks."
        ),
        Metric("megatronapp_operator_queue_length", "gauge", (), "Jobs waiting to be reconciled."),
        Metric(
            "megatronapp_operator_reconcile_errors_total",
            "counter",
            (),
            "Reconciles of a job that ended in an unexpected error.",
        ),
        Metric(
            "megatronapp_operator_unreadable_objects_total",
            "counter",
            ("kind",),
            "Objects set aside because they can't be read, by kind.",
        ),
        Metric("megatronapp_job_restarts_total", "counter", JOB_LABELS, "Attempts that failed."),
        Metric(
            "megatronapp_job_remediations_total",
            "counter",
            (*JOB_LABELS, "node"),
            "Nodes that jobs were moved away from.",
        ),
        Metric("megatronapp_jobs", "gauge", ("phase",), "TrainingJobs by phase."),
    ),
}
"""By service; the store of findings is in the detector and in the gateway."""
