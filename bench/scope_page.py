"""What MegaScope's pages cost in Chromium: `node bench/scope_page.mjs`, which says what it needs.

python -m bench.scope_page             # the built page over a made-up gateway
python -m bench.scope_page --served    # and over a real model: from the key to the token's paint
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench.page import BUILT, ROOT, node_of_page

SCRIPT = ROOT / "bench/scope_page.mjs"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.scope_page", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--served", action="store_true", help="train a small model, serve it, and measure on it too")
    options = parser.parse_args(argv)
    node = node_of_page()
    if node is None:
        print(f"left out: it needs Node and Chromium, and `npm ci` and `npm run build` in services/ui ({BUILT.name})")
        return 0
    return asyncio.run(over_a_served_model(node)) if options.served else measured(node)


def measured(node: str, **environment: str) -> int:
    return subprocess.run([node, str(SCRIPT)], env=os.environ | environment, check=False).returncode


async def over_a_served_model(node: str) -> int:
    from tests.e2e.browser.served import served  # torch, for this alone

    with tempfile.TemporaryDirectory() as folder:
        async with served(Path(folder)) as url:
            return await asyncio.to_thread(measured, node, PAGE_URL=url)


if __name__ == "__main__":
    sys.exit(main())
