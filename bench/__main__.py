"""Run the benchmarks one after the other; each prints a small table and says what machine it ran on."""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import platform
import sys

import bench


def main() -> int:
    names = sorted(m.name for m in pkgutil.iter_modules(bench.__path__) if not m.name.startswith("_"))
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(names)}")
    chosen = parser.parse_args().names or names
    if unknown := set(chosen) - set(names):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    failed = []
    for name in chosen:
        print(f"\n== {name}", flush=True)
        sys.argv = [f"bench.{name}"]
        if importlib.import_module(f"bench.{name}").main():
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
