"""The images' locks: the closure of what the project asks for, at the versions of constraints.txt, by hash."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
EXTRAS = {
    "trainer": ("trainer",),
    "trace-collector": ("collector", "redis"),
    "detector": ("redis",),
    "scope-gateway": ("gateway", "redis"),
    "operator": ("operator",),
}
# The oldest Python 3.11: Debian's is older than the images'.
IMAGE = {
    "python_version": "3.11",
    "python_full_version": "3.11.0",
    "sys_platform": "linux",
    "platform_system": "Linux",
}
TORCH = re.compile(r"(torch|triton|nvidia-(?!ml-py).*|cuda-.*)$")
"""Of the trainer's image what comes from PyTorch's own index."""
PINNED = re.compile(
    r"^(?P<name>[a-z0-9-]+)==(?P<version>\S+)(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE
)


def locked(name: str) -> dict[str, str]:
    text = (ROOT / f"requirements/{name}.lock").read_text()
    found = {match["name"]: match["version"] for match in PINNED.finditer(text)}
    assert len(found) == len(re.findall(r"^[^\s#]", text, re.MULTILINE)), "an entry without a version or a hash"
    return found


@cache
def constraints() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = (line.split("==") for line in lines if not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pins}


def asked_for(extras: tuple[str, ...]) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needs = [*project["dependencies"], *(need for extra in extras for need in project["optional-dependencies"][extra])]
    return [Requirement(need) for need in needs]


def requirements_of(name: str) -> list[str]:
    """Empty for what only the image's Python needs, and not the one here (async-timeout before 3.11.3)."""
    try:
        return distribution(name).requires or []
    except PackageNotFoundError:
        return []


def closure(needs: list[Requirement]) -> set[str]:
    """Names of all distributions that these need, by what is installed here."""
    found: set[str] = set()
    done: set[tuple[str, frozenset[str]]] = set()
    while needs:
        need = needs.pop()
        name, extras = canonicalize_name(need.name), frozenset(need.extras)
        if (name, extras) in done:
            continue
        done.add((name, extras))
        found.add(name)
        if TORCH.match(name) and name != "torch":
            continue
        for text in requirements_of(name):
            inner = Requirement(text)
            if any(inner.marker is None or inner.marker.evaluate({**IMAGE, "extra": extra}) for extra in extras | {""}):
                needs.append(inner)
    return {name for name in found if not TORCH.match(name)}


@pytest.mark.parametrize("name", [*EXTRAS, "build"])
def test_a_lock_has_the_versions_that_the_tests_ran_with(name: str) -> None:
    versions = locked(name)

    assert versions == {name: constraints().get(name) for name in versions}, "run `make locks`"


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_is_all_that_the_service_needs_and_no_more(name: str) -> None:
    needs = asked_for(EXTRAS[name])
    versions = locked(name)

    assert versions.keys() == closure(list(needs)), "run `make locks`"
    for need in needs:
        if not TORCH.match(need.name):
            assert need.specifier.contains(versions[canonicalize_name(need.name)]), f"{need}: run `make locks`"


def test_the_build_lock_has_what_the_wheels_are_built_with() -> None:
    versions = locked("build")
    projects = [ROOT / "pyproject.toml", *ROOT.glob("native/*/pyproject.toml")]

    for project in projects:
        for text in tomllib.loads(project.read_text())["build-system"]["requires"]:
            need = Requirement(text)
            assert need.specifier.contains(versions[need.name]), f"{project}: {need}"


@pytest.mark.parametrize("name", EXTRAS)
def test_an_image_installs_from_its_lock_alone(name: str) -> None:
    recipe = (ROOT / f"services/{name}/Dockerfile").read_text().replace("\\\n", " ")
    installs = re.findall(r"pip install ([^&\n]*)", recipe)

    assert any(f"--require-hashes -r /src/requirements/{name}.lock" in install for install in installs)
    for install in installs:
        assert "--no-deps" in install or install.rstrip().endswith(" torch")
