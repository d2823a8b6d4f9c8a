"""What the images are built of."""

from __future__ import annotations

import json
import os
import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from scripts import package_chart

ROOT = Path(__file__).resolve().parents[3]
TRAINER = (ROOT / "services/trainer/Dockerfile").read_text().replace("\\\n", " ")

BASE = f"sha256:{8:064d}"
BUILDER = """#!/bin/sh
if [ "$1 $2" = "image inspect" ]; then
  [ "$3" != --format ] || echo "docker.io/library/base@$BASE"
  exit
fi
printf '%s|' "$@" >> "$LOG"
echo >> "$LOG"
while [ $# -gt 1 ]; do
  [ "$1" != --digestfile ] || printf 'sha256:%064d' 7 > "$2"
  shift
done
"""
"""Stands in for podman: it notes how it was called."""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Of the repository what scripts/images reads."""
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/images", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "podman").write_text(BUILDER)
    for dockerfile in ROOT.glob("services/*/Dockerfile"):
        copy = tmp_path / dockerfile.relative_to(ROOT)
        copy.parent.mkdir(parents=True)
        copy.write_bytes(dockerfile.read_bytes())
    for name in ("scripts/images", "podman"):
        (tmp_path / name).chmod(0o755)
    return tmp_path


def build(checkout: Path, *images: str, **environment: str) -> list[list[str]]:
    """The builder's calls, as their arguments."""
    own = {
        "BUILDER": str(checkout / "podman"),
        "LOG": str(checkout / "log"),
        "REGISTRY": "r/megatronapp",
        "BASE": BASE,
        **environment,
    }
    subprocess.run([checkout / "scripts/images", *images], env=os.environ | own, check=True, capture_output=True)
    return [line.split("|") for line in (checkout / "log").read_text().splitlines()]


def test_the_trainer_for_gpus_is_the_trainers_recipe_with_other_arguments(checkout: Path) -> None:
    (call,) = build(checkout, "trainer-cuda", VERSION="1.2.3")

    arguments = [value for flag, value in pairwise(call) if flag == "--build-arg"]
    assert call[call.index("-f") + 1] == "services/trainer/Dockerfile"
    assert call[call.index("-t") + 1] == "r/megatronapp/trainer-cuda:1.2.3"
    assert arguments == ["TORCH_INDEX_URL=https://download.pytorch.org/whl/cu130", "RUNTIME_PACKAGES=gcc libc6-dev"]
    assert {name.partition("=")[0] for name in arguments} <= set(re.findall(r"^ARG (\w+)=", TRAINER, re.MULTILINE))


def test_the_trainer_for_cpus_is_built_as_its_recipe_stands(checkout: Path) -> None:
    (call,) = build(checkout, "trainer")

    assert "--build-arg" not in call
    assert "ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu\n" in TRAINER


def test_unless_named_only_images_for_every_machine_are_built(checkout: Path) -> None:
    built = build(checkout)

    names = [call[call.index("-t") + 1].partition("/")[2] for call in built]
    assert sorted(name.partition(":")[0] for name in names) == sorted(
        f"megatronapp/{name}" for name in package_chart.SERVICES
    )


def test_images_pushed_one_by_one_make_one_release(checkout: Path) -> None:
    for name in package_chart.IMAGES:
        build(checkout, name, PUSH="1", VERSION="1.2.3")

    images = package_chart.Images.read(checkout / "dist/digests", "1.2.3")

    assert images is not None
    assert images.registry == "r/megatronapp"
    assert images.digests == dict.fromkeys(package_chart.IMAGES, f"sha256:{7:064d}")
    assert json.loads((checkout / "dist/digests/trainer-cuda.json").read_text())["version"] == "1.2.3"


def test_a_pushed_image_is_built_on_the_digests_of_its_bases_and_names_them(checkout: Path) -> None:
    (call, *_) = build(checkout, "scope-gateway", PUSH="1")

    pinned = [value for flag, value in pairwise(call) if flag == "--build-arg"]
    labels = [value for flag, value in pairwise(call) if flag == "--label"]
    assert pinned == [f"PYTHON_IMAGE=docker.io/library/python@{BASE}", f"NODE_IMAGE=docker.io/library/node@{BASE}"]
    assert labels == [
        "org.opencontainers.image.base.name=docker.io/library/python:3.11-slim",
        f"org.opencontainers.image.base.digest={BASE}",
    ]
    assert json.loads((checkout / "dist/digests/scope-gateway.json").read_text())["bases"] == [
        f"docker.io/library/python:3.11-slim@{BASE}",
        f"docker.io/library/node:20-slim@{BASE}",
    ]


@pytest.mark.parametrize(
    ("given", "taken"),
    [
        (f"mirror:5000/python@sha256:{9:064d}", f"mirror:5000/python@sha256:{9:064d}"),
        ("mirror:5000/python:3.12", f"mirror:5000/python@{BASE}"),
        ("mirror:5000/python", f"mirror:5000/python@{BASE}"),
    ],
)
def test_a_base_that_was_named_is_taken_and_pinned(checkout: Path, given: str, taken: str) -> None:
    (call, *_) = build(checkout, "detector", PUSH="1", BUILD_ARGS=f"--build-arg PYTHON_IMAGE={given}")

    pinned = [value for flag, value in pairwise(call) if flag == "--build-arg"]
    assert pinned[-1] == f"PYTHON_IMAGE={taken}"


def test_what_has_no_digest_is_not_built_on_and_not_pushed(checkout: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        build(checkout, "detector", PUSH="1", BASE="none")

    said = failed.value.stderr.decode().splitlines()
    assert said == [
        "images: no digest of docker.io/library/python:3.11-slim; "
        'give one: BUILD_ARGS="--build-arg PYTHON_IMAGE=IMAGE@sha256:…"'
    ]
    assert not (checkout / "log").exists()


@pytest.mark.parametrize("dockerfile", sorted(ROOT.glob("services/*/Dockerfile")), ids=lambda file: file.parent.name)
def test_every_stage_begins_with_an_image_that_is_pinned(dockerfile: Path) -> None:
    text = dockerfile.read_text()

    begins = re.findall(r"^FROM (\S+)", text, re.MULTILINE)

    assert set(begins) <= {f"${{{name}}}" for name in re.findall(r"^ARG ([A-Z_]+_IMAGE)=", text, re.MULTILINE)}


@pytest.mark.parametrize("dockerfile", sorted(ROOT.glob("services/*/Dockerfile")), ids=lambda file: file.parent.name)
def test_an_image_has_nothing_of_how_it_was_built(dockerfile: Path) -> None:
    """Torch, which is nearly all of the trainer's image, stays as it comes."""
    *_, building, image = re.split(r"^FROM .*$", dockerfile.read_text(), flags=re.MULTILINE)

    assert re.findall(r"^(?:COPY|ADD) (.*)$", image, re.MULTILINE) == ["--from=build /opt/megatronapp /opt/megatronapp"]
    assert "pip" not in image
    if dockerfile.parent.name != "trainer":
        assert "bash /src/scripts/slim /opt/megatronapp " in re.findall(r"^RUN (.*)$", building, re.MULTILINE)[-1]


def test_a_release_builds_every_image_that_its_chart_names() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    chart = yaml.safe_load((ROOT / "deploy/helm/megatronapp/Chart.yaml").read_text())

    built = set(jobs["images"]["strategy"]["matrix"]["image"])
    listed = {image["name"] for image in yaml.safe_load(chart["annotations"]["artifacthub.io/images"])}

    assert built == set(package_chart.IMAGES) == listed - {"valkey"}


@pytest.mark.parametrize("project", sorted(file.parent.name for file in ROOT.glob("native/*/pyproject.toml")))
def test_the_trainers_image_has_every_native_wheel(project: str) -> None:
    (built,) = re.findall(r"pip wheel ([^&]*)", TRAINER)

    assert f"/src/native/{project}" in built.split()


def test_the_trainers_image_has_the_library_that_the_transport_opens() -> None:
    opened = re.findall(r'library\("lib(\w+)\.so\.0", "UCX"\)', (ROOT / "native/rdma/src/drivers/ucx.cpp").read_text())
    last_stage = TRAINER.rsplit("\nFROM ", 1)[1]

    assert opened == ["ucp"]
    assert re.search(r"apt-get install \S.* libucx0\b", last_stage)
