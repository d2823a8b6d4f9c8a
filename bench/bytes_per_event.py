"""How large a traced step is on its way to the collector: bytes per event, as sent and compressed, of a real run.

python -m bench.bytes_per_event
"""

from __future__ import annotations

import sys
import tempfile
import warnings
import zlib
from pathlib import Path

FLAGS = (
    "--num-layers 8 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --micro-batch-size 2"
    " --global-batch-size 16 --mock-data --num-workers 0 --lr 1e-4 --lr-decay-style constant --eval-iters 0"
    " --log-interval 1000000"
    " --hidden-dropout 0 --attention-dropout 0 --train-iters 6 --trace --trace-interval 1"
    " --continuous-trace-iterations 1"
)


def main() -> int:
    warnings.filterwarnings("ignore")
    print(f"{'granularity':12} {'events/step':>12} {'raw B':>8} {'zlib-1 B':>9} {'zlib-6 B':>9}   per event")
    for granularity in ("base", "full"):
        events, steps, raw, fast, best = measure(granularity)
        print(f"{granularity:12} {events / steps:12.0f} {raw / events:8.1f} {fast / events:9.1f} {best / events:9.1f}")
    return 0


def measure(granularity: str) -> tuple[int, int, int, int, int]:
    """(events, steps, bytes, compressed at level 1, at level 6) of the batches of one rank."""
    from megatronapp.core.trace import file as trace_file
    from megatronapp.trainer.launch import run
    from megatronapp.trainer.plugins.scan import ScanPlugin

    with tempfile.TemporaryDirectory() as folder:
        flags = f"{FLAGS} --trace-granularity {granularity} --trace-dir {folder}"
        run(flags.split(), plugins=[ScanPlugin])
        path = trace_file.path_for(Path(folder), "local/train", 1, 0)
        batches = [m for m in trace_file.read(path) if m.WhichOneof("body") == "batch"]
    data = [message.SerializeToString() for message in batches]
    return (
        sum(message.batch.count for message in batches),
        len({message.batch.step for message in batches}),
        sum(map(len, data)),
        sum(len(zlib.compress(message, 1)) for message in data),
        sum(len(zlib.compress(message, 6)) for message in data),
    )


if __name__ == "__main__":
    sys.exit(main())
