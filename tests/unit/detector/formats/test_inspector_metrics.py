from __future__ import annotations

import pytest

from megatronapp.core.errors import DataError
from megatronapp.detector.analyze import analyze


def write_metrics(folder, microseconds):
    for gpu, times in enumerate(microseconds):
        lines = [
            f'nccl_bus_bandwidth_gbs{{node="n1",gpu="GPU-{gpu}",collective="{kind}",nranks="4"}} 100\n'
            f'nccl_collective_exec_time_microseconds{{node="n1",gpu="GPU-{gpu}",collective="{kind}",nranks="4"}} {time}'
            for kind, time in zip(("AllReduce", "AllGather"), times, strict=True)
        ]
        (folder / f"nccl_inspector_metrics_{gpu}.prom").write_text("\n".join([*lines, ""]))


def test_the_gpu_that_the_others_wait_for_is_told_and_pages_nobody(tmp_path):
    write_metrics(tmp_path, [(900, 400), (910, 390), (100, 90), (905, 410)])

    (finding,) = analyze(tmp_path).findings

    assert "GPU GPU-2 of n1" in finding.summary
    assert not finding.page


@pytest.mark.parametrize(
    "times",
    [
        [(900, 400), (910, 390), (890, 395), (905, 410)],
        [(900, 400), (910, 390), (100, 500), (905, 410)],
        [(900, 400), (100, 90)],
    ],
)
def test_nobody_is_told_who_is_not_shorter_in_all_beside_enough_others(tmp_path, times):
    write_metrics(tmp_path, times)

    assert analyze(tmp_path).findings == ()


@pytest.mark.parametrize("text", ['{node="n"} 1', '{node="n",gpu="g"} NaN', "{"])
def test_nonsense_is_one_line_that_names_the_file(tmp_path, text):
    (tmp_path / "gpu.prom").write_text(f"nccl_collective_exec_time_microseconds{text}\nx{{\n" if text == "{" else
                                       f"nccl_collective_exec_time_microseconds{text}\n")  # fmt: skip

    with pytest.raises(DataError, match=r"gpu\.prom") as refused:
        analyze(tmp_path)
    assert "\n" not in str(refused.value)
