"""A run's trace folder becomes a recording, and a recording noise."""

from pathlib import Path

import numpy as np
import pytest

from bench.scale import record, recording
from bench.scale.layout import Layout
from bench.scale.noise import Recorded
from bench.scale.recording import Recording
from megatronapp.core.errors import DataError
from megatronapp.core.trace import file
from tests.support.simulated import Fault, Job

STEPS = 260
SLOW_STEP = 100


def trace(folder: Path, steps: int = STEPS) -> Path:
    """Two ranks, one of which takes half as long again in one step."""
    job = Job(Layout(pp=1, dp=2), faults=(Fault("compute", (1,), SLOW_STEP, 1.5, to_step=SLOW_STEP),), seed=1)
    messages = [*job.hellos(), *(message for each in job.steps(1, steps) for message in each)]
    for rank in range(2):
        path = file.path_for(folder, "team/run", 1, rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as out:
            for message in messages:
                if message.identity.rank == rank:
                    body = message.message
                    if body.HasField("hello"):
                        body.hello.identity.CopyFrom(message.identity)
                    file.write(out, body)
    return folder


def test_a_trace_folder_becomes_a_recording(tmp_path: Path) -> None:
    assert record.main([str(trace(tmp_path / "trace")), str(tmp_path / "it.npz")]) == 0

    made = recording.load(tmp_path / "it.npz")

    assert made.compute.shape == (STEPS - record.FIRST_STEPS, 2)
    assert made.compute[SLOW_STEP - 1 - record.FIRST_STEPS, 1] == pytest.approx(np.log(1.5), abs=0.03)
    assert np.median(np.abs(made.compute)) < 0.02
    assert (tmp_path / "it.npz").stat().st_size < 64 << 10


def test_too_short_a_run_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record.main([str(trace(tmp_path / "trace", steps=50)), str(tmp_path / "it.npz")]) == 2

    assert "200" in capsys.readouterr().err
    assert not (tmp_path / "it.npz").exists()


def test_a_folder_without_a_trace_is_refused_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert record.main([str(tmp_path)]) == 2

    assert "--trace-dir" in capsys.readouterr().err


@pytest.mark.parametrize("data", [b"", b"not a recording", b"PK\x03\x04"])
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "it.npz").write_bytes(data)

    with pytest.raises(DataError, match="no recording"):
        recording.load(tmp_path / "it.npz")


def test_pickled_objects_are_not_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "it.npz", format=1, compute=np.array([object()]), text="")

    with pytest.raises(DataError):
        recording.load(tmp_path / "it.npz")


@pytest.mark.parametrize("value", [np.nan, 5.0, -np.inf])
def test_numbers_that_no_step_can_have_are_refused(value: float) -> None:
    compute = np.zeros((300, 2))
    compute[7, 1] = value

    with pytest.raises(DataError):
        Recording(compute, "")


def test_recorded_noise_follows_the_recording_in_blocks() -> None:
    source = np.arange(1000.0)[:, None] / 1000
    sample = Recorded(Recording(source, ""), block=50).begin(np.random.default_rng(1), Layout(pp=1, dp=16))

    drawn = np.stack([sample() for _ in range(200)])

    follows = np.isclose(np.diff(drawn, axis=0), 1e-3)
    assert follows.mean() > 0.95
    assert len(np.unique(drawn[0])) > 8
