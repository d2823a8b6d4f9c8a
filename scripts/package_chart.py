"""Package the chart into dist/, as `make chart-package`: version and appVersion are the project's, and where
`scripts/images` has pushed the images (dist/digests), the chart names them by their digests there.

python scripts/package_chart.py [--digests FOLDER] [--output FOLDER]
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy/helm/megatronapp"
IN_CHART = "files/images.json"
SERVICES = ("trainer", "trace-collector", "detector", "scope-gateway", "operator")
IMAGES = (*SERVICES, "trainer-cuda")
"""The last one is not everybody's: a chart can be packaged without it."""
_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")


class PackageError(Exception):
    """Why there is no package."""


@dataclass(frozen=True)
class Images:
    """Where a release's images lie: `digests` by image."""

    registry: str
    digests: Mapping[str, str]

    @classmethod
    def read(cls, folder: Path, version: str) -> Images | None:
        """Of a file an image; None where there is none. Raises PackageError when one is missing, of another version, or
        in another registry."""
        files = {name: folder / f"{name}.json" for name in IMAGES}
        pushed = {name: json.loads(file.read_text()) for name, file in files.items() if file.exists()}
        if not pushed:
            return None
        digests = {name: image["digest"] for name, image in pushed.items() if _DIGEST.match(image["digest"])}
        missing = [name for name in (*SERVICES, *pushed) if name not in digests]
        if missing:
            raise PackageError(f"{folder} has no digest of {', '.join(missing)}: push all images")
        for name, image in pushed.items():
            if image["version"] != version:
                raise PackageError(f"{name} is of version {image['version']}, the project is {version}: push it again")
        registries = {image["registry"] for image in pushed.values()}
        if len(registries) > 1:
            raise PackageError(f"the images are in several registries: {', '.join(sorted(registries))}")
        (registry,) = registries
        if not registry.endswith("/megatronapp"):
            raise PackageError(f"the registry {registry} must end in /megatronapp, as the chart's repositories do")
        return cls(registry=registry, digests=digests)

    def in_chart(self) -> str:
        """By the repositories of the chart's values; templates/_helpers.tpl reads it."""
        digests = {f"megatronapp/{name}": digest for name, digest in self.digests.items()}
        return json.dumps({"registry": self.registry.removesuffix("/megatronapp"), "digests": digests}, indent=2)

    def named_in(self, text: str, version: str) -> str:
        """Chart.yaml, its annotations naming these images."""
        for name, digest in self.digests.items():
            text = re.sub(rf"docker\.io/megatronapp/{name}:[\w.-]+", f"{self.registry}/{name}:{version}@{digest}", text)
        return text


def package(output: Path, version: str, images: Images | None) -> None:
    """Write megatronapp-VERSION.tgz. Without `images` the chart names them by tag, as in the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        chart = Path(folder) / CHART.name
        shutil.copytree(CHART, chart)
        if images is not None:
            (chart / IN_CHART).write_text(images.in_chart())
            description = chart / "Chart.yaml"
            description.write_text(images.named_in(description.read_text(), version))
        output.mkdir(parents=True, exist_ok=True)
        helm = shutil.which("helm")
        if helm is None:
            raise PackageError("helm is not installed; type: make setup-tests")
        versions = ("--version", version, "--app-version", version)
        subprocess.run([helm, "package", chart, *versions, "--destination", output], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--digests", type=Path, default=ROOT / "dist/digests", help="written by scripts/images")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    try:
        images = Images.read(arguments.digests, version)
        if images is None:
            print(f"nothing in {arguments.digests}: the chart names images by tag")
        package(arguments.output, version, images)
    except (PackageError, subprocess.CalledProcessError) as error:
        print(f"chart-package: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
