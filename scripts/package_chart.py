"""Package the chart into dist/, as `make chart-package`: version and appVersion are the project's, and where
`scripts/images` has pushed the images (dist/digests.json), the chart names them by their digests there.

python scripts/package_chart.py [--digests FILE] [--output FOLDER]
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
_DIGEST = re.compile(r"^sha256:[0-9a-f]{64}$")


class PackageError(Exception):
    """Why there is no package."""


@dataclass(frozen=True)
class Images:
    """Where a release's images lie: `digests` by service."""

    registry: str
    digests: Mapping[str, str]

    @classmethod
    def read(cls, file: Path, version: str) -> Images:
        """Raises PackageError when an image is missing, or when they are of another version."""
        document = json.loads(file.read_text())
        images = cls(registry=document["registry"], digests=document["digests"])
        if document["version"] != version:
            raise PackageError(f"{file} is of version {document['version']}, the project is {version}: push the images")
        missing = [name for name in SERVICES if not _DIGEST.match(images.digests.get(name, ""))]
        if missing:
            raise PackageError(f"{file} has no digest of {', '.join(missing)}: push all images together")
        if not images.registry.endswith("/megatronapp"):
            raise PackageError(
                f"the registry {images.registry} must end in /megatronapp, as the chart's repositories do"
            )
        return images

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
    parser.add_argument("--digests", type=Path, default=ROOT / "dist/digests.json", help="written by scripts/images")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    arguments = parser.parse_args()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    try:
        images = Images.read(arguments.digests, version) if arguments.digests.exists() else None
        if images is None:
            print(f"no {arguments.digests}: the chart names images by tag")
        package(arguments.output, version, images)
    except (PackageError, subprocess.CalledProcessError) as error:
        print(f"chart-package: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
