"""What the page costs in Chromium: `node bench/page.mjs`, which says what it needs. Ranks and steps may be given."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILT = ROOT / "services/scope-gateway/megatronapp/gateway/_ui/index.html"


def main() -> int:
    node = shutil.which("node")
    if node is None or not (ROOT / "services/ui/node_modules").is_dir() or not BUILT.is_file():
        print("left out: it needs Node and Chromium, and `npm ci` and `npm run build` in services/ui")
        return 0
    return subprocess.run([node, str(ROOT / "bench/page.mjs"), *sys.argv[1:]], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
