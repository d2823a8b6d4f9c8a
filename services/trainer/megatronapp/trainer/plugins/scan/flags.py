"""The plug-in's flags; the five --trace flags keep MegaScan's names and meaning."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from megatronapp.core.errors import UsageError
from megatronapp.core.trace.limits import MAX_TRACE_INTERVAL
from megatronapp.trainer.plugins.scan.window import Window


@dataclass(frozen=True, slots=True)
class ScanSettings:
    window: Window
    folder: Path | None
    """Where trace files go; None: nowhere."""
    collector_address: str
    """host:port; empty: no collector."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("scan", "tracing and the detection of slow or hanging ranks (MegaScan)")
    group.add_argument("--trace", action="store_true", help="trace steps in detail, in windows")
    group.add_argument(
        "--trace-dir",
        type=Path,
        help="write the trace to files below this folder (with --trace and no collector: trace_output)",
    )
    group.add_argument("--trace-interval", type=int, default=5, help="steps from the start of one window to the next")
    group.add_argument("--continuous-trace-iterations", type=int, default=2, help="steps in a window")
    group.add_argument(
        "--trace-granularity",
        choices=("base", "full"),
        default="full",
        help="base: microbatches, messages, collectives; full: also layers and their parts",
    )
    group.add_argument(
        "--collector-address",
        default="",
        help="host:port of the trace collector; default: MEGATRONAPP_COLLECTOR_ADDRESS",
    )


def parse(args: argparse.Namespace, collector_address: str, *, asked_for: bool = False) -> ScanSettings | None:
    """The settings, or None when the flags leave the plug-in off and no other asks for it. `collector_address` is the
    environment's.

    Raises UsageError on a window that makes no sense.
    """
    address = args.collector_address or collector_address
    if not (args.trace or args.trace_dir or address or asked_for):
        return None
    if args.trace_interval < 1 or args.continuous_trace_iterations < 1:
        raise UsageError("--trace-interval and --continuous-trace-iterations must be at least 1")
    if args.trace_interval > MAX_TRACE_INTERVAL:
        raise UsageError(f"--trace-interval {args.trace_interval} is too large; at most {MAX_TRACE_INTERVAL}")
    if args.continuous_trace_iterations > args.trace_interval:
        raise UsageError(
            f"--continuous-trace-iterations {args.continuous_trace_iterations} is more than"
            f" --trace-interval {args.trace_interval}: a window would begin inside the one before it"
        )
    _check_address(address)
    window = Window(
        enabled=args.trace,
        interval=args.trace_interval,
        continuous=args.continuous_trace_iterations,
        full=args.trace_granularity == "full",
    )
    folder = args.trace_dir or (Path("trace_output") if args.trace and not address else None)
    return ScanSettings(window=window, folder=folder, collector_address=address)


def writable(folder: Path) -> Path:
    """The folder, made, by its absolute path: the agent writes to it, from wherever it was started.

    Raises UsageError.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--trace-dir: {folder} can't be made: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"--trace-dir: {folder} can't be written")
    return folder.resolve()


def _check_address(address: str) -> None:
    host, colon, port = address.rpartition(":")
    if address and not (host and colon and port.isdigit() and 0 < int(port) < 65536):
        raise UsageError(f"--collector-address {address!r} is not of the form host:port")
