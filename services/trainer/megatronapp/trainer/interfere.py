"""`megatronapp interfere`: a co-tenant that occupies a GPU, so that real interference can be found.

Matrix products run on several streams at once, each fed ahead so that the device never waits for the host. With a duty
cycle below 1 all streams work and rest together in periods of a tenth of a second.

Megatrace's names for these flags work too: `--workers`, `--mem-gb`, and `--sleep-ms`, a rest after each batch.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections import deque
from dataclasses import dataclass
from types import FrameType
from typing import NoReturn

import torch

from megatronapp.core.errors import UnavailableError, UsageError

DTYPES = {"float64": torch.float64, "float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
PERIOD_SECONDS = 0.1
PRODUCTS_PER_BATCH = 4
BATCHES_AHEAD = 3


@dataclass(frozen=True)
class Load:
    """What to do to which device, from the command line."""

    device: torch.device
    duration_seconds: float
    streams: int
    matrix_size: int
    dtype: torch.dtype
    memory_gib: float
    duty_cycle: float
    rest_seconds: float = 0.0
    """After each batch of a stream, which is then waited for."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see --help")


def parse(argv: list[str]) -> Load:
    """Raises UsageError on wrong flags and UnavailableError without the device."""
    parser = _Parser(prog="megatronapp interfere", description=__doc__, allow_abbrev=False)
    parser.add_argument("--device", type=int, default=0, help="number of the GPU (default: 0)")
    parser.add_argument("--duration", type=float, default=60.0, help="seconds; 0: until stopped (default: 60)")
    parser.add_argument("--streams", "--workers", type=int, default=2, help="concurrent streams (default: 2)")
    parser.add_argument("--matrix-size", type=int, default=4096, help="rows of the square matrices (default: 4096)")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="element type (default: bfloat16)")
    parser.add_argument(
        "--memory-gib", "--mem-gb", type=float, default=0.0, help="GPU memory to hold besides (default: 0)"
    )
    parser.add_argument("--duty-cycle", type=float, default=1.0, help="part of the time to work, 0 to 1 (default: 1)")
    parser.add_argument("--sleep-ms", type=float, default=0.0, help="rest after each batch, in ms (default: 0)")
    options = parser.parse_args(argv)
    if options.streams < 1 or options.matrix_size < 1:
        raise UsageError("--streams and --matrix-size must be at least 1")
    if not 0 < options.duty_cycle <= 1:
        raise UsageError("--duty-cycle must lie above 0 and not above 1")
    if options.duration < 0 or options.memory_gib < 0 or options.sleep_ms < 0:
        raise UsageError("--duration, --memory-gib and --sleep-ms must not be negative")
    if options.sleep_ms and options.duty_cycle < 1:
        raise UsageError("--sleep-ms and --duty-cycle both say when to rest; give one of them")
    if not torch.cuda.is_available():
        raise UnavailableError("no CUDA device is there: interfere occupies a GPU; on a CPU use a fault scenario")
    if not 0 <= options.device < torch.cuda.device_count():
        raise UsageError(f"--device {options.device}: there are {torch.cuda.device_count()} GPUs, counted from 0")
    return Load(
        device=torch.device("cuda", options.device),
        duration_seconds=options.duration,
        streams=options.streams,
        matrix_size=options.matrix_size,
        dtype=DTYPES[options.dtype],
        memory_gib=options.memory_gib,
        duty_cycle=options.duty_cycle,
        rest_seconds=options.sleep_ms / 1000,
    )


class _Lane:
    """One stream with matrices of its own."""

    def __init__(self, load: Load) -> None:
        self._stream = torch.cuda.Stream(load.device)
        self._matrix = torch.eye(load.matrix_size, device=load.device, dtype=load.dtype)
        self._product = torch.empty_like(self._matrix)
        self._ahead: deque[torch.cuda.Event] = deque()
        self.products = 0

    def feed(self) -> bool:
        """Enqueue one batch unless enough is on its way. Returns whether it did."""
        while self._ahead and self._ahead[0].query():
            self._ahead.popleft()
        if len(self._ahead) >= BATCHES_AHEAD:
            return False
        with torch.cuda.stream(self._stream):
            for _ in range(PRODUCTS_PER_BATCH):
                torch.mm(self._matrix, self._matrix, out=self._product)
            event = torch.cuda.Event()
            event.record()
        self._ahead.append(event)
        self.products += PRODUCTS_PER_BATCH
        return True

    def drain(self) -> None:
        self._stream.synchronize()
        self._ahead.clear()


class _Stop:
    """Set by SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self.asked = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self.asked = True


def occupy(load: Load, stop: _Stop) -> tuple[int, float]:
    """Work until the duration is over or `stop` is asked. Returns the products done and the seconds it took."""
    torch.cuda.set_device(load.device)
    held = torch.empty(int(load.memory_gib * 2**30), dtype=torch.uint8, device=load.device)
    lanes = [_Lane(load) for _ in range(load.streams)]
    torch.cuda.synchronize(load.device)
    begin = time.monotonic()
    end = begin + load.duration_seconds if load.duration_seconds else float("inf")
    while not stop.asked and time.monotonic() < end:
        if load.rest_seconds:
            _work_one_batch(lanes, load.rest_seconds)
        else:
            _work_one_period(lanes, load.duty_cycle, stop)
    for lane in lanes:
        lane.drain()
    del held
    return sum(lane.products for lane in lanes), time.monotonic() - begin


def _work_one_batch(lanes: list[_Lane], rest_seconds: float) -> None:
    for lane in lanes:
        lane.feed()
    for lane in lanes:
        lane.drain()
    time.sleep(rest_seconds)


def _work_one_period(lanes: list[_Lane], duty_cycle: float, stop: _Stop) -> None:
    begin = time.monotonic()
    while time.monotonic() < begin + PERIOD_SECONDS * duty_cycle and not stop.asked:
        fed = [lane.feed() for lane in lanes]
        if not any(fed):
            time.sleep(0.0002)
    if duty_cycle < 1:
        for lane in lanes:
            lane.drain()
        # The rest is measured from the end of the work: what was enqueued runs over the period's working part.
        time.sleep((time.monotonic() - begin) * (1 / duty_cycle - 1))


def main(argv: list[str]) -> int:
    """Run the command. Raises UsageError and UnavailableError."""
    load = parse(argv)
    name = torch.cuda.get_device_name(load.device)
    print(f"occupying {load.device} ({name}) on {load.streams} streams; Ctrl-C ends it", flush=True)
    try:
        products, seconds = occupy(load, _Stop())
    except torch.cuda.OutOfMemoryError as error:
        raise UnavailableError(
            f"{load.device} has not enough free memory: lower --memory-gib or --matrix-size"
        ) from error
    tflops = products * 2 * load.matrix_size**3 / seconds / 1e12
    print(f"{products} products in {seconds:.1f} s, {tflops:.1f} TFLOP/s on average")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
