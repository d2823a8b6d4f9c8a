"""Ranks that findings name, and the devices and hosts that they run on."""

from __future__ import annotations

from typing import Any

from scripts.dashboards.job import VARIABLES
from scripts.dashboards.panels import JOB, Panel, dashboard, table, variable

RANK = f'{JOB}, rank=~"$rank"'
HOST = '* on (instance) group_left (nodename) node_uname_info{nodename=~"$node"}'
"""Keeps the chosen nodes, and names them."""


def build() -> dict[str, Any]:
    ranks = variable("rank", f"label_values(megatronapp_rank_slowdown_ratio{{{JOB}}}, rank)")
    nodes = variable("node", f"label_values(megatronapp_suspect_info{{{JOB}}}, node)")
    return dashboard("rank", "Rank", PANELS, [*VARIABLES, ranks, nodes])


def gpu(metric: str) -> list[tuple[str, str]]:
    return [(f'{metric}{{Hostname=~"$node"}}', "{{Hostname}} GPU {{gpu}}")]


PANELS = [
    table("Findings", f"megatronapp_suspect_info{{{RANK}}}", width=24, height=6),
    Panel(
        "The rank's time over the expected one, by signal",
        [(f"megatronapp_rank_effect_ratio{{{RANK}}}", "rank {{rank}} {{signal}}")],
    ),
    Panel(
        "Weight of the evidence (log10)",
        [(f"megatronapp_rank_evidence_log10{{{RANK}}}", "rank {{rank}} {{signal}}")],
        description="The higher, the less it can be chance.",
    ),
    Panel(
        "Cost: the job's step time with the rank over without it",
        [(f"megatronapp_rank_slowdown_ratio{{{RANK}}}", "rank {{rank}} on {{node}}")],
    ),
    Panel(
        "Clock of suspects' GPUs",
        [
            (
                'DCGM_FI_DEV_SM_CLOCK{Hostname=~"$node"} * 1e6 '
                "* on (UUID) group_left (rank, training_job) max by (UUID, rank, training_job) "
                f'(label_replace(megatronapp_suspect_info{{{RANK}, gpu_uuid!=""}}, "UUID", "$1", "gpu_uuid", "(.*)"))',
                "{{training_job}} rank {{rank}}",
            )
        ],
        unit="hertz",
        description="A clock lower than its neighbours' is the proof of heat or a power cap.",
    ),
    Panel(
        "Clocks of the nodes' GPUs",
        [(f"{expr} * 1e6", legend) for expr, legend in gpu("DCGM_FI_DEV_SM_CLOCK")],
        unit="hertz",
    ),
    Panel("Temperature", gpu("DCGM_FI_DEV_GPU_TEMP"), unit="celsius", thresholds=[(85, "red")]),
    Panel("Power", gpu("DCGM_FI_DEV_POWER_USAGE"), unit="watt"),
    Panel("Tensor cores active", gpu("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"), unit="percentunit"),
    Panel("Load of the nodes", [(f"node_load5 {HOST}", "{{nodename}}")]),
    Panel(
        "InfiniBand and RoCE, sent",
        [
            (
                f"rate(node_infiniband_port_data_transmitted_bytes_total[$__rate_interval]) {HOST}",
                "{{nodename}} {{device}}/{{port}}",
            )
        ],
        unit="Bps",
    ),
]
