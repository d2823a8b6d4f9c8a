"""The distributions that the project needs with these extras, one a line: an image installs them before the sources.

python scripts/requirements.py pyproject.toml operator redis
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def main() -> None:
    file, *extras = sys.argv[1:]
    project = tomllib.loads(Path(file).read_text())["project"]
    for name in [
        *project["dependencies"],
        *(need for extra in extras for need in project["optional-dependencies"][extra]),
    ]:
        print(name)


if __name__ == "__main__":
    main()
