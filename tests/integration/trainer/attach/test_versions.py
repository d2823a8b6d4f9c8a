"""Versions of megatron-core: what docs/attach.md's table says of each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from megatronapp.core.trace import file as trace_file
from megatronapp.trainer.attach import passes
from tests.integration.trainer.plugins.scan.traced import read
from tests.support.attached import SCRIPTS, every_step, run
from tests.support.marks import some

STEPS, STAGES, MICROBATCHES = 3, 2, 4
FUTURE = "0.99.0"


def core(folder: Path, version: str) -> Path:
    """megatron-core alone, for PYTHONPATH. Skips where it can't be had."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder]
    done = subprocess.run([*command, f"megatron-core=={version}"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"megatron-core {version} can't be installed: {done.stderr.strip()[-200:]}")
    return folder


def newer_than_known(folder: Path) -> None:
    """Make the copy say that it is of a version that nobody knows."""
    file = folder / "megatron/core/package_info.py"
    file.write_text(file.read_text() + f"\n__version__ = {FUTURE!r}\n")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("version", some(["0.14.0", "0.15.0", "unknown"], lambda version: version == "0.14.0"))
def test_a_loop_on_it_is_seen_and_computes_what_it_did_before(tmp_path: Path, version: str) -> None:
    folder = core(tmp_path / "core", "0.15.0" if version == "unknown" else version)
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
