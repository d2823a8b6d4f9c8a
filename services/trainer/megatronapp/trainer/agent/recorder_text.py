"""What a dump of PyTorch's flight recorder says of its rank, in words: what it is in, and where that was called.

A process of its own reads the dump (`python -m megatronapp.trainer.agent.recorder_text FILE`): it may be large, and is
hostile, and the agent serves all ranks of the node.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

from megatronapp.core.errors import DataError
from megatronapp.core.trace.flight_recorder import incomplete, load, operation
from megatronapp.core.trace.limits import MAX_RECORDER
from megatronapp.trainer.agent.stack_text import shown

TOLD_GROUPS, TOLD_FRAMES = 8, 6
_NONSENSE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError, MemoryError)


def in_words(dump: dict[str, Any]) -> str:
    """The oldest operation of each group that is not through, the rank's oldest first. Raises DataError."""
    try:
        entries = sorted(dump["entries"], key=lambda entry: int(entry["record_id"]))
        waiting: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for entry in filter(incomplete, entries):
            waiting[str(entry["process_group"][0])].append(entry)
        lines = [line for of in list(waiting.values())[:TOLD_GROUPS] for line in _of_group(of, dump["pg_config"])]
        lines = lines or [_nothing(entries)]
    except _NONSENSE as error:
        raise DataError(f"not a flight-recorder dump that can be understood: {error!r}") from error
    if len(waiting) > TOLD_GROUPS:
        lines.append(f"and operations of {len(waiting) - TOLD_GROUPS} more groups")
    return "\n".join(lines)


def _of_group(waiting: list[dict[str, Any]], groups: dict[str, Any]) -> list[str]:
    """waiting: what is not through of one group, in order."""
    oldest = waiting[0]
    name, *described = map(str, oldest["process_group"])
    ranks = str(groups[name].get("ranks", "") or "all")
    number = oldest["p2p_seq_id"] if oldest["is_p2p"] else oldest["collective_seq_id"]
    began = "begun on the device" if oldest["state"] == "started" else "not known to have begun on the device"
    sizes = oldest.get("input_sizes") or ""
    more = f"; {len(waiting) - 1} more behind it" if len(waiting) > 1 else ""
    first = f"{operation(oldest)} {number} {sizes} of {(described or [name])[0]}, ranks {ranks}: {began}{more}"
    frames = (oldest.get("frames") or [])[:TOLD_FRAMES]
    return [first, *(f"  {frame['name']} ({frame['filename']}:{frame['line']})" for frame in frames)]


def _nothing(entries: list[dict[str, Any]]) -> str:
    newest = f"; the newest is {operation(entries[-1])}" if entries else ""
    return f"all of its {len(entries)} operations are through{newest}"


def main(path: str) -> str:
    """What is told of a file, or in one line why nothing is."""
    try:
        return shown(in_words(load(Path(path))), MAX_RECORDER)
    except (DataError, OSError) as error:
        return shown(f"its dump is refused: {str(error).removeprefix(path).lstrip(': ')}", MAX_RECORDER)


if __name__ == "__main__":
    sys.stdout.buffer.write(main(sys.argv[1]).encode())
