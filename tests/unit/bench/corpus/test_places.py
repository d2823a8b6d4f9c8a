"""Recordings without where they were made."""

from __future__ import annotations

from pathlib import Path

from bench.corpus.places import CHECKOUT, leave_out
from megatronapp.core.trace import file
from megatronapp.v1 import trace_pb2


def test_files_are_named_as_from_the_checkout_and_from_where_packages_are(tmp_path: Path) -> None:
    traces = tmp_path / "case" / "traces"
    path = file.path_for(traces, "local/corpus", 1, 0)
    path.parent.mkdir(parents=True)
    stack = (
        f'  File "{CHECKOUT}/services/trainer/loop.py", line 84 in train\n'
        '  File "/home/me/env/lib/python3.11/site-packages/torch/distributed.py", line 3 in wait\n'
        '  File "/usr/lib/python3.11/threading.py", line 9 in run'
    )
    told = trace_pb2.TraceMessage(seq=7, heartbeat=trace_pb2.Heartbeat(step=3, stack=trace_pb2.Stack(text=stack)))
    hello = trace_pb2.TraceMessage()
    hello.hello.recipe.settings.add(name="trace_dir", value=str(traces))
    with path.open("wb") as written:
        file.write(written, told)
        file.write(written, hello)

    leave_out(traces)

    first, second = file.read(path)
    assert (first.seq, first.heartbeat.step) == (7, 3)
    assert first.heartbeat.stack.text.splitlines() == [
        '  File "services/trainer/loop.py", line 84 in train',
        '  File "torch/distributed.py", line 3 in wait',
        '  File "threading.py", line 9 in run',
    ]
    assert second.hello.recipe.settings[0].value == "traces"
