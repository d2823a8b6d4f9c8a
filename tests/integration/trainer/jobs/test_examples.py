"""examples/models: the file of each model family trains with `megatronapp run`, as its first lines say."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatronapp.trainer.data.preprocess import main as preprocess

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[4]
FILES = sorted((ROOT / "examples/models").glob("*.yaml"))
STEPS = 4
FEWER = {"--train-iters": STEPS, "--log-interval": 1, "--eval-interval": STEPS, "--lr-warmup-iters": 0}


def typed(file: Path) -> list[list[str]]:
    """The commands in the comment at its beginning."""
    comment = [line.removeprefix("#") for line in file.read_text().splitlines() if line.startswith("#")]
    commands = "\n".join(comment).replace("\\\n", "").splitlines()
    return [shlex.split(line) for line in commands if line.startswith("   ")]


def with_few_steps(file: Path, folder: Path) -> Path:
    job = yaml.safe_load(file.read_text())
    given = [flag for flag in job["spec"]["args"] if flag.partition("=")[0] not in FEWER]
    job["spec"]["args"] = given + [f"{flag}={value}" for flag, value in FEWER.items()]
    shorter = folder / file.name
    shorter.write_text(yaml.safe_dump(job))
    return shorter


def trained(job: Path, folder: Path, data: Path) -> list[dict[str, Any]]:
    """What is logged."""
    command = [str(Path(sys.executable).parent / "megatronapp"), "run", str(job), "--folder", str(folder)]
    done = subprocess.run(
        [*command, "--storage", f"data={data}"], capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.stem))
def test_the_example_of_a_family_trains(file: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(ROOT / "examples/data", data)
    prepare, run, apply = typed(file)
    preprocess([part.replace("examples/data", str(data)) for part in prepare[3:]])

    lines = trained(with_few_steps(file, tmp_path), tmp_path / "run", data)

    losses = {line["step"]: line["loss"] for line in lines if line["event"] == "step"}
    assert sorted(losses) == [1, 2, 3, 4]
    assert losses[STEPS] < losses[1]
    assert any(line["event"] == "evaluation" for line in lines)
    name = str(file.relative_to(ROOT))
    assert run == ["megatronapp", "run", name, "--storage", "data=examples/data"]
    assert apply == ["kubectl", "apply", "-f", name]
