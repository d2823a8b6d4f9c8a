"""The packaged chart: the project's version, and the images as their digests say."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.helm import ROOT, helm

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
IMAGES = ("trainer", "trace-collector", "detector", "scope-gateway", "operator", "trainer-cuda")
DIGESTS = {name: f"sha256:{index:064x}" for index, name in enumerate(IMAGES)}
REGISTRY = "ghcr.io/acme/megatronapp"
PUSHED = {name: {"registry": REGISTRY, "version": VERSION, "digest": digest} for name, digest in DIGESTS.items()}


def package(folder: Path, pushed: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    digests = folder / "digests"
    digests.mkdir()
    for name, image in pushed.items():
        (digests / f"{name}.json").write_text(json.dumps(image))
    script = ROOT / "scripts/package_chart.py"
    return subprocess.run(
        [sys.executable, script, "--digests", digests, "--output", folder], capture_output=True, text=True, check=False
    )


def images(archive: Path, *flags: str) -> set[str]:
    rendered = helm("template", "megatronapp", str(archive), *flags)
    return {line.split("image:")[1].strip() for line in rendered.splitlines() if " image: " in line}


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("released")
    done = package(folder, PUSHED)
    assert done.returncode == 0, done.stderr
    return folder / f"megatronapp-{VERSION}.tgz"


def test_a_released_chart_names_its_images_by_digest(released: Path) -> None:
    named = images(released)

    for name in ("trace-collector", "detector", "scope-gateway", "operator"):
        assert f"ghcr.io/acme/megatronapp/{name}@{DIGESTS[name]}" in named
    assert f"ghcr.io/acme/megatronapp/trainer@{DIGESTS['trainer']}" in helm("template", "megatronapp", str(released))
    assert "docker.io/valkey/valkey:8.1" in named
    assert len(named) == 5


def test_the_trainer_for_gpus_is_another_repository_with_a_digest_of_its_own(released: Path) -> None:
    rendered = helm(
        "template", "megatronapp", str(released), "--set", "operator.trainerImage.repository=megatronapp/trainer-cuda"
    )

    assert f"{REGISTRY}/trainer-cuda@{DIGESTS['trainer-cuda']}" in rendered
    assert "/trainer@" not in rendered


def test_a_chart_can_be_packaged_without_the_trainer_for_gpus(tmp_path: Path) -> None:
    done = package(tmp_path, {name: image for name, image in PUSHED.items() if name != "trainer-cuda"})

    assert done.returncode == 0, done.stderr


def test_a_mirror_keeps_the_digests(released: Path) -> None:
    named = images(released, "--set", "global.imageRegistry=mirror:5000")

    assert f"mirror:5000/megatronapp/detector@{DIGESTS['detector']}" in named
    assert "mirror:5000/valkey/valkey:8.1" in named


def test_values_win_over_the_released_digest(released: Path) -> None:
    other = f"sha256:{'f' * 64}"

    named = images(released, "--set", f"detector.image.tag=dev,gateway.image.digest={other}")

    assert "ghcr.io/acme/megatronapp/detector:dev" in named
    assert f"ghcr.io/acme/megatronapp/scope-gateway@{other}" in named


def test_a_released_chart_describes_itself(released: Path) -> None:
    with tarfile.open(released) as archive:
        member = archive.extractfile("megatronapp/Chart.yaml")
        assert member is not None
        chart = yaml.safe_load(member)

    assert (chart["version"], chart["appVersion"]) == (VERSION, VERSION)
    listed = {image["name"]: image["image"] for image in yaml.safe_load(chart["annotations"]["artifacthub.io/images"])}
    assert listed["detector"] == f"ghcr.io/acme/megatronapp/detector:{VERSION}@{DIGESTS['detector']}"
    assert listed["valkey"] == "docker.io/valkey/valkey:8.1"


def test_without_pushed_images_the_chart_names_tags(tmp_path: Path) -> None:
    done = package(tmp_path, {})

    assert "names images by tag" in done.stdout
    assert f"docker.io/megatronapp/detector:{VERSION}" in images(tmp_path / f"megatronapp-{VERSION}.tgz")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"detector": {**PUSHED["detector"], "version": "9.9.9"}}, "detector is of version 9.9.9"),
        ({"operator": {**PUSHED["operator"], "digest": "sha256:0"}}, "has no digest of operator"),
        ({"operator": {**PUSHED["operator"], "registry": "ghcr.io/b/megatronapp"}}, "are in several registries"),
        ({name: {**image, "registry": "ghcr.io/other"} for name, image in PUSHED.items()}, "must end in /megatronapp"),
    ],
)
def test_digests_of_something_else_are_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    done = package(tmp_path, {**PUSHED, **change})

    assert done.returncode == 1
    assert said in done.stderr
    assert not list(tmp_path.glob("*.tgz"))


def test_digests_of_some_services_alone_are_refused(tmp_path: Path) -> None:
    done = package(tmp_path, {"trainer": PUSHED["trainer"], "detector": PUSHED["detector"]})

    assert done.returncode == 1
    assert "no digest of trace-collector, scope-gateway, operator" in done.stderr
