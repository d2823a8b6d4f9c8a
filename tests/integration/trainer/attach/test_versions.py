"""Versions of megatron-core: what docs/attach.md's table says of each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megatronapp.core.trace import file as trace_file
from megatronapp.trainer.attach import passes
from tests.integration.trainer.attach.versions import BEGIN, END, rewrite
from tests.integration.trainer.plugins.scan.traced import read
from tests.support.attached import SCRIPTS, every_step, run
from tests.support.marks import some
from tests.support.training_environment import megatron_core

STEPS, STAGES, MICROBATCHES = 3, 2, 4
FUTURE = "0.99.0"


def newer_than_known(folder: Path) -> None:
    """Make the copy say that it is of a version that nobody knows."""
    file = folder / "megatron/core/package_info.py"
    file.write_text(file.read_text() + f"\n__version__ = {FUTURE!r}\n")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", some(["0.14.0", "0.15.0", "unknown"], lambda version: version == "0.14.0"))
def test_a_loop_on_it_is_seen_and_computes_what_it_did_before(tmp_path: Path, version: str) -> None:
    folder = megatron_core(tmp_path / "core", "0.15.0" if version == "unknown" else version)
    if version == "unknown":
        newer_than_known(folder)
    script, where = SCRIPTS / "megatron_core_loop.py", {"PYTHONPATH": str(folder)}
    plain = run(script, STEPS, STAGES, environment=where)

    attached = run(script, STEPS, STAGES, environment=where, attach=every_step(tmp_path))

    assert attached.code == plain.code == 0, attached.output
    assert attached.lines("loss") == plain.lines("loss") != []
    seen = [line for line in attached.said if ": full: " in line]
    left_out = [line for line in attached.said if line not in seen]
    assert len(seen) == 1
    assert len(left_out) == (0 if version == "0.15.0" else 1), left_out
    named = f"messages between stages are not seen: megatron-core {FUTURE if version == 'unknown' else version} "
    assert all(named in line for line in left_out)
    for rank in range(STAGES):
        trace = read(trace_file.path_for(tmp_path, "local/megatron-core-loop", 1, rank))
        assert [summary.step for summary in trace.summaries] == list(range(1, STEPS + 1))
        assert [span.microbatch for span in trace.of("forward", step=2)] == list(range(MICROBATCHES))
        assert len({span.layer for span in trace.of("layer_backward", step=2)}) == 4
        assert len(trace.of("optimizer", step=2)) == 1
        messages = len(trace.of("forward_send", "forward_recv", step=2))
        assert messages == (MICROBATCHES if version == "0.15.0" else 0)


def test_the_installed_version_is_known() -> None:
    assert passes.__version__.startswith(passes.KNOWN_CORE)


def test_a_version_of_torch_that_was_run_has_a_row_and_others_keep_theirs() -> None:
    document = f"before\n{BEGIN}\n\n{END}\nafter"
    lines = [
        json.dumps({"torch": torch, "python": "3.12", "program": "ddp", "seen": "all"}) for torch in ("2.12.1", "2.6.0")
    ]

    first = rewrite(document, lines)
    again = rewrite(first, [json.dumps({"torch": "2.6.0", "python": "3.10", "program": "0.14.0", "seen": "some"})])

    rows = [line for line in again.splitlines() if line.startswith("| 2.")]
    assert rows == [
        "| 2.6.0 | 3.10 | all | not run | some | not run | not run |",
        "| 2.12.1 | 3.12 | all | not run | not run | not run | not run |",
    ]
    assert again.startswith("before")
    assert again.endswith("after")
