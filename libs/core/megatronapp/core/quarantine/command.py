"""`megatronapp quarantine`, and `python -m megatronapp.core.quarantine` in an image that has no command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from google.protobuf import text_format
from google.protobuf.message import DecodeError

from megatronapp.core.errors import MegatronAppError
from megatronapp.core.quarantine.folder import Entry, entries, entry, release
from megatronapp.v1 import trace_pb2

SHOWN_CHARACTERS = 200
"""Of one line of a record: columns are long."""


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    try:
        if arguments.action == "list":
            _list(arguments.folder)
        elif arguments.action == "show":
            _show(entry(arguments.folder, arguments.id))
        else:
            found = release(arguments.folder, arguments.id)
            print(f"{found.id} is handed back; the service takes it up within seconds, and sets it aside if it fails")
    except MegatronAppError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="megatronapp quarantine", description="Look at records that a service has set aside, or hand them back."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="list | show | replay")
    for name, text in (("list", "what was set aside"), ("show", "one record"), ("replay", "hand a record back")):
        action = actions.add_parser(name, help=text, description=text)
        action.add_argument("folder", type=Path, metavar="FOLDER", help="the service's quarantine folder")
        if name != "list":
            action.add_argument("id", metavar="ID", help="of the record, or its beginning")
    return parser


def _list(folder: Path) -> None:
    found = entries(folder)
    for each in found:
        print(f"{each.id}  {each.set_aside}  {each.job}  attempt {each.attempt} rank {each.rank}  {each.reason}")
    if not found:
        print("nothing is set aside")


def _show(found: Entry) -> None:
    for name in ("id", "job", "run", "attempt", "rank", "set_aside", "reason"):
        print(f"{name}: {getattr(found, name)}")
    print()
    try:
        text = text_format.MessageToString(trace_pb2.RankMessage.FromString(found.record))
    except DecodeError:
        text = found.record.hex(" ")
    for line in text.splitlines():
        print(line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}… ({len(line)} characters)")
