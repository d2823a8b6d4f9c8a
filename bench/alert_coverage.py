"""Which faults of a cluster the alerts catch: `python -m bench.alert_coverage [--draws 10]`.

Exporters' series of a faulty device beside a healthy one are played through all rules by promtool, each fault several
times with its beginning and severity drawn. A fault is caught when within three quarters of an hour an alert fires
that names the faulty node, volume or service. An alert that names the healthy one is counted as wrong. It
prints a table by class, and ends with 1 below the goal.

Severities are drawn from what harms a job, not from what the rules ask for.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

RULES = Path(__file__).parents[1] / "deploy/helm/megatronapp/files/alerts"
MINUTES = 70
BEGINS = (5, 25)
"""Minutes, at the earliest and at the latest."""
GOAL = 0.95

Series = dict[str, str]
Draw = Callable[[random.Random, int], Series]
NODE = "node_uname_info{instance='a',nodename='n1'}"


@dataclass(frozen=True)
class Fault:
    kind: str
    """GPU, NIC, link, node or storage."""
    name: str
    draw: Draw
    named: str = 'node="n1"'
    """The labels of an alert that names it."""


def to(healthy: float, faulty: float) -> Callable[[int], str]:
    """A gauge that changes."""
    return lambda begin: f"{healthy}+0x{begin} {faulty}+0x{MINUTES - begin}"


def grows(per_minute: float) -> Callable[[int], str]:
    """A counter that stood still."""
    return lambda begin: f"7+0x{begin} 7+{per_minute}x{MINUTES - begin}"


def between(low: float, high: float, of: Callable[[float], Callable[[int], str]]) -> Callable[[random.Random], Any]:
    return lambda chance: of(round(chance.uniform(low, high), 3))


def one(series: str, values: Callable[[int], str] | Callable[[random.Random], Any], drawn: bool = False) -> Draw:
    """A fault that one series shows. drawn: values are drawn first."""

    def draw(chance: random.Random, begin: int) -> Series:
        values_at: Any = values(chance) if drawn else values  # type: ignore[arg-type]
        found = {series: values_at(begin)}
        if series.startswith("node_"):
            found[NODE] = "1x70"
        return found

    return draw


def several(still: Series, changing: Draw) -> Draw:
    return lambda chance, begin: still | changing(chance, begin)


def dcgm(name: str) -> str:
    return f"DCGM_FI_{name}{{Hostname='n1',UUID='GPU-1',gpu='1'}}"


def on(name: str, labels: str = "") -> str:
    return f"{name}{{instance='a'{',' + labels if labels else ''}}}"


PORT = "device='mlx5_0',port='1'"
VOLUME, SERVICE = 'persistentvolumeclaim="n1"', 'job="n1"'
CAPACITY = {"kubelet_volume_stats_capacity_bytes{namespace='ml',persistentvolumeclaim='n1'}": "100x70"}
ERRORS = ("node_network_receive_errs_total", "node_network_transmit_errs_total")
SYMBOLS = ("node_infiniband_symbol_error_total", "node_infiniband_port_errors_received_total")
DOWN, RECOVERY = "node_infiniband_link_downed_total", "node_infiniband_link_error_recovery_total"
CPUS = {on("node_cpu_seconds_total", f"cpu='{cpu}',mode='idle'"): "0+6x70" for cpu in range(8)}
MEMORY = {on("node_memory_MemTotal_bytes"): "100x70"}
ROOT = "mountpoint='/',fstype='ext4'"
WITH_GPUS = {"kube_node_status_allocatable{node='n1',resource='nvidia_com_gpu'}": "8x70"}
OTHER_GPU = {"DCGM_FI_DEV_GPU_TEMP{Hostname='n2',UUID='GPU-9',gpu='0'}": "50x70"}
READS = {on("node_disk_reads_completed_total", "device='sda'"): "0+1200x70"}
REQUESTS = {"minio_s3_requests_total{job='n1',api='getobject'}": "0+600x70"}
TOTAL = {"minio_cluster_capacity_usable_total_bytes{job='n1'}": "100x70"}


def npu(name: str) -> str:
    return f"{name}{{node='n1',id='3'}}"


def drawn(series: str, values: Callable[[random.Random], Any]) -> Draw:
    return one(series, values, drawn=True)


FAULTS = (
    Fault("GPU", "XID", drawn(dcgm("DEV_XID_ERRORS"), lambda c: to(0, c.choice((31, 48, 63, 74, 79, 94, 95))))),
    Fault("GPU", "uncorrectable ECC error", one(dcgm("DEV_ECC_DBE_VOL_TOTAL"), to(0, 1))),
    Fault("GPU", "rows remapped", one(dcgm("DEV_UNCORRECTABLE_REMAPPED_ROWS"), to(2, 3))),
    Fault("GPU", "row remap failed", one(dcgm("DEV_ROW_REMAP_FAILURE"), to(0, 1))),
    Fault("GPU", "hot", drawn(dcgm("DEV_GPU_TEMP"), between(86, 95, lambda v: to(60, v)))),
    Fault("GPU", "hot memory", drawn(dcgm("DEV_MEMORY_TEMP"), between(96, 105, lambda v: to(70, v)))),
    Fault("GPU", "throttled by heat", drawn(dcgm("DEV_THERMAL_VIOLATION"), between(10, 1e6, grows))),
    Fault("GPU", "PCIe replays", drawn(dcgm("DEV_PCIE_REPLAY_COUNTER"), between(30, 6000, grows))),
    Fault("GPU", "NVLink errors", drawn(dcgm("DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL"), between(5, 6000, grows))),
    Fault(
        "GPU",
        "gone",
        several(
            {"kube_node_status_capacity{node='n1',resource='nvidia_com_gpu'}": "8x70", dcgm("DEV_GPU_TEMP"): "50x70"},
            one("kube_node_status_allocatable{node='n1',resource='nvidia_com_gpu'}", to(8, 7)),
        ),
    ),
    Fault(
        "GPU",
        "exporter gone",
        several(WITH_GPUS | OTHER_GPU, lambda _, begin: {dcgm("DEV_GPU_TEMP"): f"50x{begin} stale"}),
    ),
    Fault("GPU", "NPU unhealthy", one(npu("npu_chip_info_health_status"), to(1, 0))),
    Fault("GPU", "NPU hot", drawn(npu("npu_chip_info_hbm_temperature"), between(86, 100, lambda v: to(60, v)))),
    Fault("GPU", "NPU memory error", one(npu("npu_chip_info_hbm_ecc_total_double_bit_error_cnt"), to(0, 1))),
    Fault("NIC", "port down", drawn(on("node_infiniband_state_id", PORT), lambda c: to(4, c.choice((1, 2, 3))))),
    Fault(
        "NIC", "RoCE discards", drawn(on("node_ethtool_received_discards_phy", "device='e'"), between(100, 1e5, grows))
    ),
    *(
        Fault(
            "NIC",
            f"Ethernet {'receive' if bad == ERRORS[0] else 'send'} errors",
            several(
                {on(name, "device='eth0'"): "0+0x70" for name in ERRORS},
                drawn(on(bad, "device='eth0'"), between(600, 1e5, grows)),
            ),
        )
        for bad in ERRORS
    ),
    Fault("NIC", "carrier flaps", one(on("node_network_carrier_down_changes_total", "device='eth0'"), to(0, 4))),
    Fault("NIC", "NPU port down", one(npu("npu_chip_info_link_status"), to(1, 0))),
    Fault("NIC", "NPU unreachable", one(npu("npu_chip_info_network_status"), to(1, 0))),
    *(
        Fault(
            "link",
            what,
            several({on(name, PORT): "0+0x70" for name in (DOWN, RECOVERY)}, one(on(bad, PORT), to(0, 4))),
        )
        for bad, what in ((DOWN, "flaps"), (RECOVERY, "recovers from errors"))
    ),
    *(
        Fault(
            "link",
            what,
            several({on(name, PORT): "0+0x70" for name in SYMBOLS}, drawn(on(bad, PORT), between(600, 1e6, grows))),
        )
        for bad, what in zip(SYMBOLS, ("symbol errors", "received errors"), strict=True)
    ),
    Fault("link", "congested", drawn(on("node_infiniband_port_transmit_wait_total", PORT), between(7e9, 6e10, grows))),
    Fault(
        "link",
        "NPU errors",
        several(
            {npu("npu_chip_roce_tx_err_pkt_num"): "0+0x70"},
            drawn(npu("npu_chip_roce_rx_err_pkt_num"), between(10, 1e4, grows)),
        ),
    ),
    Fault("node", "not ready", one("kube_node_status_condition{node='n1',condition='Ready',status='true'}", to(1, 0))),
    Fault(
        "node",
        "memory low",
        several(MEMORY, drawn(on("node_memory_MemAvailable_bytes"), between(1, 8, lambda v: to(50, v)))),
    ),
    Fault("node", "out of memory", one(on("node_vmstat_oom_kill"), to(0, 1))),
    Fault(
        "node",
        "disk full",
        several(
            {on("node_filesystem_size_bytes", ROOT): "100x70"},
            drawn(on("node_filesystem_avail_bytes", ROOT), between(0.5, 8, lambda v: to(50, v))),
        ),
    ),
    Fault("node", "read-only", one(on("node_filesystem_readonly", ROOT), to(0, 1))),
    Fault("node", "clock off", drawn(on("node_timex_offset_seconds"), between(0.06, 5, lambda v: to(0, v)))),
    Fault("node", "clock not synchronised", one(on("node_timex_sync_status"), to(1, 0))),
    Fault("node", "memory error", one(on("node_edac_uncorrectable_errors_total", "controller='0'"), to(0, 1))),
    Fault(
        "node", "CPU throttled", drawn(on("node_cpu_package_throttles_total", "package='0'"), between(60, 6e4, grows))
    ),
    Fault("node", "CPU saturated", several(CPUS, drawn(on("node_load5"), between(17, 200, lambda v: to(1, v))))),
    Fault("node", "powered off", one("ipmi_chassis_power_state{node='n1'}", to(1, 0))),
    Fault("node", "chassis hot", one("ipmi_temperature_state{node='n1',name='Inlet'}", to(0, 2))),
    Fault("node", "fan", drawn("ipmi_fan_speed_state{node='n1',name='FAN3'}", lambda c: to(0, c.choice((1, 2))))),
    Fault("node", "power supply", one("ipmi_sensor_state{node='n1',name='PS1',type='Power Supply'}", to(0, 2))),
    Fault("node", "management controller", one("ipmi_up{node='n1',collector='ipmi'}", to(1, 0))),
    Fault(
        "storage",
        "volume full",
        several(
            CAPACITY,
            drawn(
                "kubelet_volume_stats_available_bytes{namespace='ml',persistentvolumeclaim='n1'}",
                between(0.5, 9, lambda v: to(50, v)),
            ),
        ),
        VOLUME,
    ),
    *(
        Fault(
            "storage",
            f"claim {phase}",
            one(
                f"kube_persistentvolumeclaim_status_phase{{namespace='ml',persistentvolumeclaim='n1',phase='{phase}'}}",
                to(0, 1),
            ),
            VOLUME,
        )
        for phase in ("Pending", "Lost")
    ),
    Fault(
        "storage",
        "disk slow",
        several(READS, drawn(on("node_disk_read_time_seconds_total", "device='sda'"), between(130, 2400, grows))),
    ),
    Fault("storage", "file system error", one(on("node_filesystem_device_error", "mountpoint='/data'"), to(0, 1))),
    Fault("storage", "Ceph in error", one("ceph_health_status", to(0, 2)), 'alertname="CephUnhealthy"'),
    Fault("storage", "Ceph OSD down", one("ceph_osd_up{ceph_daemon='osd.1'}", to(1, 0)), 'alertname="CephDegraded"'),
    Fault("storage", "MinIO without quorum", one("minio_cluster_health_status{job='n1'}", to(1, 0)), SERVICE),
    Fault("storage", "MinIO server off", one("minio_cluster_nodes_offline_total{job='n1'}", to(0, 1)), SERVICE),
    Fault("storage", "MinIO drive off", one("minio_cluster_drive_offline_total{job='n1'}", to(0, 1)), SERVICE),
    Fault(
        "storage",
        "MinIO full",
        several(
            TOTAL,
            drawn("minio_cluster_capacity_usable_free_bytes{job='n1'}", between(0.5, 9, lambda v: to(50, v))),
        ),
        SERVICE,
    ),
    Fault(
        "storage",
        "MinIO errors",
        several(
            REQUESTS,
            drawn("minio_s3_requests_5xx_errors_total{job='n1',api='getobject'}", between(8, 600, grows)),
        ),
        SERVICE,
    ),
)


def healthy(series: Series) -> Series:
    """The same of a neighbour that has nothing: its values stay as they begin."""
    found = {}
    for name, values in series.items():
        other = name.replace("'a'", "'b'").replace("'n1'", "'n3'").replace("GPU-1", "GPU-3")
        if other != name and other not in series:
            begin = values.split()[0]
            found[other] = re.sub(r"x\d+$", f"x{MINUTES}", begin)
    return found


def case(fault: Fault, number: int, chance: random.Random) -> dict[str, Any]:
    series = fault.draw(chance, chance.randint(*BEGINS))
    everything = {name.replace("'", '"'): values for name, values in (healthy(series) | series).items()}
    name = f"{FAULTS.index(fault)}:{number}"
    firing = f'alertstate="firing", scope!~"platform|monitoring", test!="{name}"'  # promtool repeats the query alone
    wrong = fault.named.replace('"n1"', '"n3"')
    expected = [{"labels": "{}", "value": 1}]

    def fired(labels: str) -> str:
        return f"(count(count_over_time(ALERTS{{{firing}, {labels}}}[{MINUTES}m])) or vector(0)) > bool 0"

    checks = [{"expr": fired(fault.named), "eval_time": f"{MINUTES - 1}m", "exp_samples": expected}]
    if wrong != fault.named:
        none = [{"labels": "{}", "value": 0}]
        checks.append({"expr": fired(wrong), "eval_time": f"{MINUTES - 1}m", "exp_samples": none})
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in everything.items()],
        "promql_expr_test": checks,
    }


def play(tests: list[dict[str, Any]]) -> tuple[set[str], set[str]]:
    """Names of the tests whose fault was missed, and of those in which the healthy one was named."""
    program = shutil.which("promtool")
    if program is None:
        raise SystemExit("promtool is not installed; run: make setup-system")
    files = [str(path) for path in sorted(RULES.glob("*.yaml"))]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "test.yaml"
        file.write_text(yaml.safe_dump({"rule_files": files, "evaluation_interval": "1m", "tests": tests}))
        done = subprocess.run([program, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    failed = re.findall(r'test!=\\?"([\d:]+)\\?".*\n\s*exp: \{\} ([01])', said)
    if done.returncode and not failed:
        raise SystemExit(f"promtool can't read the tests: {said}")
    missed, wrong = ({name for name, expected in failed if expected == value} for value in "10")
    return missed, wrong


def coverage(draws: int, seed: int) -> dict[Fault, tuple[int, int, int]]:
    """Of each fault how often it was played, caught, and somebody else named."""
    chance = random.Random(seed)
    tests = [case(fault, number, chance) for fault in FAULTS for number in range(draws)]
    missed, wrong = play(tests)
    by_fault = {fault: f"{index}:" for index, fault in enumerate(FAULTS)}
    return {fault: (draws, draws - _of(missed, prefix), _of(wrong, prefix)) for fault, prefix in by_fault.items()}


def _of(names: set[str], prefix: str) -> int:
    return sum(name.startswith(prefix) for name in names)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.alert_coverage", description=__doc__)
    parser.add_argument("--draws", type=int, default=10, help="of each fault")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found = coverage(given.draws, given.seed)
    played, caught, wrong = (Counter[str]() for _ in range(3))
    for fault, (times, hits, others) in found.items():
        played[fault.kind] += times
        caught[fault.kind] += hits
        wrong[fault.kind] += others
        if hits < times:
            print(f"{fault.kind}, {fault.name}: {hits} of {times}")
    print("| class | kinds | played | caught | | healthy ones named |\n|---|---|---|---|---|---|")
    for kind in played:
        kinds = sum(fault.kind == kind for fault in FAULTS)
        share = caught[kind] / played[kind]
        print(f"| {kind} | {kinds} | {played[kind]} | {caught[kind]} | {share:.1%} | {wrong[kind]} |")
    total = caught.total() / played.total()
    print(f"| all | {len(FAULTS)} | {played.total()} | {caught.total()} | {total:.1%} | {wrong.total()} |")
    return 0 if total > GOAL and not wrong.total() else 1


if __name__ == "__main__":
    raise SystemExit(main())
