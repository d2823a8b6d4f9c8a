"""What the page costs in Chromium: `node bench/page.mjs`, which says what it needs. Ranks and steps may be given."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "services/scope-gateway/megatronapp/gateway/_ui/index.html"


def node_of_page() -> str | None:
    """Node, where the page's packages and the built page are there too."""
    there = (ROOT / "services/ui/node_modules").is_dir() and BUILT.is_file()
    return shutil.which("node") if there else None


def main() -> int:
    node = node_of_page()
    if node is None:
        print("left out: it needs Node and Chromium, and `npm ci` and `npm run build` in services/ui")
        return 0
    return subprocess.run([node, str(ROOT / "bench/page.mjs"), *sys.argv[1:]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
