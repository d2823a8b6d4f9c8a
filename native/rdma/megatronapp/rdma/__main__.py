"""`python -m megatronapp.rdma doctor`"""

from __future__ import annotations

import argparse

from megatronapp.rdma.doctor import report


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m megatronapp.rdma")
    commands = parser.add_subparsers(required=True)
    doctor = commands.add_parser("doctor", help="which lanes this machine has, and how fast they are")
    doctor.add_argument("--no-speed", action="store_true", help="only look, don't measure")
    arguments = parser.parse_args()
    print(report(measure=not arguments.no_speed))


if __name__ == "__main__":
    main()
